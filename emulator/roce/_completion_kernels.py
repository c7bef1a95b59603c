"""Completions: pushing them, ending work requests, flushing a queue pair in error."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import counters_at, cq_at, cqe_at, rqe_at, wqe_at
from kvlane.jit import kernel
from kvlane.verbs.enums import QpState, SendFlags, WcOpcode, WcStatus, WrOpcode

_ERR = int(QpState.ERR)
_SIGNALED = int(SendFlags.SIGNALED)
_SUCCESS = int(WcStatus.SUCCESS)
_FLUSHED = int(WcStatus.WR_FLUSH_ERR)
_RECV = int(WcOpcode.RECV)
_WC_SEND = int(WcOpcode.SEND)
_WC_WRITE = int(WcOpcode.RDMA_WRITE)
_WC_READ = int(WcOpcode.RDMA_READ)
_WRITE = int(WrOpcode.RDMA_WRITE)
_WRITE_IMM = int(WrOpcode.RDMA_WRITE_WITH_IMM)
_READ = int(WrOpcode.RDMA_READ)

WC_WITH_IMM = 2
"""``IBV_WC_WITH_IMM``."""


@kernel
def push_cqe(nic: Any, cq_index: int, qp: Any, wr_id: int, status: int, opcode: int) -> Any:
    """Append a completion and return its record, so that the caller can fill in the rest.

    A full queue loses the completion and is marked: the caller of verbs has sized it
    wrongly (IBTA 1.7 section 11.6.3.1, CQ overrun).
    """
    cq = cq_at(nic.cqs, cq_index)
    slot = cq.tail % cq.depth
    if cq.tail - cq.head >= cq.depth:
        cq.overflowed = 1
        counters_at(nic.counters, 0).cq_overflow += 1
        slot = cq.depth  # a spare entry behind the ring takes what nobody will read
    else:
        cq.tail += 1
    cqe = cqe_at(cq.ring, slot)
    cqe.wr_id = wr_id
    cqe.status = status
    cqe.opcode = opcode
    cqe.qp_num = qp.qpn
    cqe.src_qp = qp.remote_qpn
    cqe.byte_len = 0
    cqe.imm = 0
    cqe.wc_flags = 0
    return cqe


@kernel
def wc_opcode_of(wr_opcode: int) -> int:
    """The completion opcode of a send work request."""
    if wr_opcode == _READ:
        return _WC_READ
    if wr_opcode in (_WRITE, _WRITE_IMM):
        return _WC_WRITE
    return _WC_SEND


@kernel
def complete_send(nic: Any, qp: Any, status: int) -> None:
    """End the oldest send work request; an error is reported even when it is unsignaled."""
    wqe = wqe_at(qp.sq, qp.sq_head % qp.sq_size)
    if status != _SUCCESS or qp.sq_sig_all != 0 or (wqe.send_flags & _SIGNALED) != 0:
        cqe = push_cqe(nic, qp.send_cq, qp, wqe.wr_id, status, wc_opcode_of(wqe.opcode))
        if wqe.opcode == _READ:
            cqe.byte_len = wqe.length
    if status not in (_SUCCESS, _FLUSHED):
        counters_at(nic.counters, 0).req_cqe_error += 1
    qp.sq_head += 1


@kernel
def complete_recv(nic: Any, qp: Any, status: int, opcode: int, byte_len: int) -> Any:
    """End the oldest receive work request and return its completion."""
    rqe = rqe_at(qp.rq, qp.rq_head % qp.rq_size)
    cqe = push_cqe(nic, qp.recv_cq, qp, rqe.wr_id, status, opcode)
    cqe.byte_len = byte_len
    if status not in (_SUCCESS, _FLUSHED):
        counters_at(nic.counters, 0).resp_cqe_error += 1
    qp.rq_head += 1
    return cqe


@kernel
def enter_error(nic: Any, qp: Any) -> None:
    """To ERR: flush both queues in order (IBTA 1.7 section 10.3.1.7).

    READs that came before a refused request are still answered: the NAK acknowledges them.
    """
    qp.state = _ERR
    qp.ack_deadline = 0
    qp.rnr_deadline = 0
    qp.inbound = 0
    while qp.sq_head < qp.sq_tail:
        complete_send(nic, qp, _FLUSHED)
    qp.sq_next = qp.sq_head
    while qp.rq_head < qp.rq_tail:
        complete_recv(nic, qp, _FLUSHED, _RECV, 0)


@kernel
def stop_answering(qp: Any) -> None:
    """Forget the READs that are being answered."""
    qp.job_head = qp.job_tail
    qp.new_jobs = 0


@kernel
def fail_send(nic: Any, qp: Any, status: int) -> None:
    """End the oldest send work request with ``status`` and the queue pair with it."""
    stop_answering(qp)
    if qp.sq_head < qp.sq_tail:
        complete_send(nic, qp, status)
    enter_error(nic, qp)
