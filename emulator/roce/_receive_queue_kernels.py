"""Taking receives, from a queue pair's own queue or from a shared one."""

from __future__ import annotations

from typing import Any

from emulator.roce._event_kernels import push_event
from emulator.roce.state import rqe_at, srq_at
from kvlane.jit import kernel
from kvlane.verbs.enums import EventType

_LIMIT_REACHED = int(EventType.SRQ_LIMIT_REACHED)


@kernel
def copy_rqe(target: Any, source: Any) -> None:
    """Copy the fields that are in use."""
    target.wr_id = source.wr_id
    target.length = source.length
    target.num_sge = source.num_sge
    for i in range(source.num_sge):
        target.sge_addr[i] = source.sge_addr[i]
        target.sge_length[i] = source.sge_length[i]
        target.sge_lkey[i] = source.sge_lkey[i]


@kernel
def receive_domain(nic: Any, qp: Any) -> int:
    """The protection domain whose regions a receive may name.

    A shared queue has one of its own, other than that of a queue pair perhaps; keys of the
    receives posted to it are checked against that (IBTA 1.7 section 10.2.9).
    """
    return int(qp.pd if qp.srq < 0 else srq_at(nic.srqs, qp.srq).pd)


@kernel
def take_receive(nic: Any, qp: Any) -> bool:
    """Move the next receive into the queue pair's inbox; False when none is posted.

    A message takes its receive when it begins: with a shared queue, messages of several
    queue pairs are half received at once, each in a receive of its own.
    """
    if qp.inbox_full != 0:
        return True
    if qp.srq < 0:
        if qp.rq_head == qp.rq_tail:
            return False
        copy_rqe(rqe_at(qp.inbox, 0), rqe_at(qp.rq, qp.rq_head % qp.rq_size))
        qp.rq_head += 1
    else:
        srq = srq_at(nic.srqs, qp.srq)
        if srq.head == srq.tail:
            return False
        copy_rqe(rqe_at(qp.inbox, 0), rqe_at(srq.ring, srq.head % srq.depth))
        srq.head += 1
        if srq.tail - srq.head < srq.limit:
            srq.limit = 0  # told once, until it is set again (IBTA 1.7 section 10.2.9.2)
            push_event(nic, _LIMIT_REACHED, qp.srq)
    qp.inbox_full = 1
    return True
