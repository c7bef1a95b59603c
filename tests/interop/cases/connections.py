"""Connection management by IP and port, with rping of rdma-core as the other end."""

from __future__ import annotations

import select
import subprocess
import time
from pathlib import Path
from typing import IO

from tests.interop.ends import EMULATOR, ROOT, RXE, Ends, emulated
from tests.interop.network import GUEST_IPV4, GUEST_IPV6, HOST_IPV4, HOST_IPV6
from tests.interop.report import MismatchError, Report, require

COUNT = 5
PORT = 7174
PATIENCE_S = 60.0
LISTENS = "until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done"
"""For sh in the guest: rping says nothing when it listens."""
_PROGRAM = str(Path(__file__).parents[1] / "rping.py")


def run(ends: Ends, report: Report) -> None:
    """All cells of this part. No other program may have the tap's device meanwhile."""
    ends.stop_emulator()
    for family, guest, host in (("ipv4", GUEST_IPV4, HOST_IPV4), ("ipv6", GUEST_IPV6, HOST_IPV6)):
        with report.cell("rping as server", family, f"{EMULATOR} to {RXE}"):
            _rping_serves(ends, guest)
        with report.cell("rping as client", family, f"{RXE} to {EMULATOR}"):
            _rping_connects(ends, host)


def _rping_serves(ends: Ends, guest_ip: str) -> None:
    words = ["rping", "-s", "-a", guest_ip, "-p", str(PORT), "-C", str(COUNT), "-v"]
    rping = ends.rxe.call("start", words=words)
    listening = ends.rxe.call("start", words=["sh", "-c", LISTENS])
    ends.rxe.call("finish", program=listening, within_s=20.0)
    try:
        ours = subprocess.run(
            emulated((), [_PROGRAM, "client", guest_ip, str(PORT), str(COUNT)]),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        output, status = ours.stdout + ours.stderr, ours.returncode
    except subprocess.TimeoutExpired as error:
        output, status = f"nothing within {PATIENCE_S} s: {error.stdout!r}", -1
    theirs = ends.rxe.call("finish", program=rping, within_s=10.0)
    require(status == 0, f"our client: {output[-600:]}")
    require(output.count("pinged") == COUNT, f"our client: {output[-600:]}")
    got = theirs["output"].count("server ping data: rdma-ping-")
    require(got == COUNT, f"rping saw {got} pings: {theirs['output'][-600:]}")


def _rping_connects(ends: Ends, host_ip: str) -> None:
    server = subprocess.Popen(
        emulated((), [_PROGRAM, "server", host_ip, str(PORT), str(COUNT)]),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        _await_line(server.stdout, "listening")
        words = ["rping", "-c", "-a", host_ip, "-p", str(PORT), "-C", str(COUNT), "-v", "-V"]
        rping = ends.rxe.call("start", words=words)
        theirs = ends.rxe.call("finish", program=rping, within_s=30.0)
        if theirs["status"]:
            server.kill()
            said = server.stdout.read()[-600:]
            raise MismatchError(f"rping: {theirs['output'][-600:]}; our server: {said}")
        got = theirs["output"].count("ping data: rdma-ping-")
        require(got == COUNT, f"rping got {got} answers: {theirs['output'][-600:]}")
        for _ in range(COUNT):
            _await_line(server.stdout, "served")
    finally:
        server.kill()
        server.wait()


def _await_line(output: IO[str], beginning: str) -> None:
    """Read lines until one begins so; MismatchError when none does in time."""
    deadline = time.monotonic() + PATIENCE_S
    said: list[str] = []
    while not said or not said[-1].startswith(beginning):
        left_s = deadline - time.monotonic()
        ready = left_s > 0 and select.select([output], [], [], left_s)[0]
        line = output.readline() if ready else ""
        require(line, f"our server did not get to {beginning!r}: {''.join(said)[-600:]}")
        said.append(line)
