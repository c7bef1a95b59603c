"""Runs upstream modules, each in a process of its own, and gathers what they report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.suite import listed_tests

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_WORST_FIRST = (FAILED, SKIPPED, PASSED)

GRACE_S = 15.0
"""How long after its own time limit a process may take to show its stacks and go."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    test: str
    outcome: str
    detail: str = ""
    """The reason of a skip, the traceback of a failure."""
    seconds: float = 0.0


@dataclass(frozen=True)
class ModuleRun:
    """What became of one module."""

    module: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    trouble: str = ""
    """What went wrong with the process itself: a hang, a crash, an import that failed."""
    log: str = field(default="", repr=False)
    """What it printed, stacks of faulthandler included."""

    def of(self, outcome: str) -> list[Outcome]:
        """The tests with this outcome."""
        return [o for o in self.outcomes if o.outcome == outcome]


@dataclass(frozen=True)
class Launch:
    """How a child is started."""

    launcher: Sequence[str]
    """The command before the path of a program, `python -m emulator.pyverbs` for instance."""
    environment: Mapping[str, str]
    timeout_s: float
    """For a whole module."""
    grace_s: float = GRACE_S


def run_module(tests: Path, module: str, launch: Launch, scratch: Path, seed: int) -> ModuleRun:
    """Run one module of the ``tests`` folder; files of the run are made in ``scratch``."""
    report, log = scratch / f"{module}.jsonl", scratch / f"{module}.log"
    report.write_bytes(b"")
    command = [*launch.launcher, str(Path(__file__).with_name("child.py"))]
    command += [str(tests), module, str(report), str(launch.timeout_s), str(seed)]
    started_s = time.monotonic()
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=scratch,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(launch.timeout_s + launch.grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(child)
    seconds = time.monotonic() - started_s
    events = [json.loads(line) for line in report.read_text().splitlines()]
    trouble = _trouble(events, child.returncode, hung=seconds >= launch.timeout_s)
    return ModuleRun(
        module=module,
        outcomes=tuple(_outcomes(events, listed_tests(tests, module), trouble)),
        seconds=seconds,
        trouble=trouble,
        log=log.read_text(errors="replace"),
    )


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and the players it forked, whichever of them are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _trouble(events: Sequence[Mapping[str, object]], code: int, *, hung: bool) -> str:
    last = events[-1] if events else {"event": "nothing"}
    if last["event"] == "broken":
        return f"import failed\n{last['detail']}"
    if last["event"] == "end":
        where = "after its last test"
    elif last["event"] == "nothing":
        where = "before its first test"
    else:
        where = f"in {last['test']}" if last["event"] == "start" else f"after {last['test']}"
    if hung:
        return f"hung {where}"
    if code or last["event"] != "end":
        return f"ended with status {code} {where}"
    return ""


def _outcomes(
    events: Iterable[Mapping[str, object]], listed: Sequence[str], trouble: str
) -> list[Outcome]:
    """One outcome a test, the worst where there are several; a test that was not run failed."""
    found: dict[str, Outcome] = {}
    for event in events:
        if event["event"] != "outcome":
            continue
        outcome = Outcome(**{name: event[name] for name in Outcome.__dataclass_fields__})  # type: ignore[arg-type]
        before = found.get(outcome.test)
        if before is None or _rank(outcome) < _rank(before):
            found[outcome.test] = outcome
    for test in listed:
        if test not in found:
            found[test] = Outcome(test, FAILED, f"not run: {_first_line(trouble)}")
    return list(found.values())


def _first_line(trouble: str) -> str:
    return trouble.partition("\n")[0] or "it was not loaded"


def _rank(outcome: Outcome) -> int:
    return _WORST_FIRST.index(outcome.outcome)
