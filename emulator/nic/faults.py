"""What a verb by address could not do, by number: kernels raise nothing."""

from __future__ import annotations

from enum import IntEnum

from kvlane.errors import VerbsError


class Fault(IntEnum):
    """Numbers of faults; ``FAULT_TEXTS`` says what they mean."""

    NONE = 0
    QP_CLOSED = 1
    CQ_CLOSED = 2
    WRONG_STATE = 3
    OVERRUN = 4
    CALLBACK = 5
    """An exception that was kept."""


FAULT_TEXTS = {
    Fault.QP_CLOSED: "the queue pair is closed",
    Fault.CQ_CLOSED: "the completion queue is closed",
    Fault.WRONG_STATE: "nothing can be posted: the queue pair is not connected",
    Fault.OVERRUN: "completion queue overrun: it is too small for what was posted",
    Fault.CALLBACK: "the link or an observer of the NIC failed",
}


def fault_error(number: int) -> VerbsError:
    """The exception for a fault."""
    return VerbsError(FAULT_TEXTS[Fault(number)])
