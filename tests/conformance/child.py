"""Runs one upstream module in a process of its own and reports each test as a line of JSON.

Started by path, with the drop-in already in place (`python -m emulator.pyverbs child.py ...`),
so it imports nothing of ours and knows nothing of the device.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
import types
import unittest
from pathlib import Path
from typing import Any

SKIPPED, PASSED, FAILED = "skipped", "passed", "failed"


class Report:
    """Appends events to a file, unbuffered, so that a killed process loses none."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **fields: object) -> None:
        os.write(self._fd, (json.dumps({"event": event, **fields}) + "\n").encode())


class ReportingResult(unittest.TestResult):
    """Hands what happens to each test to a report."""

    def __init__(self, report: Report, module: str, seed: int) -> None:
        super().__init__()
        self._report = report
        self._prefix = f"tests.test_{module}."
        self._seed = seed
        self._started_s = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        name = self._name(test)
        # The upstream tests draw PSNs and lengths; a seed makes a failure come back.
        random.seed(f"{self._seed}:{name}")
        self._report.write("start", test=name)
        self._started_s = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._outcome(test, PASSED)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._outcome(test, SKIPPED, reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._outcome(test, FAILED, _text(err))

    addError = addFailure  # noqa: N815

    def addSubTest(  # noqa: N802
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any
    ) -> None:
        if err is not None:
            self._outcome(test, FAILED, f"{subtest.id()}\n{_text(err)}")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._outcome(test, PASSED)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._outcome(test, FAILED, "it passed, though it was expected to fail")

    def _name(self, test: unittest.TestCase) -> str:
        whole = getattr(test, "test_case", test)  # a skipped subtest stands for its test
        return str(whole.id().removeprefix(self._prefix))

    def _outcome(self, test: unittest.TestCase, outcome: str, detail: str = "") -> None:
        seconds = round(time.monotonic() - self._started_s, 3)
        name = self._name(test)
        self._report.write("outcome", test=name, outcome=outcome, detail=detail, seconds=seconds)


def _text(err: Any) -> str:
    return "".join(traceback.format_exception(*err)).rstrip()


def load(tests: Path, module: str) -> unittest.TestSuite:
    """The tests of one module, imported as `tests.test_<module>`.

    The package's own `__init__` imports every module there is, those for one vendor too, so a
    bare package of that name takes its place.
    """
    sys.path[:0] = [str(tests.parent), str(tests)]
    package = types.ModuleType("tests")
    package.__path__ = [str(tests)]
    sys.modules["tests"] = package
    sys.argv[1:] = []
    importlib.import_module("args_parser").parser.parse_args()
    imported = importlib.import_module(f"tests.test_{module}")
    return unittest.defaultTestLoader.loadTestsFromModule(imported)


def guard(timeout_s: float) -> None:
    """A process that hangs, or that is ended because it hangs, shows where it stands."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    # Upstream ends a forked player that takes too long by SIGTERM.
    faulthandler.register(signal.SIGTERM, chain=True)


def main() -> int:
    """Run what the command line says; 0 even if tests fail, for the report has that."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tests", type=Path)
    parser.add_argument("module")
    parser.add_argument("report", type=Path)
    parser.add_argument("timeout_s", type=float)
    parser.add_argument("seed", type=int)
    options = parser.parse_args()
    guard(options.timeout_s)
    # The tests start processes with objects that can only be inherited, never pickled.
    multiprocessing.set_start_method("fork")
    report = Report(options.report)
    try:
        suite = load(options.tests, options.module)
    except Exception:
        report.write("broken", detail=traceback.format_exc().rstrip())
        return 0
    suite.run(ReportingResult(report, options.module, options.seed))
    report.write("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
