"""The verbs' side of the rings: posting work requests and polling completions in batches."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import push_cqe, wc_opcode_of
from emulator.roce._failure_kernels import end_users_of_failed_cqs
from emulator.roce._receive_queue_kernels import copy_rqe
from emulator.roce.state import (
    ARM_NEXT,
    CQE,
    MAX_INLINE_BYTES,
    MAX_SGE,
    cq_at,
    cqe_at,
    qp_at,
    rqe_at,
    srq_at,
    wqe_at,
)
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import QpState, SendFlags, WcOpcode, WcStatus

_RESET = int(QpState.RESET)
_RTS = int(QpState.RTS)
_SQD = int(QpState.SQD)
_SQE = int(QpState.SQE)
_ERR = int(QpState.ERR)
_INLINE = int(SendFlags.INLINE)
_FLUSHED = int(WcStatus.WR_FLUSH_ERR)
_RECV = int(WcOpcode.RECV)

_CQE_BYTES = CQE.itemsize

POSTED = 0
WRONG_STATE = 1
QUEUE_FULL = 2
TOO_LONG = 3
UNSOUND = 4
OVERRUN = -1


@kernel
def _room_to_send(qp: Any, wanted: int) -> int:
    if qp.state not in (_RTS, _SQD, _SQE, _ERR):
        return WRONG_STATE
    if wanted > qp.sq_size - (qp.sq_tail - qp.sq_head):
        return QUEUE_FULL
    return POSTED


@kernel
def _flush_posted_sends(nic: Any, qp: Any, requests: Any) -> None:
    """Complete what is posted to a send queue in error (IBTA 1.7 section 10.3.1.7)."""
    for i in range(len(requests)):
        opcode = wc_opcode_of(requests[i].opcode)
        push_cqe(nic, qp.send_cq, qp, requests[i].wr_id, _FLUSHED, opcode)
    end_users_of_failed_cqs(nic)


@kernel
def _flush_posted_receives(nic: Any, qp: Any, requests: Any) -> None:
    """Complete what is posted to a receive queue in error (IBTA 1.7 section 10.3.1.7)."""
    for i in range(len(requests)):
        push_cqe(nic, qp.recv_cq, qp, requests[i].wr_id, _FLUSHED, _RECV)
    end_users_of_failed_cqs(nic)


@kernel
def post_send(nic: Any, index: int, requests: Any) -> int:
    """Append SEND_WR records, all or none; ``POSTED``, ``WRONG_STATE`` or ``QUEUE_FULL``.

    In SQE and ERR they are flushed at once, as by ``post_work``.
    """
    qp = qp_at(nic.qps, index)
    result = _room_to_send(qp, len(requests))
    if result != POSTED:
        return result
    if qp.state in (_SQE, _ERR):
        _flush_posted_sends(nic, qp, requests)
        return POSTED
    for i in range(len(requests)):
        request = requests[i]
        wqe = wqe_at(qp.sq, qp.sq_tail % qp.sq_size)
        wqe.wr_id = request.wr_id
        wqe.opcode = request.opcode
        wqe.send_flags = request.send_flags & ~_INLINE
        wqe.imm = request.imm
        wqe.length = request.length
        wqe.remote_addr = request.remote_addr
        wqe.rkey = request.rkey
        wqe.sum_addr = request.sum_addr
        wqe.assigned = 0
        wqe.num_sge = 1
        wqe.sge_addr[0] = request.local_addr
        wqe.sge_length[0] = request.length
        wqe.sge_lkey[0] = request.lkey
        qp.sq_tail += 1
    return POSTED


@kernel
def post_recv(nic: Any, index: int, requests: Any) -> int:
    """Append RECV_WR records, all or none; the results of ``post_send``. In ERR they are
    flushed at once, as by ``post_receives``."""
    qp = qp_at(nic.qps, index)
    if qp.state == _RESET:
        return WRONG_STATE
    if len(requests) > qp.rq_size - (qp.rq_tail - qp.rq_head):
        return QUEUE_FULL
    if qp.state == _ERR:
        _flush_posted_receives(nic, qp, requests)
        return POSTED
    for i in range(len(requests)):
        request = requests[i]
        rqe = rqe_at(qp.rq, qp.rq_tail % qp.rq_size)
        rqe.wr_id = request.wr_id
        rqe.length = request.length
        rqe.num_sge = 1
        rqe.sge_addr[0] = request.local_addr
        rqe.sge_length[0] = request.length
        rqe.sge_lkey[0] = request.lkey
        qp.rq_tail += 1
    return POSTED


@kernel
def _copy_wqe(wqe: Any, work: Any) -> None:
    """Copy what a poster fills in; the rest is the engine's."""
    wqe.wr_id = work.wr_id
    wqe.opcode = work.opcode
    wqe.send_flags = work.send_flags
    wqe.imm = work.imm
    wqe.length = work.length
    wqe.remote_addr = work.remote_addr
    wqe.rkey = work.rkey
    wqe.compare_add = work.compare_add
    wqe.swap = work.swap
    wqe.feth = work.feth
    wqe.sum_addr = work.sum_addr
    wqe.flush_length = work.flush_length
    wqe.ud_hi = work.ud_hi
    wqe.ud_lo = work.ud_lo
    wqe.ud_local_hi = work.ud_local_hi
    wqe.ud_local_lo = work.ud_local_lo
    wqe.ud_port = work.ud_port
    wqe.ud_qpn = work.ud_qpn
    wqe.ud_qkey = work.ud_qkey
    wqe.ud_traffic_class = work.ud_traffic_class
    wqe.ud_flow_label = work.ud_flow_label
    wqe.mw_key = work.mw_key
    wqe.mw_new_key = work.mw_new_key
    wqe.mw_lkey = work.mw_lkey
    wqe.mw_addr = work.mw_addr
    wqe.mw_length = work.mw_length
    wqe.mw_access = work.mw_access
    wqe.num_sge = work.num_sge
    wqe.assigned = 0
    for i in range(work.num_sge):
        wqe.sge_addr[i] = work.sge_addr[i]
        wqe.sge_length[i] = work.sge_length[i]
        wqe.sge_lkey[i] = work.sge_lkey[i]


@kernel
def _is_sound(entry: Any) -> bool:
    """Do the elements fit their arrays, and make up the length that is said?"""
    if not 0 <= entry.num_sge <= MAX_SGE:
        return False
    total = 0
    for i in range(entry.num_sge):
        if entry.sge_length[i] < 0:
            return False
        total += entry.sge_length[i]
    return bool(total == entry.length)


@kernel
def post_work(nic: Any, index: int, works: Any) -> int:
    """Append WQE records with everything a work request can say; results of ``post_send``.

    Inline data is read here, by address and without a key, so that its memory is the
    poster's again on return (IBTA 1.7 section 11.4.1.1). In SQE and ERR nothing is carried
    out: each request is completed in error at once (IBTA 1.7 section 10.3.1.7).
    """
    qp = qp_at(nic.qps, index)
    result = _room_to_send(qp, len(works))
    if result != POSTED:
        return result
    for i in range(len(works)):
        if (works[i].send_flags & _INLINE) != 0 and works[i].length > MAX_INLINE_BYTES:
            return TOO_LONG
        if not _is_sound(works[i]):
            return UNSOUND
    if qp.state in (_SQE, _ERR):
        _flush_posted_sends(nic, qp, works)
        return POSTED
    for i in range(len(works)):
        work = works[i]
        slot = qp.sq_tail % qp.sq_size
        _copy_wqe(wqe_at(qp.sq, slot), work)
        if (work.send_flags & _INLINE) != 0:
            target = qp.inline_data + slot * MAX_INLINE_BYTES
            for j in range(work.num_sge):
                copy(target, work.sge_addr[j], work.sge_length[j])
                target += work.sge_length[j]
        qp.sq_tail += 1
    return POSTED


@kernel
def post_receives(nic: Any, index: int, entries: Any) -> int:
    """Append RQE records to a queue pair, all or none; in ERR they are flushed at once."""
    qp = qp_at(nic.qps, index)
    if qp.state == _RESET:
        return WRONG_STATE
    if len(entries) > qp.rq_size - (qp.rq_tail - qp.rq_head):
        return QUEUE_FULL
    for i in range(len(entries)):
        if not _is_sound(entries[i]):
            return UNSOUND
    if qp.state == _ERR:
        _flush_posted_receives(nic, qp, entries)
        return POSTED
    for i in range(len(entries)):
        copy_rqe(rqe_at(qp.rq, qp.rq_tail % qp.rq_size), entries[i])
        qp.rq_tail += 1
    return POSTED


@kernel
def post_srq_receives(nic: Any, index: int, entries: Any) -> int:
    """Append RQE records to a shared receive queue, all or none."""
    srq = srq_at(nic.srqs, index)
    if len(entries) > srq.depth - (srq.tail - srq.head):
        return QUEUE_FULL
    for i in range(len(entries)):
        if not _is_sound(entries[i]):
            return UNSOUND
    for i in range(len(entries)):
        copy_rqe(rqe_at(srq.ring, srq.tail % srq.depth), entries[i])
        srq.tail += 1
    return POSTED


@kernel
def _copy_wc(target: Any, source: Any) -> None:
    target.wr_id = source.wr_id
    target.status = source.status
    target.opcode = source.opcode
    target.byte_len = source.byte_len
    target.qp_num = source.qp_num
    target.src_qp = source.src_qp
    target.imm = source.imm
    target.wc_flags = source.wc_flags


@kernel
def poll_cq(nic: Any, index: int, out: Any) -> int:
    """Move completions into ``out``, oldest first; return how many, or ``OVERRUN``."""
    cq = cq_at(nic.cqs, index)
    if cq.overflowed != 0:
        return OVERRUN
    count = 0
    while count < len(out) and cq.head < cq.tail:
        _copy_wc(out[count], cqe_at(cq.ring, cq.head % cq.depth))
        cq.head += 1
        count += 1
    return count


@kernel
def arm_cq(nic: Any, index: int, mode: int) -> None:
    """Ask to be told of the next completion (``ARM_NEXT``, ``ARM_SOLICITED``).

    Completions that are there already do not count, and who asks for solicited ones does
    not take back an earlier wish for any (IBTA 1.7 section 11.4.2.2).
    """
    cq = cq_at(nic.cqs, index)
    if cq.armed != ARM_NEXT:
        cq.armed = mode


@kernel
def take_ready_cq(nic: Any, cq_capacity: int) -> int:
    """Index of a completion queue that has become ready, once; -1 without one."""
    if nic.cq_events == 0:
        return -1
    for index in range(cq_capacity):
        cq = cq_at(nic.cqs, index)
        if cq.ready != 0:
            cq.ready = 0
            nic.cq_events -= 1
            return index
    nic.cq_events = 0
    return -1


@kernel
def purge_cq(nic: Any, index: int, qpn: int) -> None:
    """Forget the completions of a destroyed or reset queue pair (IBTA 1.7 11.2.4.1)."""
    cq = cq_at(nic.cqs, index)
    kept = cq.head
    for position in range(cq.head, cq.tail):
        source = cqe_at(cq.ring, position % cq.depth)
        if source.qp_num == qpn:
            continue
        came_from = cq.ring + position % cq.depth * _CQE_BYTES
        copy(cq.ring + kept % cq.depth * _CQE_BYTES, came_from, _CQE_BYTES)
        kept += 1
    cq.tail = kept
