"""Shows runs: as text for a terminal, as JSON, and as the tables of docs/conformance.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.conformance.runner import FAILED, PASSED, SKIPPED, ModuleRun, Outcome
from tests.conformance.verdict import ALLOWED_SKIPS, allowed_skip, count

TRACEBACK_LINES = 12
LOG_LINES = 60
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def summary(runs: Sequence[ModuleRun]) -> str:
    """The last line of a run."""
    counted = count(runs)
    return (
        f"conformance: {counted.passed} passed, {counted.failed} failed, {counted.skipped} skipped"
    )


def table(runs: Sequence[ModuleRun]) -> Iterator[str]:
    """Outcomes by module."""
    yield f"{'module':<18}{'passed':>8}{'skipped':>9}{'failed':>8}{'seconds':>9}"
    for run in runs:
        passed, skipped, failed = (len(run.of(o)) for o in (PASSED, SKIPPED, FAILED))
        yield f"{run.module:<18}{passed:>8}{skipped:>9}{failed:>8}{run.seconds:>9.1f}"


def skips(runs: Sequence[ModuleRun]) -> Iterator[str]:
    """Every skip, under the name that allows it and the reason that the test gave."""
    for name, reasons in _skips_by_name(runs).items():
        tests = sum(len(group) for group in reasons.values())
        yield f"skipped, {name}: {tests}"
        for reason, group in reasons.items():
            yield f"  {reason} ({len(group)})"
            yield from (f"    {test}" for test in group)


def failures(runs: Sequence[ModuleRun]) -> Iterator[str]:
    """Every failure with the end of its traceback, then what a module in trouble printed."""
    for run in runs:
        for failure in run.of(FAILED):
            yield f"FAILED {run.module}: {failure.test}"
            yield from _tail(failure.detail, TRACEBACK_LINES)
        if run.trouble:
            yield f"TROUBLE {run.module}: {run.trouble}"
        if run.log.strip() and (run.trouble or run.of(FAILED)):
            yield f"output of {run.module}:"
            yield from _tail(run.log, LOG_LINES)


def flakes(rounds: Sequence[Sequence[ModuleRun]]) -> list[str]:
    """Tests that did not have the same outcome in every round, with how often each came."""
    seen: defaultdict[str, list[str]] = defaultdict(list)
    for runs in rounds:
        for run in runs:
            for outcome in run.outcomes:
                seen[f"{run.module}: {outcome.test}"].append(outcome.outcome)
    return [
        f"{test}: " + ", ".join(f"{outcomes.count(o)} {o}" for o in sorted(set(outcomes)))
        for test, outcomes in seen.items()
        if len(set(outcomes)) > 1 or len(outcomes) != len(rounds)
    ]


def merged(rounds: Sequence[Sequence[ModuleRun]]) -> list[ModuleRun]:
    """One run that stands for all rounds: of each test the worst outcome it had."""
    worst: dict[str, dict[str, Outcome]] = {}
    for outcome in (PASSED, SKIPPED, FAILED):
        for runs in rounds:
            for run in runs:
                tests = worst.setdefault(run.module, {})
                tests.update({o.test: o for o in run.of(outcome)})
    return [
        _merged_module([run for runs in rounds for run in runs if run.module == module], tests)
        for module, tests in worst.items()
    ]


def as_json(rounds: Sequence[Sequence[ModuleRun]]) -> list[list[dict[str, object]]]:
    """Everything about every round, for json.dump."""
    return [[asdict(run) for run in runs] for runs in rounds]


def write_document(path: Path, runs: Sequence[ModuleRun]) -> None:
    """Put the tables of ``runs`` between the marks of a document."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"{re.escape(BEGIN)}\n.*{re.escape(END)}", re.S)
    if not pattern.search(text):
        raise ValueError(f"{path} has no lines {BEGIN} and {END}")
    block = "\n".join([BEGIN, *_markdown(runs), END])
    path.write_text(pattern.sub(lambda _: block, text), encoding="utf-8")


def _merged_module(runs: Sequence[ModuleRun], tests: Mapping[str, Outcome]) -> ModuleRun:
    """The rounds of one module as one, with the output of the last one that went wrong."""
    quiet = [ModuleRun(runs[0].module, (), 0.0)]
    worst = (quiet + [r for r in runs if r.of(FAILED)] + [r for r in runs if r.trouble])[-1]
    seconds = sum(run.seconds for run in runs)
    return replace(worst, outcomes=tuple(tests.values()), seconds=seconds)


def _markdown(runs: Sequence[ModuleRun]) -> Iterator[str]:
    yield from ("", "| module | passed | skipped | failed |", "| --- | ---: | ---: | ---: |")
    for run in runs:
        passed, skipped, failed = (len(run.of(o)) for o in (PASSED, SKIPPED, FAILED))
        yield f"| {run.module} | {passed} | {skipped} | {failed} |"
    counted = count(runs)
    yield f"| **all** | **{counted.passed}** | **{counted.skipped}** | **{counted.failed}** |"
    yield from ("", "| skipped | tests | why | reason that the test gives |")
    yield "| --- | ---: | --- | --- |"
    whys = {allowed.name: allowed.why for allowed in ALLOWED_SKIPS}
    for name, reasons in _skips_by_name(runs).items():
        tests = sum(len(group) for group in reasons.values())
        given = "; ".join(reasons)
        yield f"| {name} | {tests} | {whys.get(name, '')} | {given} |"
    yield from ("", f"`{summary(runs)}`", "")


def _skips_by_name(runs: Sequence[ModuleRun]) -> dict[str, dict[str, list[str]]]:
    """Name of the allowed skip -> reason -> tests."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for skip in run.of(SKIPPED):
            allowed = allowed_skip(skip.test, skip.detail)
            reasons = found.setdefault(allowed.name if allowed else "NOT ALLOWED", {})
            reasons.setdefault(skip.detail, []).append(f"{run.module}: {skip.test}")
    return found


def _tail(text: str, lines: int) -> list[str]:
    return [f"    {line}" for line in text.splitlines()[-lines:]]
