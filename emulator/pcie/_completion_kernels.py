"""Completion queues, and the end of requests: in order, with a status, or flushed."""

from __future__ import annotations

from typing import Any

from emulator.pcie.layout import (
    CHANNEL_SENDER_FAILED,
    CHANNEL_VERDICT,
    News,
    cq_at,
    recv_at,
    send_entry_at,
    wc_at,
)
from kvlane.atomics import load_acquire, store_release
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import QpState, SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.records import WC

_MESSAGE = int(News.MESSAGE)
_ERR = int(QpState.ERR)
_SIGNALED = int(SendFlags.SIGNALED)
_SUCCESS = int(WcStatus.SUCCESS)
_FLUSHED = int(WcStatus.WR_FLUSH_ERR)
_GONE = int(WcStatus.RETRY_EXC_ERR)
_RECV = int(WcOpcode.RECV)
_BELIEVABLE = (
    int(WcStatus.REM_INV_REQ_ERR),
    int(WcStatus.REM_ACCESS_ERR),
    int(WcStatus.REM_OP_ERR),
)
_READ = int(WrOpcode.RDMA_READ)
_WRITE = int(WrOpcode.RDMA_WRITE)
_WRITE_WITH_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_WC_SEND = int(WcOpcode.SEND)
_WC_READ = int(WcOpcode.RDMA_READ)
_WC_WRITE = int(WcOpcode.RDMA_WRITE)
_WC_BYTES = int(WC.itemsize)


@kernel
def has_room(context: Any, qp: Any) -> bool:
    """Whether the completion queue takes one more. Nothing is begun that could not complete."""
    cq = cq_at(context.cqs, qp.cq)
    return bool(cq.tail - cq.head < cq.depth)


@kernel
def push(context: Any, qp: Any, wr_id: int, status: int, opcode: int) -> Any:
    """Append a completion, for which there is room; its record, for the rest."""
    cq = cq_at(context.cqs, qp.cq)
    wc = wc_at(cq.ring, cq.tail % cq.depth)
    cq.tail += 1
    wc.wr_id = wr_id
    wc.status = status
    wc.opcode = opcode
    wc.byte_len = 0
    wc.qp_num = qp.number
    wc.src_qp = qp.remote_number
    wc.imm = 0
    wc.wc_flags = 0
    return wc


@kernel
def poll(cq: Any, out: int, count: int) -> int:
    """Move completions to an address; how many."""
    moved = min(cq.tail - cq.head, count)
    for index in range(moved):
        copy(out + index * _WC_BYTES, cq.ring + (cq.head % cq.depth) * _WC_BYTES, _WC_BYTES)
        cq.head += 1
    return int(moved)


@kernel
def forget(context: Any, index: int, number: int) -> None:
    """Take the completions of a queue pair out of a completion queue."""
    cq = cq_at(context.cqs, index)
    kept = cq.head
    for position in range(cq.head, cq.tail):
        source = cq.ring + (position % cq.depth) * _WC_BYTES
        if wc_at(cq.ring, position % cq.depth).qp_num != number:
            copy(cq.ring + (kept % cq.depth) * _WC_BYTES, source, _WC_BYTES)
            kept += 1
    cq.tail = kept


@kernel
def any_unpolled(context: Any) -> bool:
    """Whether any completion waits for being polled."""
    for index in range(context.cq_count):
        cq = cq_at(context.cqs, index)
        if cq.tail != cq.head:
            return True
    return False


@kernel
def _wc_opcode(opcode: int) -> int:
    if opcode == _READ:
        return _WC_READ
    if opcode in (_WRITE, _WRITE_WITH_IMM):
        return _WC_WRITE
    return _WC_SEND


@kernel
def end_oldest(context: Any, qp: Any, status: int) -> None:
    """Complete the oldest request; there is one, and room."""
    entry = send_entry_at(qp.sq, qp.sq_done % qp.sq_depth)
    qp.sq_done += 1
    if status != _SUCCESS or entry.send_flags & _SIGNALED:
        wc = push(context, qp, entry.wr_id, status, _wc_opcode(entry.opcode))
        wc.byte_len = entry.length


@kernel
def fail_oldest(context: Any, qp: Any, status: int) -> None:
    """The oldest request fails, and with it the queue pair."""
    end_oldest(context, qp, status)
    enter_error(qp, _GONE)


@kernel
def enter_error(qp: Any, verdict: int) -> None:
    """Fail the queue pair and tell the peer, whose oldest request ends with ``verdict``."""
    if qp.state == _ERR:
        return
    qp.state = _ERR
    if load_acquire(qp.inbound + CHANNEL_VERDICT) == _SUCCESS:
        store_release(qp.inbound + CHANNEL_VERDICT, verdict)
    if qp.attached:
        store_release(qp.outbound + CHANNEL_SENDER_FAILED, 1)
        qp.news |= _MESSAGE


@kernel
def believable(verdict: int) -> int:
    """A status that a peer may give; what else it writes means that it is gone."""
    return int(verdict) if verdict in _BELIEVABLE else _GONE


@kernel
def flush(context: Any, qp: Any) -> int:
    """End what is posted, as far as there is room; how many."""
    flushed = 0
    while qp.sq_done < qp.sq_tail and has_room(context, qp):
        end_oldest(context, qp, _FLUSHED)
        flushed += 1
    qp.sq_next = max(qp.sq_next, qp.sq_done)
    while qp.rq_head < qp.rq_tail and has_room(context, qp):
        entry = recv_at(qp.rq, qp.rq_head % qp.rq_depth)
        push(context, qp, entry.wr_id, _FLUSHED, _RECV)
        qp.rq_head += 1
        flushed += 1
    return flushed
