"""Two engines joined by a channel that a test can script, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.link.frames import Burst
from emulator.roce.engine import RoceEngine
from kvlane.verbs.enums import AccessFlags, QpState, SendFlags, WrOpcode
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records

GUARD = 64
"""Bytes before and after every region that nothing may write."""
GUARD_VALUE = 0xA5
ALL_ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
MICROSECOND = 1_000

Frame = tuple[bytes, Any]
Channel = Callable[[list[Frame]], list[Frame]]


def mapped_gid(last_byte: int) -> bytes:
    """``::ffff:10.0.0.x``."""
    return bytes(10) + b"\xff\xff" + bytes((10, 0, 0, last_byte))


OPTIONS = QpOptions(max_send_wr=512, max_recv_wr=512, ack_timeout_code=8)


class Region:
    """A registered buffer with guards on both sides."""

    def __init__(self, engine: RoceEngine, nbytes: int, access: AccessFlags, pd: int = 1) -> None:
        self._whole = np.full(nbytes + 2 * GUARD, GUARD_VALUE, np.uint8)
        self.data = self._whole[GUARD : GUARD + nbytes]
        self.data[:] = 0
        self.index, self.key = engine.register(self.data, access, pd)
        self.addr = int(self.data.ctypes.data)

    def guards_hold(self) -> bool:
        """True when nothing was written outside."""
        ends = (self._whole[:GUARD], self._whole[GUARD + len(self.data) :])
        return all((end == GUARD_VALUE).all() for end in ends)


class Port:
    """One engine with one queue pair."""

    def __init__(self, address: int, seed: int, options: QpOptions, first_psn: int | None) -> None:
        rng = random.Random(seed)
        if first_psn is not None:
            rng.getrandbits = lambda k: first_psn  # type: ignore[method-assign]
        self.engine = RoceEngine(
            gid=mapped_gid(address),
            udp_port=4791,
            source_port=0,
            window_bytes=64 * 4096,
            rng=rng,
        )
        self.cq = self.engine.create_cq(8192)
        self.qp = self.engine.create_qp(pd=1, send_cq=self.cq, recv_cq=self.cq, options=options)
        self.burst = Burst(64, 1 << 19)
        self.inbox = Burst(1, 8192)

    def endpoint(self, mtu_bytes: int) -> QpEndpoint:
        """What the other side must know."""
        return QpEndpoint(
            gid=self.engine.gid,
            udp_port=4791,
            qp_num=self.engine.qp_number(self.qp),
            psn=self.engine.qp_first_psn(self.qp),
            mtu_bytes=mtu_bytes,
        )

    def region(self, nbytes: int, access: AccessFlags = ALL_ACCESS) -> Region:
        """A fresh registered buffer."""
        return Region(self.engine, nbytes, access)

    def send(  # noqa: PLR0913 -- the fields of a work request
        self,
        opcode: WrOpcode,
        local: Region,
        length: int,
        *,
        remote: Region | None = None,
        rkey: int | None = None,
        wr_id: int = 1,
        imm: int = 0,
        offset: int = 0,
        remote_offset: int = 0,
        signaled: bool = True,
    ) -> None:
        """Post one send work request."""
        request = new_records(SEND_WR, 1)
        request.wr_id = wr_id
        request.opcode = int(opcode)
        request.send_flags = int(SendFlags.SIGNALED) if signaled else 0
        request.imm = imm
        request.local_addr = local.addr + offset
        request.length = length
        request.lkey = local.key
        if remote is not None:
            request.remote_addr = remote.addr + remote_offset
            request.rkey = remote.key if rkey is None else rkey
        self.engine.post_send(self.qp, request)

    def recv(self, local: Region, length: int, wr_id: int = 1, offset: int = 0) -> None:
        """Post one receive work request."""
        request = new_records(RECV_WR, 1)
        request.wr_id = wr_id
        request.local_addr = local.addr + offset
        request.length = length
        request.lkey = local.key
        self.engine.post_recv(self.qp, request)

    def poll(self) -> list[Any]:
        """All completions that are there."""
        out = new_records(WC, 4096)
        return list(out[: self.engine.poll_cq(self.cq, out)])

    def transmit(self, now: int) -> list[Frame]:
        """Everything that is due now, as bytes."""
        count = self.engine.transmit(self.burst, now)
        return [(self.burst.payload(i), self.burst.frames[i].copy()) for i in range(count)]

    def receive(self, frame: Frame, now: int) -> None:
        """Hand one frame to the engine."""
        self.inbox.clear()
        assert self.inbox.append(*frame)
        self.engine.receive(self.inbox, now)

    @property
    def state(self) -> QpState:
        """The QP's state."""
        return self.engine.qp_state(self.qp)


class Pair:
    """Two connected ports, ``a`` and ``b``; ``to_a`` and ``to_b`` may be replaced by a test."""

    def __init__(
        self,
        mtu_bytes: int = 1024,
        options: QpOptions = OPTIONS,
        first_psn: int | None = None,
    ) -> None:
        self.now = 0
        self.a = Port(1, 1, options, first_psn)
        self.b = Port(2, 2, options, first_psn)
        # A queue pair number that differs shows a mix-up of the two ends.
        extra = self.b.engine.create_qp(pd=1, send_cq=0, recv_cq=0, options=options)
        self.b.engine.destroy_qp(self.b.qp)
        self.b.qp = extra
        self.a.engine.connect_qp(self.a.qp, self.b.endpoint(mtu_bytes), mtu_bytes)
        self.b.engine.connect_qp(self.b.qp, self.a.endpoint(mtu_bytes), mtu_bytes)
        self.to_a: Channel = list
        self.to_b: Channel = list

    def step(self) -> bool:
        """Exchange one burst each way; False when nothing was sent and nothing arrived."""
        forth = self.a.transmit(self.now)
        arriving = self.to_b(forth)
        for frame in arriving:
            self.b.receive(frame, self.now)
        back = self.b.transmit(self.now)
        returning = self.to_a(back)
        for frame in returning:
            self.a.receive(frame, self.now)
        self.now += 10 * MICROSECOND
        return bool(forth or back or arriving or returning)

    def run(self, max_steps: int = 100_000) -> None:
        """Exchange until both are quiet and no timer is armed."""
        for _ in range(max_steps):
            if self.step():
                continue
            deadline = min(self.a.engine.next_deadline(), self.b.engine.next_deadline())
            if deadline >= 1 << 61:
                return
            self.now = max(self.now, deadline)
        raise AssertionError("the exchange does not come to an end")


class LossyChannel:
    """Drops, repeats, reorders and corrupts with given probabilities, from a seed."""

    def __init__(
        self, seed: int, drop: float, duplicate: float, reorder: float, corrupt: float
    ) -> None:
        self._rng = random.Random(seed)
        self._odds = (drop, duplicate, reorder, corrupt)
        self._held: list[Frame] = []

    def __call__(self, frames: list[Frame]) -> list[Frame]:
        """What of ``frames`` and of those held back arrives now."""
        drop, duplicate, reorder, corrupt = self._odds
        out: list[Frame] = []
        held, self._held = self._held, []
        for payload, descriptor in frames:
            if self._rng.random() < drop:
                continue
            frame = (payload, descriptor)
            if self._rng.random() < corrupt:
                damaged = bytearray(payload)
                damaged[self._rng.randrange(0, len(damaged))] ^= 1 << self._rng.randrange(0, 8)
                frame = (bytes(damaged), descriptor)
            if self._rng.random() < reorder:
                self._held.append(frame)
                continue
            out.append(frame)
            if self._rng.random() < duplicate:
                out.append(frame)
        return out + held
