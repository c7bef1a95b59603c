"""Two engines joined by a channel that a test can script, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from emulator.link.frames import Burst
from emulator.roce.attributes import (
    REQUIRED,
    AddressHandle,
    QpAttributes,
    QpCaps,
    QpMask,
)
from emulator.roce.engine import RoceEngine
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, QpType, SendFlags, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records

GUARD = 64
"""Bytes before and after every region that nothing may write."""
GUARD_VALUE = 0xA5
ALL_ACCESS = (
    AccessFlags.LOCAL_WRITE
    | AccessFlags.REMOTE_READ
    | AccessFlags.REMOTE_WRITE
    | AccessFlags.REMOTE_ATOMIC
)
MICROSECOND = 1_000
QKEY = 0x11111111

Frame = tuple[bytes, Any]
Channel = Callable[[list[Frame]], list[Frame]]


def mapped_gid(last_byte: int) -> bytes:
    """``::ffff:10.0.0.x``."""
    return bytes(10) + b"\xff\xff" + bytes((10, 0, 0, last_byte))


def ipv6_gid(last_byte: int) -> bytes:
    """``2001:db8::x`` (addresses for documentation, RFC 3849)."""
    return b"\x20\x01\x0d\xb8" + bytes(11) + bytes((last_byte,))


OPTIONS = QpOptions(max_send_wr=512, max_recv_wr=512, ack_timeout_code=8)


def reseal(payload: bytearray, descriptor: Any) -> Frame:
    """The frame with a right ICRC over whatever it holds."""
    body = bytes(payload[:-4])
    record = descriptor.copy()
    record.length = len(payload)
    value = icrc(emit_headers(record, len(payload)), body)
    return body + value.to_bytes(4, "little"), record


class Region:
    """A registered buffer with guards on both sides.

    ``addr`` is how it is named in requests, which need not be where it is in memory.
    """

    def __init__(
        self,
        engine: RoceEngine,
        nbytes: int,
        access: AccessFlags,
        pd: int = 1,
        iova: int | None = None,
    ) -> None:
        self._whole = np.full(nbytes + 2 * GUARD, GUARD_VALUE, np.uint8)
        self.data = self._whole[GUARD : GUARD + nbytes]
        self.data[:] = 0
        self.host_addr = int(self.data.ctypes.data)
        self.addr = self.host_addr if iova is None else iova
        self.key = engine.regions.register(self.host_addr, nbytes, access, pd, self._whole, iova)

    def guards_hold(self) -> bool:
        """True when nothing was written outside."""
        ends = (self._whole[:GUARD], self._whole[GUARD + len(self.data) :])
        return all((end == GUARD_VALUE).all() for end in ends)


class Port:
    """One engine with one queue pair."""

    def __init__(
        self,
        address: int,
        seed: int,
        options: QpOptions,
        first_psn: int | None,
        kind: QpType = QpType.RC,
        gid: Callable[[int], bytes] = mapped_gid,
        port_mtu: Mtu = Mtu.MTU_4096,
    ) -> None:
        self.engine = RoceEngine(
            gid=gid(address),
            source_port=0,
            window_bytes=64 * 4096,
            rng=random.Random(seed),
            port_mtu=port_mtu,
            more_gids=(ipv6_gid(address + 100),),
        )
        self.options = options
        self.kind = kind
        self.cq = self.engine.cqs.create(8192)
        self.qp = self.new_qp()
        self.first_psn = self.engine.qps.draw_psn() if first_psn is None else first_psn
        self.next_iova: int | None = None
        """By which number the next region goes, if every process is to use the same."""
        self.burst = Burst(64, 1 << 19)
        self.inbox = Burst(1, 8192)

    def new_qp(self, srq: int = -1) -> int:
        """A queue pair in INIT."""
        caps = QpCaps(
            max_send_wr=self.options.max_send_wr,
            max_recv_wr=self.options.max_recv_wr,
            max_inline_data=512,
        )
        qp = self.engine.qps.create(
            self.kind, pd=1, send_cq=self.cq, recv_cq=self.cq, caps=caps, srq=srq
        )
        attributes = QpAttributes(qp_state=QpState.INIT, qp_access_flags=int(ALL_ACCESS), qkey=QKEY)
        needed = REQUIRED[QpState.RESET, QpState.INIT][self.kind]
        self.engine.qps.modify(qp, attributes, QpMask.STATE | needed)
        return qp

    def connect(self, peer: Port, mtu_bytes: int, gid_index: int = 0) -> None:
        """INIT to RTS towards the queue pair of ``peer``, by GIDs of the same index."""
        options = self.options
        attributes = QpAttributes(
            qp_state=QpState.RTR,
            ah=AddressHandle(dgid=peer.engine.gids[gid_index], sgid_index=gid_index),
            path_mtu=int(Mtu.from_bytes_size(mtu_bytes)),
            dest_qp_num=peer.number,
            rq_psn=peer.first_psn,
            sq_psn=self.first_psn,
            max_rd_atomic=options.max_rd_atomic,
            max_dest_rd_atomic=options.max_rd_atomic,
            min_rnr_timer=options.min_rnr_timer_code,
            timeout=options.ack_timeout_code,
            retry_cnt=options.retry_count,
            rnr_retry=options.rnr_retry_count,
        )
        for before, after in ((QpState.INIT, QpState.RTR), (QpState.RTR, QpState.RTS)):
            needed = REQUIRED[before, after][self.kind]
            self.engine.qps.modify(
                self.qp, replace(attributes, qp_state=after), QpMask.STATE | needed
            )

    @property
    def number(self) -> int:
        """The queue pair's number."""
        return self.engine.qps.number(self.qp)

    def region(self, nbytes: int, access: AccessFlags = ALL_ACCESS) -> Region:
        """A fresh registered buffer."""
        iova = self.next_iova
        if iova is not None:
            self.next_iova = iova + (nbytes | 0xFFF) + 1
        return Region(self.engine, nbytes, access, iova=iova)

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
        self.engine.qps.post_send(self.qp, request)

    def recv(self, local: Region, length: int, wr_id: int = 1, offset: int = 0) -> None:
        """Post one receive work request."""
        request = new_records(RECV_WR, 1)
        request.wr_id = wr_id
        request.local_addr = local.addr + offset
        request.length = length
        request.lkey = local.key
        self.engine.qps.post_recv(self.qp, request)

    def poll(self) -> list[Any]:
        """All completions that are there."""
        out = new_records(WC, 4096)
        return list(out[: self.engine.cqs.poll(self.cq, out)])

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
        return self.engine.qps.state(self.qp)


class Pair:
    """Two connected ports, ``a`` and ``b``; ``to_a`` and ``to_b`` may be replaced by a test."""

    def __init__(
        self,
        mtu_bytes: int = 1024,
        options: QpOptions = OPTIONS,
        first_psn: int | None = None,
        kind: QpType = QpType.RC,
        gid: Callable[[int], bytes] = mapped_gid,
        port_mtus: tuple[Mtu, Mtu] = (Mtu.MTU_4096, Mtu.MTU_4096),
        gid_index: int = 0,
    ) -> None:
        self.now = 0
        self.a = Port(1, 1, options, first_psn, kind, gid, port_mtus[0])
        self.b = Port(2, 2, options, first_psn, kind, gid, port_mtus[1])
        # A queue pair number that differs shows a mix-up of the two ends.
        other = self.b.new_qp()
        self.b.engine.qps.destroy(self.b.qp)
        self.b.qp = other
        self.a.connect(self.b, mtu_bytes, gid_index)
        self.b.connect(self.a, mtu_bytes, gid_index)
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

    def advance(self) -> bool:
        """A step, or on to the next timer; False when both are quiet and no timer is armed."""
        if self.step():
            return True
        deadline = min(self.a.engine.next_deadline(), self.b.engine.next_deadline())
        if deadline >= 1 << 61:
            return False
        self.now = max(self.now, deadline)
        return True

    def run(self, max_steps: int = 100_000) -> None:
        """Exchange until both are quiet and no timer is armed."""
        for _ in range(max_steps):
            if not self.advance():
                return
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
