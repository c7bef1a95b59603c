"""What the kernels found wrong with a connection, as the error that its callers get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from host_driver.queue_records import Failure
from kvlane.capsule import Response, parse_response
from kvlane.errors import KvlaneError, ProtocolError, TransferError
from kvlane.verbs.enums import WcStatus

if TYPE_CHECKING:
    from host_driver.queue import Peer


@dataclass(frozen=True, slots=True)
class Fault:
    """What the queue's record says of a failure."""

    failure: Failure
    came: int
    wanted: int
    data: NDArray[np.uint8]
    """The response that it is about, if it is about one."""


def error_of(fault: Fault, peer: Peer, cause: BaseException | None = None) -> KvlaneError:
    """The error; ``cause`` is what a function of the NIC failed with."""
    if fault.failure is Failure.COMPLETION:
        name = _status_name(fault.came)
        return TransferError(f"the data path to the agent failed ({name}); connect anew")
    if fault.failure is Failure.POST:
        reason = "its queue is full" if cause is None else cause
        return TransferError(f"the NIC takes no commands ({reason}); connect anew")
    if fault.failure is Failure.NIC:
        reason = "its completions and its queues do not add up" if cause is None else repr(cause)
        return TransferError(f"the driver's engine failed: {reason}")
    return ProtocolError(f"{_described(fault, peer)}; the connection was given up, connect anew")


def _described(fault: Fault, peer: Peer) -> str:
    try:
        response = parse_response(fault.data)
    except ProtocolError as error:
        return str(error)
    return _mismatch(fault, peer, response)


def _mismatch(fault: Fault, peer: Peer, response: Response) -> str:
    match fault.failure:
        case Failure.FOREIGN:
            return (
                f"a response of session {response.session}, boot {response.boot_id.hex()} came "
                f"to session {peer.session_id}, boot {peer.boot_id.hex()}"
            )
        case Failure.NOT_IN_FLIGHT:
            return f"a response came to command {response.command_id}, not in flight"
        case Failure.OTHER_OPCODE:
            return (
                f"command {response.command_id} was 0x{fault.wanted:02x}, "
                f"its response says 0x{response.opcode:02x}"
            )
        case Failure.WRONG_COUNT:
            return f"{len(response.results)} results came, {fault.wanted} were due"
        case Failure.UNKNOWN_KEY_STATUS:
            return f"the agent answered with key status {fault.came}, which is none"
        case Failure.TOO_LONG:
            return f"the agent says that it wrote {fault.came} bytes into a shorter buffer"
        case Failure.OVERMATCHED:
            return f"the agent matched {response.result} keys of {fault.wanted}"
        case _:
            return "a response could not be used"


def _status_name(status: int) -> str:
    try:
        return WcStatus(status).name
    except ValueError:
        return str(status)
