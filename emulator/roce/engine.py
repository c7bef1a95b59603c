"""``RoceEngine``: the transport of one NIC port as an object, sans-IO.

It takes frames and the time, and fills bursts of frames to send. It reads no clock, opens
no socket and draws randomness only from the generator it is given. Calls are not
thread-safe; whoever owns the engine serialises them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.link.frames import Burst
from emulator.roce._completion_kernels import enter_error, stop_answering
from emulator.roce._queue_kernels import (
    OVERRUN,
    QUEUE_FULL,
    WRONG_STATE,
    poll_cq,
    post_recv,
    post_send,
)
from emulator.roce._receive_kernels import receive_burst
from emulator.roce._transmit_kernels import next_deadline, transmit_burst
from emulator.roce.state import (
    COUNTER_NAMES,
    COUNTERS,
    CQ,
    JOB,
    MAX_RD_ATOMIC,
    MAX_READ_JOBS,
    MR,
    NIC,
    QP,
    RQE,
    WQE,
)
from emulator.roce.transitions import require_transition
from kvlane.errors import CapacityError, QueueFullError, VerbsError
from kvlane.seams import Rng
from kvlane.verbs.enums import AccessFlags, QpState
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import WC, RecordArray, new_records

DEFAULT_PKEY = 0xFFFF
"""The default partition, full member (IBTA 1.7 section 10.9.1.1)."""

_FIRST_QPN = 0x100
"""Numbers 0 and 1 are the management queue pairs; staying clear of them helps readers."""

_ACK_TIMEOUT_UNIT_NS = 4096
"""Local ACK timeout is 4.096 us x 2^code (IBTA 1.7 section 9.9.2.1.1)."""

_MIN_WINDOW_PACKETS = 8
MAX_WINDOW_BYTES = 512 * 1024
"""Unacknowledged request data of a queue pair. Enough for a loopback's delay, and little to
send again when a packet is lost, since everything after it goes again too."""
MAX_READ_WINDOW_BYTES = 2 * 1024 * 1024
"""READ data that a queue pair may have asked for and not yet received."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of the engine's tables; powers of two where said."""

    max_qps: int = 1024
    """A power of two: the low bits of a QP number are its index."""
    max_cqs: int = 1024
    max_mrs: int = 4096


def gid_halves(gid: bytes) -> tuple[int, int]:
    """A GID as two signed 64-bit numbers, as descriptors and QPs keep it."""
    return (
        int.from_bytes(gid[:8], "big", signed=True),
        int.from_bytes(gid[8:], "big", signed=True),
    )


def entropy_port(local_qpn: int, remote_qpn: int) -> int:
    """UDP source port of a flow, 0xC000 and up, the same from both ends (rdma_flow_label)."""
    flow = local_qpn * remote_qpn
    flow ^= flow >> 20
    flow ^= flow >> 40
    flow &= 0xFFFFF
    return ((flow & 0x3FFF) ^ ((flow & 0xFC000) >> 14)) | 0xC000


class RoceEngine:
    """QPs, CQs and memory regions of one port, and the packets between them."""

    def __init__(
        self,
        *,
        gid: bytes,
        udp_port: int,
        source_port: int,
        window_bytes: int,
        rng: Rng,
        limits: EngineLimits = EngineLimits(),
    ) -> None:
        if limits.max_qps & (limits.max_qps - 1):
            raise VerbsError(f"max_qps must be a power of two, not {limits.max_qps}")
        self.gid = gid
        self.limits = limits
        self._window_bytes = window_bytes
        self._rng = rng
        self._counters = new_records(COUNTERS, 1)
        self._qps = new_records(QP, limits.max_qps)
        self._cqs = new_records(CQ, limits.max_cqs)
        self._mrs = new_records(MR, limits.max_mrs)
        self._scratch = np.zeros(128, np.uint8)
        self._memory: dict[tuple[str, int], Any] = {}
        """What tables point to by address, kept alive while it is in use."""
        self._tx: Burst | None = None
        self._qp_epoch = 0
        self._mr_tag = 0
        self._nic = new_records(NIC, 1)
        self._state = self._nic[0]
        self._init_nic(udp_port, source_port)

    def _init_nic(self, udp_port: int, source_port: int) -> None:
        nic = self._state
        nic.qps = self._qps.ctypes.data
        nic.qp_capacity = self.limits.max_qps
        nic.cqs = self._cqs.ctypes.data
        nic.mrs = self._mrs.ctypes.data
        nic.mr_capacity = self.limits.max_mrs
        nic.counters = self._counters.ctypes.data
        nic.gid_hi, nic.gid_lo = gid_halves(self.gid)
        nic.udp_port = udp_port
        nic.source_port = source_port
        nic.scratch = self._scratch.ctypes.data

    # Memory regions

    def register(self, buffer: Any, access: AccessFlags, pd: int) -> tuple[int, int]:
        """Register a contiguous uint8 array; return its index and key (lkey = rkey)."""
        free = np.flatnonzero(self._mrs.key[1:] == 0)
        if not len(free):
            raise CapacityError(
                f"all {self.limits.max_mrs} memory regions are in use; "
                "register few large buffers instead of many small ones"
            )
        index = int(free[0]) + 1
        self._mr_tag = (self._mr_tag + 1) & 0xFF
        mr = self._mrs[index]
        mr.addr = buffer.ctypes.data
        mr.length = buffer.nbytes
        mr.access = int(access)
        mr.pd = pd
        mr.key = (index << 8) | self._mr_tag
        self._memory["mr", index] = buffer
        return index, int(mr.key)

    def deregister(self, index: int) -> None:
        """Forget a region: its key opens nothing from now on."""
        self._mrs[index].key = 0
        self._memory.pop(("mr", index), None)

    # Completion queues

    def create_cq(self, depth: int) -> int:
        """A completion queue of ``depth`` entries; return its index."""
        free = np.flatnonzero(self._cqs.depth == 0)
        if not len(free):
            raise CapacityError(f"all {self.limits.max_cqs} completion queues are in use")
        index = int(free[0])
        ring = new_records(WC, depth + 1)
        self._memory["cq", index] = ring
        cq = self._cqs[index]
        cq.ring = ring.ctypes.data
        cq.head = cq.tail = cq.overflowed = 0
        cq.depth = depth
        return index

    def destroy_cq(self, index: int) -> None:
        """Free a completion queue."""
        in_use = self._qps[self._qps.in_use != 0]
        if ((in_use.send_cq == index) | (in_use.recv_cq == index)).any():
            raise VerbsError("the completion queue is still in use by a queue pair")
        self._cqs[index].depth = 0
        self._memory.pop(("cq", index), None)

    def poll_cq(self, index: int, out: RecordArray) -> int:
        """Move up to ``len(out)`` completions into ``out``; ``VerbsError`` after an overrun."""
        count = int(poll_cq(self._state, index, out))
        if count == OVERRUN:
            raise VerbsError("completion queue overrun: it is too small for what was posted")
        return count

    # Queue pairs

    def create_qp(self, *, pd: int, send_cq: int, recv_cq: int, options: QpOptions) -> int:
        """An RC queue pair in INIT; return its index."""
        free = np.flatnonzero(self._qps.in_use == 0)
        if not len(free):
            raise CapacityError(f"all {self.limits.max_qps} queue pairs are in use")
        if not 0 < options.max_rd_atomic <= MAX_RD_ATOMIC:
            raise VerbsError(f"max_rd_atomic is 1 to {MAX_RD_ATOMIC}")
        index = int(free[0])
        # A new number for every QP: late packets of an old one must find nobody.
        epochs = (1 << 24) // self.limits.max_qps - 1
        self._qp_epoch = self._qp_epoch % epochs + 1
        send_ring = new_records(WQE, options.max_send_wr)
        recv_ring = new_records(RQE, options.max_recv_wr)
        jobs = new_records(JOB, MAX_READ_JOBS)
        self._memory["qp", index] = (send_ring, recv_ring, jobs)
        self._qps[index] = np.zeros((), QP)
        qp = self._qps[index]
        qp.qpn = self._qp_epoch * self.limits.max_qps + index
        if qp.qpn < _FIRST_QPN:
            qp.qpn += self.limits.max_qps
        qp.state = int(QpState.INIT)
        qp.pd = pd
        qp.send_cq, qp.recv_cq = send_cq, recv_cq
        qp.pkey = DEFAULT_PKEY
        qp.access = int(AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE)
        qp.sq, qp.sq_size = send_ring.ctypes.data, options.max_send_wr
        qp.rq, qp.rq_size = recv_ring.ctypes.data, options.max_recv_wr
        qp.jobs = jobs.ctypes.data
        qp.max_rd_atomic = qp.max_dest_rd_atomic = options.max_rd_atomic
        qp.min_rnr_timer = options.min_rnr_timer_code
        qp.retry_count = qp.retries_left = options.retry_count
        qp.rnr_retry_count = qp.rnr_retries_left = options.rnr_retry_count
        if options.ack_timeout_code:
            qp.ack_timeout_ns = _ACK_TIMEOUT_UNIT_NS << options.ack_timeout_code
        first_psn = self._rng.getrandbits(24)
        qp.next_psn = qp.tx_psn = qp.high_psn = qp.una_psn = first_psn
        qp.in_use = 1
        self._state.qp_high = max(int(self._state.qp_high), index + 1)
        return index

    def qp_number(self, index: int) -> int:
        """The number peers address it by."""
        return int(self._qps[index].qpn)

    def qp_first_psn(self, index: int) -> int:
        """The next PSN it will send; before connecting, the first."""
        return int(self._qps[index].next_psn)

    def qp_state(self, index: int) -> QpState:
        """The state now."""
        return QpState(int(self._qps[index].state))

    def connect_qp(self, index: int, remote: QpEndpoint, mtu_bytes: int) -> None:
        """INIT to RTR to RTS towards ``remote``."""
        require_transition(self.qp_state(index), QpState.RTR)
        qp = self._qps[index]
        qp.remote_qpn = remote.qp_num
        qp.remote_hi, qp.remote_lo = gid_halves(remote.gid)
        qp.remote_port = remote.udp_port
        source_port = int(self._state.source_port)
        qp.source_port = source_port or entropy_port(int(qp.qpn), remote.qp_num)
        qp.mtu = mtu_bytes
        qp.window = self._window_packets(MAX_WINDOW_BYTES, mtu_bytes)
        qp.read_window = self._window_packets(MAX_READ_WINDOW_BYTES, mtu_bytes)
        qp.expected_psn = remote.psn
        qp.state = int(QpState.RTS)

    def _window_packets(self, limit_bytes: int, mtu_bytes: int) -> int:
        return max(_MIN_WINDOW_PACKETS, min(self._window_bytes, limit_bytes) // mtu_bytes)

    def destroy_qp(self, index: int) -> None:
        """Free a queue pair; nothing of it touches memory any more."""
        qp = self._qps[index]
        qp.in_use = 0
        qp.state = int(QpState.RESET)
        self._memory.pop(("qp", index), None)

    def fail_qp(self, index: int) -> None:
        """To ERR, flushing both queues."""
        stop_answering(self._qps[index])
        enter_error(self._state, self._qps[index])

    def post_send(self, index: int, requests: RecordArray) -> None:
        """Post SEND_WR records, all or none."""
        self._require_posted(post_send(self._state, index, requests), index)

    def post_recv(self, index: int, requests: RecordArray) -> None:
        """Post RECV_WR records, all or none."""
        self._require_posted(post_recv(self._state, index, requests), index)

    def _require_posted(self, result: int, index: int) -> None:
        if result == WRONG_STATE:
            raise VerbsError(
                f"nothing can be posted: the queue pair is in {self.qp_state(index).name}"
            )
        if result == QUEUE_FULL:
            raise QueueFullError("more work requests than the queue has free entries")

    # Frames and time

    def receive(self, burst: Burst, now: int) -> None:
        """Take the frames of a burst."""
        receive_burst(self._state, burst.frames_addr, burst.arena_addr, burst.count, now)

    def transmit(self, burst: Burst, now: int) -> int:
        """Fill an empty burst with what is due; return the number of frames."""
        if burst is not self._tx:
            self._aim_at(burst)
        burst.count = int(transmit_burst(self._state, now))
        return burst.count

    def _aim_at(self, burst: Burst) -> None:
        """Tell the NIC where frames go from now on."""
        self._tx = burst
        nic = self._state
        nic.tx_frames = burst.frames_addr
        nic.tx_arena = burst.arena_addr
        nic.tx_max_frames = len(burst.frames)
        nic.tx_max_bytes = len(burst.arena)

    def next_deadline(self) -> int:
        """When ``transmit`` must be called again at the latest, ns; 0 = at once."""
        return int(next_deadline(self._state))

    def counters(self) -> dict[str, int]:
        """All counters of the port by name."""
        return {name: int(self._counters[name][0]) for name in COUNTER_NAMES}
