"""What a verb by address could not do, by number: kernels raise nothing."""

from __future__ import annotations

from enum import IntEnum

from kvlane.errors import VerbsError


class Fault(IntEnum):
    """Numbers of faults; ``FAULT_TEXTS`` says what they mean."""

    NONE = 0
    QP_CLOSED = 1
    CQ_CLOSED = 2
    NOT_CONNECTED = 3
    OVERRUN = 4
    CALLBACK = 5
    """An exception that was kept."""
    BAD_OPCODE = 6
    BAD_LENGTH = 7
    INLINE = 8


FAULT_TEXTS = {
    Fault.QP_CLOSED: "the queue pair is closed",
    Fault.CQ_CLOSED: "the completion queue is closed",
    Fault.NOT_CONNECTED: "the queue pair is not connected: connect it before posting",
    Fault.OVERRUN: "completion queue overrun: it is too small for what was posted",
    Fault.CALLBACK: "the link or an observer of the NIC failed",
    Fault.BAD_OPCODE: "the pcie link carries SEND, RDMA_WRITE and RDMA_READ only",
    Fault.BAD_LENGTH: "the length is negative or above max_message_bytes",
    Fault.INLINE: "the pcie link has no inline data: post from registered memory",
}


def fault_error(number: int) -> VerbsError:
    """The exception for a fault."""
    return VerbsError(FAULT_TEXTS[Fault(number)])
