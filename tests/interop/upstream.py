"""`python -m tests.interop.upstream`: rdma-core's own tests on soft-RoCE and on the emulator.

Both take the same tests of the same source distribution; docs/interop.md gets the comparison.
Builds rdma-core once, for some minutes, so it is no part of the ordinary matrix.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conformance.sdist import SdistError
from tests.conformance.suite import MODULES, listed_tests
from tests.interop import network
from tests.interop.__main__ import CONTROL_PORT, endpoint_program
from tests.interop.ends import BOOT_TIMEOUT_S, ROOT, RXE
from tests.interop.guest import initramfs, packages, pyverbs_build
from tests.interop.guest.packages import GuestError
from tests.interop.guest.pyverbs_build import PyverbsBuild
from tests.interop.machine import running
from tests.interop.remote import Remote, RemoteError, accept

DOCUMENT = ROOT / "docs/interop.md"
BEGIN, END = "<!-- upstream: begin -->", "<!-- upstream: end -->"
MODULE_TIMEOUT_S = 120.0
CHILD = ROOT / "tests/conformance/child.py"
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
_POLL_S = 0.2

Outcomes = dict[str, str]
"""``module: Class.test`` -> outcome."""


def on_emulator(scratch: Path) -> Outcomes:
    """As ``make conformance`` runs them."""
    written = scratch / "conformance.json"
    command = [sys.executable, "-m", "tests.conformance", "--json", str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not written.exists():
        raise RemoteError(f"conformance gave no result: {done.stderr[-800:]}")
    (runs,) = json.loads(written.read_text())
    return {
        f"{run['module']}: {each['test']}": each["outcome"]
        for run in runs
        for each in run["outcomes"]
    }


def on_rxe(build: PyverbsBuild, scratch: Path) -> Outcomes:
    """In the guest, each module in a process of its own."""
    files = packages.obtain(packages.cache_folder())
    exchange = scratch / "guest"
    exchange.mkdir()
    network.set_up()
    outcomes: Outcomes = {}
    with (
        socket.create_server((network.HOST_IPV4, CONTROL_PORT)) as listener,
        running(files, network.GUEST, exchange, endpoint_program()) as guest,
    ):
        rxe = accept(listener, RXE, BOOT_TIMEOUT_S, guest.require_running)
        for module in MODULES:
            print(f"soft-RoCE: {module}", flush=True)
            outcomes.update(_module_on_rxe(rxe, build, exchange, module))
        rxe.close()
    return outcomes


def _module_on_rxe(rxe: Remote, build: PyverbsBuild, exchange: Path, module: str) -> Outcomes:
    report = f"{module}.jsonl"
    variables = {
        "PYTHONPATH": str(build.python_path),
        "LD_LIBRARY_PATH": str(build.library_path),
    }
    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    words += [sys.executable, str(CHILD), str(build.tests), module]
    words += [f"/exchange/{report}", str(MODULE_TIMEOUT_S), "0"]
    shell = f'exec "$@" >/exchange/{module}.log 2>&1'
    program = rxe.call("start", words=["sh", "-c", shell, "sh", *words])
    deadline = time.monotonic() + MODULE_TIMEOUT_S
    while rxe.call("is_running", program=program) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    rxe.call("finish", program=program, within_s=0.0)
    if not (exchange / report).exists():
        said = (exchange / f"{module}.log").read_text(errors="replace")
        raise RemoteError(f"{module} did not start in the guest: {said[-1500:]}")
    return _outcomes(exchange / report, build.tests, module)


def _outcomes(report: Path, tests: Path, module: str) -> Outcomes:
    """The worst outcome of each test; one that did not come about has failed."""
    found: Outcomes = {}
    for event in map(json.loads, report.read_text().splitlines()):
        if event["event"] == "broken":
            raise RemoteError(
                f"{module} cannot be imported in the guest: {event['detail'][-1500:]}"
            )
        if event["event"] == "outcome" and found.get(event["test"]) != FAILED:
            found[event["test"]] = event["outcome"]
    for test in listed_tests(tests, module):
        found.setdefault(test, FAILED)
    return {f"{module}: {test}": outcome for test, outcome in found.items()}


def comparison(emulator: Mapping[str, str], rxe: Mapping[str, str]) -> Iterator[str]:
    """Lines of the document."""
    yield "| module | tests | emulator passes | soft-RoCE passes | soft-RoCE fails |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for module in MODULES:
        yield _row(module, f"{module}: ", emulator, rxe)
    yield _row("**all**", "", emulator, rxe)
    yield ""
    ahead = [test for test in rxe if rxe[test] == PASSED and emulator.get(test) != PASSED]
    yield f"Tests that soft-RoCE passes and the emulator does not: {len(ahead)}."
    if ahead:
        yield ""
    yield from (f"- `{test}`: {emulator.get(test, 'not run')} here" for test in ahead)
    yield ""
    failed = [test for test in rxe if rxe[test] == FAILED]
    yield f"Tests that fail on soft-RoCE: {len(failed)}."
    if failed:
        yield ""
    yield from (f"- `{test}`: {emulator.get(test, 'not run')} here" for test in failed)


def _row(name: str, prefix: str, emulator: Mapping[str, str], rxe: Mapping[str, str]) -> str:
    tests = [test for test in emulator if test.startswith(prefix)]
    ours = Counter(emulator[test] for test in tests)
    theirs = Counter(rxe.get(test, FAILED) for test in tests)
    return f"| {name} | {len(tests)} | {ours[PASSED]} | {theirs[PASSED]} | {theirs[FAILED]} |"


def write_document(lines: list[str]) -> None:
    """Put the comparison between its marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}", "utf-8")


def main() -> int:
    """Prepare with the network of this machine, then go on in a namespace without one."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.upstream", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="put it into docs/interop.md")
    opts = parser.parse_args()
    cache = packages.cache_folder()
    try:
        if network.is_inside():
            network.stop_on_sigterm()
        else:
            initramfs.build(packages.obtain(cache))
            pyverbs_build.obtain(cache)
            return network.run_inside("tests.interop.upstream", sys.argv[1:])
        with tempfile.TemporaryDirectory(prefix="kvlane-upstream-") as name:
            scratch = Path(name)
            rxe = on_rxe(pyverbs_build.obtain(cache), scratch)
            lines = list(comparison(on_emulator(scratch), rxe))
    except (GuestError, RemoteError, SdistError, OSError) as error:
        print(f"upstream: no result: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    if opts.write_docs:
        write_document(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
