"""The segment log under SIGKILL and torn writes: ``python -m tests.crash.segments --help``.

Each round kills a process that appends, deletes and compacts, at a random moment, opens the log
again and compares: what was acknowledged is there, what was deleted is not, every byte is right.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.segment_log import SegmentLog
from tests.support.repository import ROOT
from tests.support.segment_blocks import contents
from tests.support.segment_torn import torn_round

BLOCK_BYTES = 64 << 10
NUMBERS = 100
"""Blocks that may exist; with all of them, the log is some two thirds full."""
ABSENT = 0
FRUITLESS_ROUNDS = 10
"""Kills without one acknowledgement: a log that takes nothing loses nothing, and is of no use."""


def crash_config(folder: str) -> SegmentLogConfig:
    """Small segments, so that they are opened, sealed, compacted and freed all the time."""
    paths = tuple(Path(folder) / name for name in ("a", "b"))
    return SegmentLogConfig(paths, 6 << 20, segment_bytes=1 << 20, max_block_bytes=BLOCK_BYTES)


class Expected:
    """Versions that each block may have; 0 is absent."""

    def __init__(self) -> None:
        self._possible = {number: {ABSENT} for number in range(NUMBERS)}
        self.acknowledged = 0

    def take(self, line: str) -> None:
        """One line of the child."""
        kind, *numbers = line.split()
        number = int(numbers[0])
        version = int(numbers[1]) if kind in "aA" else ABSENT
        if kind.isupper():
            self._possible[number] = {version}
            self.acknowledged += 1
        else:
            self._possible[number].add(version)

    def compare(self, found: dict[int, int]) -> None:
        """Nothing lost, nothing back; from now on it is known what is there."""
        for number, possible in self._possible.items():
            version = found.get(number, ABSENT)
            assert version in possible, f"block {number}: {version}, possible {sorted(possible)}"
            self._possible[number] = {version}


def kill_round(folder: str, seed: int, expected: Expected, rng: random.Random) -> None:
    """One process, killed after a random number of lines; then all is compared."""
    command = [sys.executable, "-m", "tests.crash.segments_child", folder, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=_environment()) as child:
        assert child.stdout is not None
        for _ in range(rng.randrange(1, 1500)):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            expected.take(line.decode())
        child.kill()
        for line in child.stdout.read().decode().splitlines(keepends=True):
            if line.endswith("\n"):
                expected.take(line)
    log = SegmentLog.open(crash_config(folder))
    try:
        expected.compare(contents(log, BLOCK_BYTES))
    finally:
        log.close()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}


def kill_rounds(rounds: int, seed: int, *, say: bool = False) -> int:
    """So many rounds on one log; acknowledgements that were checked."""
    expected, rng, fruitless = Expected(), random.Random(seed), 0
    with tempfile.TemporaryDirectory(prefix="kvlane-crash-") as folder:
        for name in ("a", "b"):
            (Path(folder) / name).mkdir()
        for number in range(rounds):
            before = expected.acknowledged
            kill_round(folder, seed + number, expected, rng)
            fruitless = 0 if expected.acknowledged > before else fruitless + 1
            assert fruitless < FRUITLESS_ROUNDS, "nothing is acknowledged any more"
            if say and (number + 1) % 20 == 0:
                print(f"{number + 1} kills, {expected.acknowledged} acknowledgements", flush=True)
    return expected.acknowledged


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was right."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.segments", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="rounds of SIGKILL")
    parser.add_argument("--torn", type=int, default=50, help="rounds of lost and torn writes")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one a round")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # What is injected is reported, and expected.
    print(f"first seed: {options.seed}")
    acknowledged = kill_rounds(options.kills, options.seed, say=True)
    print(f"passed: {options.kills} kills, {acknowledged} acknowledgements checked")
    checked = sum(torn_round(options.seed + number) for number in range(options.torn))
    print(f"passed: {options.torn} torn rounds, {checked} acknowledgements checked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
