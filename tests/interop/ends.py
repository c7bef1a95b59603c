"""Both ends of the wire, and connections between them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.guest.packages import GuestFiles
from tests.interop.machine import Guest
from tests.interop.network import HOST_IPV4, TAP
from tests.interop.remote import Remote, RemoteError, accept

ROOT = Path(__file__).resolve().parents[2]
ENDPOINT = Path(__file__).with_name("endpoint.py")
EMULATED_ENDPOINT = Path(__file__).with_name("emulated_endpoint.py")
BOOT_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
GUEST_LOGS = (
    "dmesg > /exchange/kernel.log; cd /sys/class/infiniband/rxe0/ports/1/hw_counters && "
    "grep . * > /exchange/counters.txt"
)
"""What soft-RoCE has said and counted."""

EMULATOR, RXE = "emulator", "rxe"
TIMERS = {"timeout": 16, "retry_cnt": 6, "rnr_retry": 6, "min_rnr_timer": 12}
"""Codes of IBTA 1.7 section 9.7.5: 268 ms, since the guest is slow. Soft-RoCE takes a
``retry_cnt`` of 7 as "for ever", so 6, or a lost peer would never give an error."""


class Ends:
    """The emulator's endpoint, which can be had with other options, and soft-RoCE's."""

    def __init__(
        self, guest: Guest, listener: socket.socket, logs: Path, files: GuestFiles
    ) -> None:
        self.files = files
        self.exchange = guest.exchange
        """The folder that the guest sees as /exchange."""
        self._guest = guest
        self._listener = listener
        self._logs = logs
        self._emulator: Remote | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._options: tuple[str, ...] = ()
        self.rxe = accept(listener, RXE, BOOT_TIMEOUT_S, guest.require_running)
        self.rxe.call("open")

    def use_emulator(self, *options: str) -> None:
        """Have an emulator with these options of the drop-in, a new one unless it has them."""
        is_running = self._process is not None and self._process.poll() is None
        if self._emulator is not None and is_running and self._options == options:
            return
        self.stop_emulator()
        port = str(self._listener.getsockname()[1])
        command = emulated(options, [str(EMULATED_ENDPOINT), HOST_IPV4, port])
        with (self._logs / "emulator.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._emulator = accept(self._listener, EMULATOR, START_TIMEOUT_S, self._require_process)
        self._emulator.call("open")
        self._options = options

    def stop_emulator(self) -> None:
        """End its process."""
        if self._emulator is not None:
            self._emulator.close()
            self._emulator = None
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Leave the guest's logs where the host sees them, and end both endpoints' programs."""
        self.stop_emulator()
        with suppress(RemoteError):
            logs = self.rxe.call("start", words=["sh", "-c", GUEST_LOGS])
            self.rxe.call("finish", program=logs, within_s=STOP_TIMEOUT_S)
        self.rxe.close()

    def _require_process(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            log = (self._logs / "emulator.log").read_text(errors="replace")
            raise RemoteError(f"the emulator's program has ended:\n{log[-2000:]}")

    def end(self, name: str) -> Remote:
        """The endpoint of that name."""
        if name == RXE:
            return self.rxe
        self.use_emulator(*self._options)
        assert self._emulator is not None
        return self._emulator


def emulated(options: Sequence[str], words: Sequence[str]) -> list[str]:
    """The command that runs a pyverbs program on an emulated device on the tap."""
    drop_in = [sys.executable, "-m", "emulator.pyverbs", "--link", "raw", "--interface", TAP]
    return [*drop_in, *options, *words]


@dataclass(slots=True)
class Side:
    """A queue pair at one end."""

    remote: Remote
    facts: dict[str, Any]

    def do(self, method: str, **arguments: Any) -> Any:
        """Call a method of the endpoint about this connection."""
        return self.remote.call(method, qp=self.facts["id"], **arguments)


@dataclass(slots=True)
class Pair:
    """Two connected queue pairs, one at each end."""

    requester: Side
    responder: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both."""
        return self.requester, self.responder


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a pair is connected."""

    requester: str
    family: str
    mtu: int
    kind: str = "rc"

    @property
    def responder(self) -> str:
        """The end that the requester is not."""
        return RXE if self.requester == EMULATOR else EMULATOR

    @property
    def direction(self) -> str:
        """For the report."""
        return f"{self.requester} to {self.responder}"

    @property
    def setting(self) -> str:
        """For the report."""
        return f"{self.family} MTU {self.mtu}"


def all_wirings(kind: str = "rc") -> Iterator[Wiring]:
    """Every combination that the matrix has."""
    for family in ("ipv4", "ipv6"):
        for mtu in (1024, 4096):
            for requester in (EMULATOR, RXE):
                yield Wiring(requester, family, mtu, kind)


@contextmanager
def connected(ends: Ends, wiring: Wiring, timers: dict[str, int] | None = None) -> Iterator[Pair]:
    """A pair, taken apart at the end. ``timers`` are QP attributes besides ``TIMERS``."""
    sides = [
        Side(end, end.call("create", kind=wiring.kind, family=wiring.family))
        for end in (ends.end(wiring.requester), ends.end(wiring.responder))
    ]
    try:
        for mine, other in (sides, reversed(sides)):
            mine.do(
                "connect",
                remote=other.facts,
                path_mtu=wiring.mtu,
                timers={**TIMERS, **(timers or {})},
            )
        yield Pair(*sides)
    finally:
        for side in sides:
            with suppress(RemoteError):
                side.do("close")


class Renewed:
    """A pair for many cells, replaced after one that failed."""

    def __init__(self, ends: Ends, wiring: Wiring) -> None:
        self._ends = ends
        self._wiring = wiring
        self._open: Any = None
        self._pair: Pair | None = None

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        """The pair, connected first where there is none."""
        if self._pair is None:
            self._open = connected(self._ends, self._wiring)
            self._pair = self._open.__enter__()
        try:
            yield self._pair
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Take it apart."""
        if self._open is not None:
            opened, self._open, self._pair = self._open, None, None
            opened.__exit__(None, None, None)
