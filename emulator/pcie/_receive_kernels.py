"""Receive queues: messages of the peer's ring into the receives that are posted for them."""

from __future__ import annotations

from typing import Any

from emulator.pcie import _ring_kernels as ring
from emulator.pcie._access_kernels import opens
from emulator.pcie._bounce_kernels import is_for_memory, serve
from emulator.pcie._completion_kernels import enter_error, has_room, push
from emulator.pcie.layout import (
    CHANNEL_SENDER_FAILED,
    FRAGMENT_BYTES,
    MAX_MESSAGE_BYTES,
    NO_MESSAGE,
    QUANTUM_BYTES,
    REQUEST_COST_BYTES,
    RING_HEADER_BYTES,
    News,
    recv_at,
)
from kvlane.atomics import load_acquire
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import AccessFlags, QpState, WcFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.records import RECV_WR

_WR_BYTES = int(RECV_WR.itemsize)
_ERR = int(QpState.ERR)
_SEND = int(WrOpcode.SEND)
_SEND_WITH_IMM = int(WrOpcode.SEND_WITH_IMM)
_WRITE_WITH_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_WITH_IMM = int(WcFlags.WITH_IMM)
_RECV = int(WcOpcode.RECV)
_RECV_WITH_IMM = int(WcOpcode.RECV_RDMA_WITH_IMM)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_LEN_ERR = int(WcStatus.LOC_LEN_ERR)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_REM_INV_REQ_ERR = int(WcStatus.REM_INV_REQ_ERR)
_REM_OP_ERR = int(WcStatus.REM_OP_ERR)

_KIND, _TOTAL, _NBYTES, _IMM = 0, 1, 2, 3
_TAKEN = int(News.TAKEN)
_NOTHING = -1


@kernel
def enqueue(qp: Any, requests: int, count: int) -> None:
    """Append receives, for which there is space."""
    for index in range(count):
        at = qp.rq + ((qp.rq_tail + index) % qp.rq_depth) * _WR_BYTES
        copy(at, requests + index * _WR_BYTES, _WR_BYTES)
    qp.rq_tail += count


@kernel
def receive(context: Any, qp: Any) -> int:
    """Take messages out of the ring for one quantum; what that counts for in bytes."""
    moved = 0
    while moved < QUANTUM_BYTES and qp.state != _ERR:
        step = _take_fragment(context, qp)
        if step == _NOTHING:
            break
        moved += step + REQUEST_COST_BYTES
    return moved


@kernel
def has_sender_failed(qp: Any) -> bool:
    """Whether the peer's queue pair is in error. What came before that is in the ring."""
    return bool(load_acquire(qp.inbound + CHANNEL_SENDER_FAILED) != 0)


@kernel
def _take_fragment(context: Any, qp: Any) -> int:
    """Receive one fragment; its bytes, or ``_NOTHING``."""
    ready = ring.available(qp.inbound, qp.rx_head)
    if ready == 0:
        return _NOTHING
    if ready < RING_HEADER_BYTES:
        enter_error(qp, _REM_INV_REQ_ERR)
        return 0
    kind = ring.header_word(qp.inbound, qp.rx_head, _KIND)
    if qp.rx_total == NO_MESSAGE and is_for_memory(kind):
        return serve(context, qp, kind, ready)
    if qp.rq_head == qp.rq_tail or not has_room(context, qp):
        return _NOTHING
    nbytes = ring.header_word(qp.inbound, qp.rx_head, _NBYTES)
    sound = 0 <= nbytes <= FRAGMENT_BYTES and ring.footprint(nbytes) <= ready
    if not sound or not _fits_message(qp, kind, nbytes):
        enter_error(qp, _REM_INV_REQ_ERR)
        return 0
    entry = recv_at(qp.rq, qp.rq_head % qp.rq_depth)
    # For each fragment: the region may have been closed since the last one.
    if qp.rx_kind != _WRITE_WITH_IMM and qp.rx_total > 0:
        if qp.rx_total > entry.length:
            return _refuse(context, qp, _LOC_LEN_ERR, _REM_INV_REQ_ERR)
        if not opens(context, entry.lkey, entry.local_addr, qp.rx_total, _LOCAL_WRITE):
            return _refuse(context, qp, _LOC_PROT_ERR, _REM_OP_ERR)
    target = entry.local_addr + qp.rx_offset
    qp.rx_head = ring.take(qp.inbound, qp.rx_head, target, nbytes)
    qp.rx_offset += nbytes
    qp.news |= _TAKEN
    context.rx_bytes += nbytes
    if qp.rx_kind == _WRITE_WITH_IMM or qp.rx_offset == qp.rx_total:
        _complete(context, qp, entry.wr_id)
    return nbytes


@kernel
def _fits_message(qp: Any, kind: int, nbytes: int) -> bool:
    """Begin or continue a message; false when the fragment is none that can come now."""
    if qp.rx_total == NO_MESSAGE:
        total = ring.header_word(qp.inbound, qp.rx_head, _TOTAL)
        if kind not in (_SEND, _SEND_WITH_IMM, _WRITE_WITH_IMM):
            return False
        if total < 0 or total > MAX_MESSAGE_BYTES:
            return False
        qp.rx_kind = kind
        qp.rx_total = total
        qp.rx_imm = ring.header_word(qp.inbound, qp.rx_head, _IMM)
        qp.rx_offset = 0
    if qp.rx_kind == _WRITE_WITH_IMM:
        return nbytes == 0
    return nbytes <= qp.rx_total - qp.rx_offset and (nbytes > 0 or qp.rx_total == 0)


@kernel
def _refuse(context: Any, qp: Any, status: int, verdict: int) -> int:
    """The receive at the head fails, and with it both queue pairs; the message stays."""
    push(context, qp, recv_at(qp.rq, qp.rq_head % qp.rq_depth).wr_id, status, _RECV)
    qp.rq_head += 1
    enter_error(qp, verdict)
    return 0


@kernel
def _complete(context: Any, qp: Any, wr_id: int) -> None:
    by_write = qp.rx_kind == _WRITE_WITH_IMM
    wc = push(context, qp, wr_id, _SUCCESS, _RECV_WITH_IMM if by_write else _RECV)
    wc.byte_len = qp.rx_total
    if qp.rx_kind != _SEND:
        wc.imm = qp.rx_imm
        wc.wc_flags = _WITH_IMM
    qp.rq_head += 1
    qp.rx_total = NO_MESSAGE
    context.rx_messages += 1
