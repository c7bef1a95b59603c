"""`python -m tests.interop`: the emulator and Linux soft-RoCE at the two ends of one wire.

Boots Debian's kernel in QEMU, which takes a few seconds and root; everything it starts ends
with it. On failure the packets and both sides' logs stay where the last lines say.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.interop import network
from tests.interop.cases import connections, datagrams, kv, reliable, trouble
from tests.interop.ends import ENDPOINT, Ends
from tests.interop.guest import initramfs, packages
from tests.interop.guest.packages import GuestError
from tests.interop.machine import running
from tests.interop.remote import RemoteError
from tests.interop.report import Outcome, Report

GOOD, BAD, NO_RESULT, INTERRUPTED = 0, 1, 2, 130
CONTROL_PORT = 9777
PARTS: dict[str, Callable[[Ends, Report], None]] = {
    "reliable": reliable.run,
    "datagrams": datagrams.run,
    "trouble": trouble.run,
    "connections": connections.run,
    "kv": kv.run,
}

CELLS = {"reliable": 448, "datagrams": 28, "trouble": 88, "connections": 4, "kv": 80}
"""How many there must be, so that none is lost by a mistake."""


def options(arguments: list[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument(
        "--part", action="append", choices=PARTS, metavar="NAME", help="only this; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all cells there")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave packets and logs there in any case"
    )
    return parser.parse_args(arguments)


@contextmanager
def captured(path: Path) -> Iterator[None]:
    """All packets of the wire but those of the control connection, while the body runs."""
    words = ["tcpdump", "-q", "-i", network.TAP, "-U", "-w", str(path)]
    try:
        process = subprocess.Popen(
            [*words, "not", "tcp"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise GuestError("tcpdump is missing: apt-get install tcpdump") from None
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def endpoint_program() -> str:
    """What the guest runs: an endpoint, on its own Python and pyverbs."""
    return f"exec /usr/bin/python3 {ENDPOINT} {network.HOST_IPV4} {CONTROL_PORT}\n"


def run_matrix(opts: argparse.Namespace, records: Path) -> Report:
    """Boot, run the parts that were asked for, power off."""
    files = packages.obtain(packages.cache_folder())
    report = Report()
    exchange = records / "guest"
    exchange.mkdir()
    network.set_up()
    with (
        socket.create_server((network.HOST_IPV4, CONTROL_PORT)) as listener,
        running(files, network.GUEST, exchange, endpoint_program()) as guest,
        captured(records / "wire.pcap"),
    ):
        ends = Ends(guest, listener, records, files)
        try:
            for name in opts.part or PARTS:
                PARTS[name](ends, report)
        finally:
            ends.close()
    return report


def complaints(report: Report, parts: Sequence[str]) -> list[str]:
    """What is wrong with a run: failures, cells that are missing, and skips where none may be."""
    wrong = []
    if report.count(Outcome.FAILED):
        wrong.append(f"{report.count(Outcome.FAILED)} cells failed")
    expected = sum(CELLS[part] for part in parts)
    if len(report.cells) != expected:
        wrong.append(f"{len(report.cells)} cells, and there should be {expected}")
    if report.count(Outcome.SKIPPED) and os.environ.get("KVLANE_REQUIRE_ALL") == "1":
        wrong.append(f"{report.count(Outcome.SKIPPED)} cells were skipped")
    return wrong


def inside(opts: argparse.Namespace) -> int:
    """In the namespace: the run itself, its summary and what stays of it."""
    begin = time.monotonic()
    records = Path(tempfile.mkdtemp(prefix="kvlane-interop-"))
    verdict = NO_RESULT
    try:
        report = run_matrix(opts, records)
        wrong = complaints(report, opts.part or list(PARTS))
        verdict = BAD if wrong else GOOD
        if opts.json:
            opts.json.write_text(json.dumps(report.as_records(), indent=1) + "\n")
        print(f"{time.monotonic() - begin:.0f} s")
        for text in wrong:
            print(f"not good enough: {text}")
        print(report.summary())
    except (GuestError, RemoteError) as error:
        print(f"interop: no result: {error}", file=sys.stderr)
    finally:
        keep_records(records, opts.keep, verdict)
    return verdict


def keep_records(records: Path, wanted: Path | None, verdict: int) -> None:
    """Leave packets and logs where they are of use."""
    if wanted is not None:
        shutil.copytree(records, wanted, symlinks=True, dirs_exist_ok=True)
        print(f"packets and logs: {wanted}", file=sys.stderr)
    elif verdict != GOOD:
        print(f"packets and logs: {records}", file=sys.stderr)
        return
    shutil.rmtree(records, ignore_errors=True)


def main() -> int:
    """Prepare with the network of this machine, then go on in a namespace without one."""
    opts = options(sys.argv[1:])
    if network.is_inside():
        network.stop_on_sigterm()
        return inside(opts)
    try:
        files = packages.obtain(packages.cache_folder())
        initramfs.build(files)
        return network.run_inside("tests.interop", sys.argv[1:])
    except (GuestError, OSError) as error:
        print(f"interop: no result: {error}", file=sys.stderr)
    return NO_RESULT


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
