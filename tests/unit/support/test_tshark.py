"""A machine without tshark: a developer's skips the tests that need it, another must not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

WITNESS = "tests/unit/emulator/test_wire_cm.py::test_tshark_reads_the_same_path"


@pytest.mark.parametrize(
    ("required", "code", "outcome"),
    [("", 0, "1 skipped"), ("1", 1, "1 failed")],
    ids=["a developer's", "one that must run everything"],
)
def test_without_tshark(required: str, code: int, outcome: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "-rsf", "-p", "no:cacheprovider", WITNESS]
    environment = {**os.environ, "PATH": "", "KVLANE_REQUIRE_TSHARK": required}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, outcome in done.stdout) == (code, True), done.stdout
    assert "tshark is not installed; it is Debian's package of that name" in done.stdout


def test_continuous_integration_requires_it() -> None:
    assert "\nexport KVLANE_REQUIRE_TSHARK=1\n" in (ROOT / ".ci/run").read_text()
