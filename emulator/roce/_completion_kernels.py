"""Completions: pushing them, ending work requests, flushing a queue pair in error."""

from __future__ import annotations

from typing import Any

from emulator.roce._event_kernels import push_event
from emulator.roce.state import (
    ANSWER_NONE,
    ARM_NEXT,
    ARM_NONE,
    ARM_SOLICITED,
    counters_at,
    cq_at,
    cqe_at,
    rqe_at,
    wqe_at,
)
from kvlane.jit import kernel
from kvlane.verbs.enums import (
    EventType,
    QpState,
    QpType,
    SendFlags,
    WcFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)

_RC = int(QpType.RC)
_ERR = int(QpState.ERR)
_SQE = int(QpState.SQE)
_SIGNALED = int(SendFlags.SIGNALED)
_SUCCESS = int(WcStatus.SUCCESS)
_FLUSHED = int(WcStatus.WR_FLUSH_ERR)
_RECV = int(WcOpcode.RECV)
_CQ_ERR = int(EventType.CQ_ERR)
_LAST_WQE_REACHED = int(EventType.QP_LAST_WQE_REACHED)

WC_WITH_IMM = int(WcFlags.WITH_IMM)
WC_WITH_INV = int(WcFlags.WITH_INV)
WC_GRH = int(WcFlags.GRH)

_READ = int(WrOpcode.RDMA_READ)
_CMP_SWAP = int(WrOpcode.ATOMIC_CMP_AND_SWP)
_FETCH_ADD = int(WrOpcode.ATOMIC_FETCH_AND_ADD)
_WRITE = int(WrOpcode.RDMA_WRITE)
_WRITE_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_LOCAL_INV = int(WrOpcode.LOCAL_INV)
_BIND_MW = int(WrOpcode.BIND_MW)
_ATOMIC_WRITE = int(WrOpcode.ATOMIC_WRITE)
_FLUSH = int(WrOpcode.FLUSH)
_WC_SEND = int(WcOpcode.SEND)
_WC_WRITE = int(WcOpcode.RDMA_WRITE)
_WC_READ = int(WcOpcode.RDMA_READ)
_WC_CMP_SWAP = int(WcOpcode.COMP_SWAP)
_WC_FETCH_ADD = int(WcOpcode.FETCH_ADD)
_WC_LOCAL_INV = int(WcOpcode.LOCAL_INV)
_WC_BIND_MW = int(WcOpcode.BIND_MW)
_WC_ATOMIC_WRITE = int(WcOpcode.ATOMIC_WRITE)
_WC_FLUSH = int(WcOpcode.FLUSH)


@kernel
def push_cqe(nic: Any, cq_index: int, qp: Any, wr_id: int, status: int, opcode: int) -> Any:
    """Append a completion and return its record, so that the caller can fill in the rest.

    A full queue loses the completion and is in error from then on: the caller of verbs has
    sized it wrongly (IBTA 1.7 section 11.6.3.1, CQ overrun). The queue pairs that use it are
    ended soon after, by ``end_users_of_failed_cqs``, and not in the midst of what they do.
    """
    cq = cq_at(nic.cqs, cq_index)
    nic.completions += 1
    slot = cq.tail % cq.depth
    if cq.overflowed != 0 or cq.tail - cq.head >= cq.depth:
        if cq.overflowed == 0:
            push_event(nic, _CQ_ERR, cq_index)
        cq.overflowed = 1
        nic.cq_errors += 1
        counters_at(nic.counters, 0).cq_overflow += 1
        slot = cq.depth  # a spare entry behind the ring takes what nobody will read
    else:
        cq.tail += 1
    if cq.armed == ARM_NEXT or (cq.armed == ARM_SOLICITED and status != _SUCCESS):
        wake_cq(nic, cq)
    cqe = cqe_at(cq.ring, slot)
    cqe.wr_id = wr_id
    cqe.status = status
    cqe.opcode = opcode
    cqe.qp_num = qp.qpn
    cqe.src_qp = qp.remote_qpn
    cqe.byte_len = 0
    cqe.imm = 0
    cqe.wc_flags = 0
    cqe.time = nic.now
    return cqe


@kernel
def wake_cq(nic: Any, cq: Any) -> None:
    """The queue has become ready: its completion channel is told once."""
    cq.armed = ARM_NONE
    if cq.ready == 0:
        cq.ready = 1
        nic.cq_events += 1


@kernel
def wake_solicited(nic: Any, cq_index: int) -> None:
    """A completion that the peer has asked to be told of (IBTA 1.7 section 9.2.3)."""
    cq = cq_at(nic.cqs, cq_index)
    if cq.armed == ARM_SOLICITED:
        wake_cq(nic, cq)


@kernel
def wc_opcode_of(wr_opcode: int) -> int:
    """The completion opcode of a send work request."""
    if wr_opcode == _READ:
        return _WC_READ
    if wr_opcode in (_WRITE, _WRITE_IMM):
        return _WC_WRITE
    if wr_opcode == _CMP_SWAP:
        return _WC_CMP_SWAP
    if wr_opcode == _FETCH_ADD:
        return _WC_FETCH_ADD
    if wr_opcode == _LOCAL_INV:
        return _WC_LOCAL_INV
    if wr_opcode == _BIND_MW:
        return _WC_BIND_MW
    if wr_opcode == _ATOMIC_WRITE:
        return _WC_ATOMIC_WRITE
    if wr_opcode == _FLUSH:
        return _WC_FLUSH
    return _WC_SEND


@kernel
def complete_send(nic: Any, qp: Any, status: int) -> None:
    """End the oldest send work request; an error is reported even when it is unsignaled."""
    wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
    if status != _SUCCESS or qp.sq_sig_all != 0 or (wqe.send_flags & _SIGNALED) != 0:
        cqe = push_cqe(nic, qp.send_cq, qp, wqe.wr_id, status, wc_opcode_of(wqe.opcode))
        if wqe.opcode == _READ:
            cqe.byte_len = wqe.length
        elif wqe.opcode in (_CMP_SWAP, _FETCH_ADD):
            cqe.byte_len = 8
    if status not in (_SUCCESS, _FLUSHED):
        counters_at(nic.counters, 0).req_cqe_error += 1
    qp.sq_head += 1


@kernel
def complete_recv(nic: Any, qp: Any, status: int, opcode: int, byte_len: int) -> Any:
    """End the receive that is in the inbox and return its completion."""
    rqe = rqe_at(qp.inbox, 0)
    qp.inbox_full = 0
    cqe = push_cqe(nic, qp.recv_cq, qp, rqe.wr_id, status, opcode)
    cqe.byte_len = byte_len
    if status not in (_SUCCESS, _FLUSHED):
        counters_at(nic.counters, 0).resp_cqe_error += 1
    return cqe


@kernel
def _flush_sends(nic: Any, qp: Any) -> None:
    while qp.sq_head < qp.sq_tail:
        complete_send(nic, qp, _FLUSHED)
    qp.sq_next = qp.sq_head


@kernel
def _stop_sending(nic: Any, qp: Any) -> None:
    """To SQE: UC and UD still receive, and a modify to RTS lets them send again.

    What comes then goes on with the PSN after the last one sent (IBTA 1.7 section 10.3.1.6).
    """
    qp.state = _SQE
    _flush_sends(nic, qp)
    qp.next_psn = qp.tx_psn
    qp.una_psn = qp.tx_psn
    qp.high_psn = qp.tx_psn


@kernel
def enter_error(nic: Any, qp: Any) -> None:
    """To ERR: flush both queues in order (IBTA 1.7 section 10.3.1.7).

    READs that came before a refused request are still answered: the NAK acknowledges them.
    Receives of an SRQ stay there; the event says that none is in use by this QP any more.
    """
    if qp.srq >= 0 and qp.state != _ERR:
        push_event(nic, _LAST_WQE_REACHED, qp.qpn)
    qp.state = _ERR
    qp.ack_deadline = 0
    qp.rnr_deadline = 0
    qp.inbound = 0
    _flush_sends(nic, qp)
    if qp.inbox_full != 0:
        complete_recv(nic, qp, _FLUSHED, _RECV, 0)
    while qp.rq_head < qp.rq_tail:
        rqe = rqe_at(qp.rq, qp.rq_head % qp.rq_size)
        push_cqe(nic, qp.recv_cq, qp, rqe.wr_id, _FLUSHED, _RECV)
        qp.rq_head += 1


@kernel
def stop_answering(qp: Any) -> None:
    """Forget what is owed to the peer: READs, atomics, an acknowledgement."""
    qp.job_head = qp.job_tail
    qp.new_jobs = 0
    qp.answer = ANSWER_NONE


@kernel
def fail_send(nic: Any, qp: Any, status: int) -> None:
    """End the oldest send work request with ``status``, and the sending of its queue pair."""
    stop_answering(qp)
    if qp.sq_head < qp.sq_tail:
        complete_send(nic, qp, status)
    if qp.kind == _RC:
        enter_error(nic, qp)
    else:
        _stop_sending(nic, qp)
