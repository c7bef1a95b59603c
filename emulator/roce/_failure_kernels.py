"""What a completion queue in error does to the queue pairs that use it."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import enter_error, stop_answering
from emulator.roce._event_kernels import push_event
from emulator.roce.state import cq_at, qp_at
from kvlane.jit import kernel
from kvlane.verbs.enums import EventType, QpState

_RESET = int(QpState.RESET)
_ERR = int(QpState.ERR)
_QP_FATAL = int(EventType.QP_FATAL)


@kernel
def end_users_of_failed_cqs(nic: Any) -> None:
    """After a completion has been lost: end all queue pairs that could lose more.

    Each is told of as a local work queue catastrophic error, for its flushed requests have
    nowhere to be reported (IBTA 1.7 section 11.6.3.2). What it flushes into the other of its
    two queues may overrun that one in turn.
    """
    while nic.cq_errors != 0:
        nic.cq_errors = 0
        for index in range(nic.qp_high):
            qp = qp_at(nic.qps, index)
            if qp.in_use == 0 or qp.state in (_RESET, _ERR):
                continue
            failed = cq_at(nic.cqs, qp.send_cq).overflowed + cq_at(nic.cqs, qp.recv_cq).overflowed
            if failed != 0:
                push_event(nic, _QP_FATAL, qp.qpn)
                stop_answering(qp)
                enter_error(nic, qp)
