"""Queue pairs of a NIC: creating, modifying, posting, destroying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from emulator.link.gid import gid_halves
from emulator.roce._completion_kernels import enter_error, stop_answering
from emulator.roce._emit_kernels import entropy_port
from emulator.roce._failure_kernels import end_users_of_failed_cqs
from emulator.roce._pacing_kernels import start_pacing
from emulator.roce._queue_kernels import (
    POSTED,
    QUEUE_FULL,
    TOO_LONG,
    UNSOUND,
    post_receives,
    post_recv,
    post_send,
    post_work,
    purge_cq,
)
from emulator.roce._requester_kernels import is_draining
from emulator.roce.attribute_limits import require_values
from emulator.roce.attributes import QpAttributes, QpCaps, QpMask, require_modify
from emulator.roce.congestion.state import CC_WORDS, CongestionAlgorithm
from emulator.roce.observer import EngineObserver
from emulator.roce.state import (
    ATOMIC_RESULT,
    JOB,
    MAX_INLINE_BYTES,
    MAX_RD_ATOMIC,
    MAX_READ_JOBS,
    MAX_SGE,
    QP,
    RQE,
    WQE,
)
from kvlane.errors import CapacityError, QueueFullError, VerbsError
from kvlane.seams import Rng
from kvlane.verbs.enums import Mtu, QpState, QpType
from kvlane.verbs.records import RecordArray, new_records

_FIRST_QPN = 0x100
"""Numbers 0 and 1 are the management queue pairs; staying clear of them helps readers."""
_ACK_TIMEOUT_UNIT_NS = 4096
"""Local ACK timeout is 4.096 us x 2^code (IBTA 1.7 section 9.9.2.1.1)."""
_UNSOUND_TEXT = f"a work request's length is the sum of its elements, which are {MAX_SGE} at most"
_MIN_WINDOW_PACKETS = 8
MAX_WINDOW_BYTES = 512 * 1024
"""Unacknowledged request data of a queue pair. Enough for a loopback's delay, and little to
send again when a packet is lost, since everything after it goes again too."""
MAX_READ_WINDOW_BYTES = 2 * 1024 * 1024
"""READ data that a queue pair may have asked for and not yet received."""


class QpTable:
    """Records of queue pairs, with the rings that they point to."""

    def __init__(
        self, capacity: int, nic: Any, gids: Sequence[bytes], window_bytes: int, rng: Rng
    ) -> None:
        if capacity & (capacity - 1):
            raise VerbsError(f"max_qps must be a power of two, not {capacity}")
        self.table = new_records(QP, capacity)
        self._nic = nic
        self._gids = gids
        self._window_bytes = window_bytes
        self._rng = rng
        # Another start in every process: a peer may still hold numbers of an earlier one.
        self._epoch = rng.getrandbits(24)
        self._memory: dict[int, tuple[Any, ...]] = {}
        self._attributes: dict[int, QpAttributes] = {}
        self._caps: dict[int, QpCaps] = {}
        self.observer: EngineObserver | None = None
        """Is told of every modify; set by ``RoceEngine.observe``."""
        self.line_rate_bps = 0
        """The most that a connected queue pair sends when congestion control is on."""
        self.congestion_algorithm = CongestionAlgorithm.NONE
        """Of queue pairs that are connected from now on."""

    def create(
        self,
        kind: QpType,
        *,
        pd: int,
        send_cq: int,
        recv_cq: int,
        caps: QpCaps,
        srq: int = -1,
        sq_sig_all: bool = False,
        number: int | None = None,
    ) -> int:
        """A queue pair in RESET; return its index. ``number`` is for management queue pairs."""
        if not 0 <= caps.max_inline_data <= MAX_INLINE_BYTES:
            raise VerbsError(f"max_inline_data is at most {MAX_INLINE_BYTES}")
        if max(caps.max_send_sge, caps.max_recv_sge) > MAX_SGE:
            raise VerbsError(f"a work request has at most {MAX_SGE} elements")
        index = self._free_index() if number is None else number
        self.table[index] = np.zeros((), QP)
        qp = self.table[index]
        qp.qpn = self._new_number(index) if number is None else number
        qp.kind = int(kind)
        qp.pd = pd
        qp.send_cq, qp.recv_cq, qp.srq = send_cq, recv_cq, srq
        qp.sq_sig_all = int(sq_sig_all)
        qp.pkey = self._nic.pkey
        qp.local_hi, qp.local_lo = gid_halves(self._gids[0])
        self._give_memory(index, caps)
        self._attributes[index] = QpAttributes()
        self._caps[index] = caps
        self._clear(index)
        qp.in_use = 1
        self._nic.qp_high = max(int(self._nic.qp_high), index + 1)
        return index

    def _free_index(self) -> int:
        # Index 0 and 1 are those of QP0 and QP1, which are never given out here.
        free = np.flatnonzero(self.table.in_use[2:] == 0)
        if not len(free):
            raise CapacityError(f"all {len(self.table) - 2} queue pairs are in use")
        return int(free[0]) + 2

    def _new_number(self, index: int) -> int:
        """A new number for every QP: late packets of an old one must find nobody."""
        epochs = (1 << 24) // len(self.table) - 1
        self._epoch = self._epoch % epochs + 1
        number = self._epoch * len(self.table) + index
        return number if number >= _FIRST_QPN else number + len(self.table)

    def _give_memory(self, index: int, caps: QpCaps) -> None:
        qp = self.table[index]
        send_ring = new_records(WQE, max(1, caps.max_send_wr))
        recv_ring = new_records(RQE, max(1, caps.max_recv_wr))
        inline = np.zeros(len(send_ring) * MAX_INLINE_BYTES, np.uint8)
        inbox, jobs = new_records(RQE, 1), new_records(JOB, MAX_READ_JOBS)
        atomics, cc = new_records(ATOMIC_RESULT, MAX_RD_ATOMIC), np.zeros(CC_WORDS, np.int64)
        self._memory[index] = (send_ring, recv_ring, inline, inbox, jobs, atomics, cc)
        qp.sq, qp.sq_size = send_ring.ctypes.data, len(send_ring)
        qp.rq, qp.rq_size = recv_ring.ctypes.data, len(recv_ring)
        qp.inline_data = inline.ctypes.data
        qp.inbox, qp.jobs = inbox.ctypes.data, jobs.ctypes.data
        qp.atomics, qp.cc = atomics.ctypes.data, cc.ctypes.data

    def _clear(self, index: int) -> None:
        """As after creation: empty queues, nothing half done."""
        qp = self.table[index]
        kept = {name: qp[name] for name in _KEPT_BY_RESET}
        self.table[index] = np.zeros((), QP)
        for name, value in kept.items():
            self.table[index][name] = value
        atomics, cc = self._memory[index][5:7]
        atomics[:] = np.zeros((), ATOMIC_RESULT)
        cc[:] = 0
        self._attributes[index] = QpAttributes()

    def destroy(self, index: int) -> None:
        """Free a queue pair; nothing of it touches memory any more."""
        self._require(index)
        qp = self.table[index]
        qp.in_use = 0
        qp.state = int(QpState.RESET)
        for cq in {int(qp.send_cq), int(qp.recv_cq)}:
            purge_cq(self._nic, cq, int(qp.qpn))
        self._memory.pop(index)
        self._attributes.pop(index)
        self._caps.pop(index)
        self._forget_free_end()

    def _forget_free_end(self) -> None:
        """Free records behind the last used one cost every burst a look: no more of them."""
        used = int(self._nic.qp_high)
        while used > 0 and not self.table[used - 1].in_use:
            used -= 1
        self._nic.qp_high = used

    def fail(self, index: int) -> None:
        """To ERR, flushing both queues."""
        stop_answering(self.table[index])
        enter_error(self._nic, self.table[index])
        end_users_of_failed_cqs(self._nic)

    # State and attributes

    def state(self, index: int) -> QpState:
        """The state now."""
        return QpState(int(self.table[index].state))

    def number(self, index: int) -> int:
        """The number peers address it by."""
        return int(self.table[index].qpn)

    def is_draining(self, index: int) -> bool:
        """In SQD: is work that has begun still to be finished?"""
        return bool(is_draining(self.table[index]))

    def draw_psn(self) -> int:
        """A first PSN for a new connection."""
        return self._rng.getrandbits(24)

    def query(self, index: int) -> tuple[QpAttributes, QpCaps]:
        """The attributes as they are."""
        self._require(index)
        attributes = replace(self._attributes[index], qp_state=self.state(index))
        qp = self.table[index]
        if attributes.qp_state not in (QpState.RESET, QpState.INIT):
            attributes.rq_psn = int(qp.expected_psn)
        if attributes.qp_state in (QpState.RTS, QpState.SQD):
            attributes.sq_psn = int(qp.next_psn)
        return attributes, self._caps[index]

    def modify(self, index: int, new: QpAttributes, mask: QpMask) -> None:
        """Change attributes and state, all or nothing; ``VerbsError`` says what is missing."""
        self._require(index)
        current = self.state(index)
        wanted = new.qp_state if mask & QpMask.STATE else current
        kind = QpType(int(self.table[index].kind))
        require_modify(kind, current, wanted, mask)
        require_values(new, mask, Mtu.from_bytes_size(int(self._nic.port_mtu)))
        if mask & QpMask.AV and new.ah.sgid_index >= len(self._gids):
            raise VerbsError(f"ah.sgid_index: the port has no GID {new.ah.sgid_index}")
        self._carry_out(index, wanted, new, mask)
        if self.observer is not None:
            self.observer.state_modified(index, current)

    def _carry_out(self, index: int, wanted: QpState, new: QpAttributes, mask: QpMask) -> None:
        if wanted == QpState.RESET:
            for cq in {int(self.table[index].send_cq), int(self.table[index].recv_cq)}:
                purge_cq(self._nic, cq, self.number(index))
            self._clear(index)
            return
        self._remember(index, new, mask)
        self._apply(index, mask)
        if wanted == QpState.ERR:
            self.fail(index)
        elif mask & QpMask.STATE:
            self.table[index].state = int(wanted)

    def _remember(self, index: int, new: QpAttributes, mask: QpMask) -> None:
        known = self._attributes[index]
        for bit, names in _FIELDS_OF_MASK.items():
            if mask & bit:
                for name in names:
                    setattr(known, name, getattr(new, name))

    def _apply(self, index: int, mask: QpMask) -> None:
        """Write attributes that ``mask`` names into the record the engine works on."""
        qp, known = self.table[index], self._attributes[index]
        if mask & QpMask.ACCESS_FLAGS:
            qp.access = int(known.qp_access_flags)
        if mask & QpMask.QKEY:
            qp.qkey = known.qkey
        if mask & QpMask.AV:
            self._apply_path(index)
        if mask & QpMask.PATH_MTU:
            qp.mtu = Mtu(known.path_mtu).nbytes
            qp.window = self._window_packets(MAX_WINDOW_BYTES, int(qp.mtu))
            qp.read_window = self._window_packets(MAX_READ_WINDOW_BYTES, int(qp.mtu))
        if mask & QpMask.DEST_QPN:
            qp.remote_qpn = known.dest_qp_num
        if mask & QpMask.RQ_PSN:
            qp.expected_psn = known.rq_psn & 0xFFFFFF
        if mask & QpMask.SQ_PSN:
            qp.next_psn = qp.tx_psn = qp.high_psn = known.sq_psn & 0xFFFFFF
            qp.una_psn = qp.asked_psn = qp.next_psn
        if mask & QpMask.EN_SQD_ASYNC_NOTIFY:
            qp.drain_notify = known.en_sqd_async_notify
        self._apply_limits(index, mask)
        self._choose_source_port(index)

    def _apply_limits(self, index: int, mask: QpMask) -> None:
        qp, known = self.table[index], self._attributes[index]
        if mask & QpMask.TIMEOUT:
            qp.ack_timeout_ns = _ACK_TIMEOUT_UNIT_NS << known.timeout if known.timeout else 0
        if mask & QpMask.RETRY_CNT:
            qp.retry_count = qp.retries_left = known.retry_cnt
        if mask & QpMask.RNR_RETRY:
            qp.rnr_retry_count = qp.rnr_retries_left = known.rnr_retry
        if mask & QpMask.MAX_QP_RD_ATOMIC:
            qp.max_rd_atomic = known.max_rd_atomic
        if mask & QpMask.MAX_DEST_RD_ATOMIC:
            qp.max_dest_rd_atomic = known.max_dest_rd_atomic
        if mask & QpMask.MIN_RNR_TIMER:
            qp.min_rnr_timer = known.min_rnr_timer

    def _apply_path(self, index: int) -> None:
        qp, path = self.table[index], self._attributes[index].ah
        qp.local_hi, qp.local_lo = gid_halves(self._gids[path.sgid_index])
        qp.remote_hi, qp.remote_lo = gid_halves(path.dgid)
        qp.remote_port = path.udp_port
        qp.traffic_class = path.traffic_class
        qp.flow_label = path.flow_label
        start_pacing(qp, int(self.congestion_algorithm), self.line_rate_bps)

    def _choose_source_port(self, index: int) -> None:
        qp = self.table[index]
        fixed = int(self._nic.source_port)
        flow = entropy_port(int(qp.flow_label), int(qp.qpn), int(qp.remote_qpn))
        qp.source_port = fixed or int(flow)
        if qp.kind == QpType.UD and not qp.mtu:
            self._apply_datagram_limits(index)

    def _apply_datagram_limits(self, index: int) -> None:
        """UD has no path MTU of its own: a message is what one packet of the port carries."""
        qp = self.table[index]
        qp.mtu = self._nic.port_mtu
        qp.window = 1 << 22

    def _window_packets(self, limit_bytes: int, mtu_bytes: int) -> int:
        return max(_MIN_WINDOW_PACKETS, min(self._window_bytes, limit_bytes) // mtu_bytes)

    # Posting

    def post_send(self, index: int, requests: RecordArray) -> None:
        """Post SEND_WR records, all or none; in SQE and ERR they are flushed at once."""
        self._require_posted(post_send(self._nic, index, requests), index)

    def post_work(self, index: int, works: RecordArray) -> None:
        """Post WQE records, all or none; in SQE and ERR they are flushed at once."""
        self._require_posted(post_work(self._nic, index, works), index)

    def post_recv(self, index: int, requests: RecordArray) -> None:
        """Post RECV_WR records, all or none; in ERR they are flushed at once."""
        self._require_posted(post_recv(self._nic, index, requests), index)

    def post_receives(self, index: int, entries: RecordArray) -> None:
        """Post RQE records, all or none; in ERR they are flushed at once."""
        self._require_posted(post_receives(self._nic, index, entries), index)

    def _require(self, index: int) -> None:
        if not self.table[index].in_use:
            raise VerbsError("the queue pair has been destroyed")

    def _require_posted(self, result: int, index: int) -> None:
        if result == POSTED:
            return
        if result == QUEUE_FULL:
            raise QueueFullError("more work requests than the queue has free entries")
        if result == TOO_LONG:
            raise VerbsError(f"inline data has at most {MAX_INLINE_BYTES} bytes")
        if result == UNSOUND:
            raise VerbsError(_UNSOUND_TEXT)
        raise VerbsError(f"nothing can be posted: the queue pair is in {self.state(index).name}")


_KEPT_BY_RESET = (
    *("qpn", "in_use", "kind", "pd", "send_cq", "recv_cq", "srq", "sq_sig_all", "pkey"),
    *("local_hi", "local_lo"),
    *("sq", "sq_size", "rq", "rq_size", "inline_data", "inbox", "jobs", "atomics", "cc"),
)

_FIELDS_OF_MASK: dict[QpMask, tuple[str, ...]] = {
    QpMask.EN_SQD_ASYNC_NOTIFY: ("en_sqd_async_notify",),
    QpMask.ACCESS_FLAGS: ("qp_access_flags",),
    QpMask.PKEY_INDEX: ("pkey_index",),
    QpMask.PORT: ("port_num",),
    QpMask.QKEY: ("qkey",),
    QpMask.AV: ("ah",),
    QpMask.PATH_MTU: ("path_mtu",),
    QpMask.TIMEOUT: ("timeout",),
    QpMask.RETRY_CNT: ("retry_cnt",),
    QpMask.RNR_RETRY: ("rnr_retry",),
    QpMask.RQ_PSN: ("rq_psn",),
    QpMask.MAX_QP_RD_ATOMIC: ("max_rd_atomic",),
    QpMask.MIN_RNR_TIMER: ("min_rnr_timer",),
    QpMask.SQ_PSN: ("sq_psn",),
    QpMask.MAX_DEST_RD_ATOMIC: ("max_dest_rd_atomic",),
    QpMask.DEST_QPN: ("dest_qp_num",),
}
