"""Compiled and interpreted, the engine says the same, byte for byte.

This process runs its kernels one way, another process the other way; both are given the
same frames and work, and write down every frame, completion, counter, event and byte.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvlane.jit import JIT_ENABLED
from tests.support.engine_transcript import FUZZ, WORKLOAD, transcript
from tests.support.repository import ROOT


def other_way(kind: str, seed: int, count: int) -> list[str]:
    """The transcript by a process that runs its kernels the other way."""
    environment = {
        **os.environ,
        "NUMBA_DISABLE_JIT": "1" if JIT_ENABLED else "0",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto"))),
    }
    command = [sys.executable, "-m", "tests.support.engine_transcript", kind, str(seed), str(count)]
    result = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("kind", "seed", "count"),
    [(FUZZ, 1, 400), (FUZZ, 2, 400), (WORKLOAD, 1, 12), (WORKLOAD, 2, 12)],
)
def test_both_ways_give_the_same_transcript(kind: str, seed: int, count: int) -> None:
    mine = transcript(kind, seed, count)
    assert len(mine) > count
    assert other_way(kind, seed, count) == mine


def test_a_transcript_shows_a_difference() -> None:
    assert transcript(FUZZ, 1, 50) != transcript(FUZZ, 2, 50)
    assert transcript(FUZZ, 1, 50) == transcript(FUZZ, 1, 50)
