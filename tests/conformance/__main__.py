"""`python -m tests.conformance`: rdma-core's own tests against the drop-in for pyverbs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance import machine, report, runner, sdist, verdict
from tests.conformance.suite import FLOOR, MODULES, TOTAL, listed_tests

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "conformance.md"
MODULE_TIMEOUT_S = 180.0
WARM_UP_MODULE = "qpex"
"""Run first and not judged: its traffic makes all kernels compile, which takes longer than some
tests wait."""

GOOD, BAD, NO_RESULT = 0, 1, 2


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--module",
        action="append",
        choices=MODULES,
        metavar="NAME",
        help="only this module; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="name the tests and run none")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds of a soak")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of what the tests draw at random; each round adds 1",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=MODULE_TIMEOUT_S,
        metavar="SECONDS",
        help="for one module (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument(
        "--write-docs", action="store_true", help="put the result into docs/conformance.md"
    )
    parser.add_argument(
        "--device-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option of emulator.pyverbs; may be repeated",
    )
    return parser.parse_args(arguments)


def run_rounds(
    tests: Path, scratch: Path, opts: argparse.Namespace
) -> Iterator[list[runner.ModuleRun]]:
    """The modules that were asked for, as many times as were asked for."""
    launcher = machine.drop_in(opts.device_option)
    devices = machine.probe(launcher, machine.environment(ROOT, scratch))
    programs = machine.make_programs(scratch, devices)
    launch = runner.Launch(launcher, machine.environment(ROOT, scratch, programs), opts.timeout)
    runner.run_module(tests, WARM_UP_MODULE, launch, scratch, opts.seed)
    for number in range(opts.repeat):
        yield [
            runner.run_module(tests, module, launch, scratch, opts.seed + number)
            for module in opts.module or MODULES
        ]


def judge(rounds: Sequence[Sequence[runner.ModuleRun]], *, whole: bool) -> int:
    """Print everything about the rounds; the exit status."""
    runs = rounds[0] if len(rounds) == 1 else report.merged(rounds)
    wrong = [text for one in rounds for text in verdict.complaints(one, whole=whole)]
    wrong = list(dict.fromkeys(wrong))
    wrong += [f"not the same in every round: {flake}" for flake in report.flakes(rounds)]
    for part in (report.table(runs), report.skips(runs), report.failures(runs)):
        print(*part, "", sep="\n")
    print(f"floor: {FLOOR} of {TOTAL}" + ("" if whole else ", not checked on a part"))
    for text in wrong:
        print(f"not good enough: {text}")
    if len(rounds) > 1:
        clean = sum(not verdict.complaints(one, whole=whole) for one in rounds)
        print(f"{clean} of {len(rounds)} rounds were good; below, a test has its worst outcome")
    print(report.summary(runs))
    return BAD if wrong else GOOD


def run(opts: argparse.Namespace) -> int:
    """Fetch, unpack, run, judge; the exit status."""
    archive = sdist.obtain(sdist.cache_folder())
    whole = opts.module is None
    with tempfile.TemporaryDirectory(prefix="kvlane-conformance-") as folder:
        scratch = Path(folder)
        tests = sdist.unpack_tests(archive, scratch)
        if opts.list:
            names = [f"{m}: {t}" for m in opts.module or MODULES for t in listed_tests(tests, m)]
            print("\n".join(names))
            return GOOD if len(names) >= TOTAL or not whole else BAD
        rounds = []
        for runs in run_rounds(tests, scratch, opts):
            rounds.append(runs)
            if opts.repeat > 1:
                print(f"round {len(rounds)} of {opts.repeat}: {report.summary(runs)}", flush=True)
    if opts.json:
        opts.json.write_text(json.dumps(report.as_json(rounds), indent=1), encoding="utf-8")
    status = judge(rounds, whole=whole)
    if opts.write_docs and (status != GOOD or not whole):
        print(
            f"{DOCUMENT.name} stays as it is: this is no good result of the whole suite",
            file=sys.stderr,
        )
    elif opts.write_docs:
        report.write_document(DOCUMENT, rounds[-1])
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; 0 good, 1 not good enough, 2 no result."""
    try:
        return run(options(arguments))
    except (sdist.SdistError, machine.ProbeError, subprocess.TimeoutExpired) as error:
        print(f"conformance: no result: {error}", file=sys.stderr)
        return NO_RESULT


if __name__ == "__main__":
    sys.exit(main())
