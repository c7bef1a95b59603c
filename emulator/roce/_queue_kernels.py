"""The verbs' side of the rings: posting work requests and polling completions in batches."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import cq_at, cqe_at, qp_at, rqe_at, wqe_at
from kvlane.jit import kernel
from kvlane.verbs.enums import QpState

_RESET = int(QpState.RESET)
_RTS = int(QpState.RTS)
_ERR = int(QpState.ERR)


POSTED = 0
WRONG_STATE = 1
QUEUE_FULL = 2
OVERRUN = -1


@kernel
def post_send(nic: Any, index: int, requests: Any) -> int:
    """Append SEND_WR records, all or none; ``POSTED``, ``WRONG_STATE`` or ``QUEUE_FULL``."""
    qp = qp_at(nic.qps, index)
    if qp.state != _RTS:
        return WRONG_STATE
    if len(requests) > qp.sq_size - (qp.sq_tail - qp.sq_head):
        return QUEUE_FULL
    for i in range(len(requests)):
        request = requests[i]
        wqe = wqe_at(qp.sq, qp.sq_tail % qp.sq_size)
        wqe.wr_id = request.wr_id
        wqe.opcode = request.opcode
        wqe.send_flags = request.send_flags
        wqe.imm = request.imm
        wqe.length = request.length
        wqe.remote_addr = request.remote_addr
        wqe.rkey = request.rkey
        wqe.assigned = 0
        wqe.sent = 0
        wqe.received = 0
        wqe.num_sge = 1
        wqe.sge_addr[0] = request.local_addr
        wqe.sge_length[0] = request.length
        wqe.sge_lkey[0] = request.lkey
        qp.sq_tail += 1
    return POSTED


@kernel
def post_recv(nic: Any, index: int, requests: Any) -> int:
    """Append RECV_WR records, all or none; the results of ``post_send``."""
    qp = qp_at(nic.qps, index)
    if qp.state in (_RESET, _ERR):
        return WRONG_STATE
    if len(requests) > qp.rq_size - (qp.rq_tail - qp.rq_head):
        return QUEUE_FULL
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
def poll_cq(nic: Any, index: int, out: Any) -> int:
    """Move completions into ``out``, oldest first; return how many, or ``OVERRUN``."""
    cq = cq_at(nic.cqs, index)
    if cq.overflowed != 0:
        return OVERRUN
    count = 0
    while count < len(out) and cq.head < cq.tail:
        cqe = cqe_at(cq.ring, cq.head % cq.depth)
        target = out[count]
        target.wr_id = cqe.wr_id
        target.status = cqe.status
        target.opcode = cqe.opcode
        target.byte_len = cqe.byte_len
        target.qp_num = cqe.qp_num
        target.src_qp = cqe.src_qp
        target.imm = cqe.imm
        target.wc_flags = cqe.wc_flags
        cq.head += 1
        count += 1
    return count
