"""What a connection manager tells its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from emulator.wire.cm import Rep, Req, SidrRep, SidrReq


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A REQ has arrived for a service that is listened for: accept or reject."""

    comm_id: int
    listener: int
    gid: bytes
    """The peer's."""
    req: Req
    options: int
    """Options of enhanced connection establishment; ``req.vendor_id`` says whose."""


@dataclass(frozen=True, slots=True)
class ConnectResponse:
    """A REP has arrived: move the queue pair to RTS, then establish, or reject."""

    comm_id: int
    rep: Rep
    options: int


@dataclass(frozen=True, slots=True)
class Established:
    """The RTU has arrived."""

    comm_id: int
    private_data: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """The peer refuses."""

    comm_id: int
    reason: int
    private_data: bytes


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The peer has not answered any repetition."""

    comm_id: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection has ended, whoever wanted it."""

    comm_id: int


@dataclass(frozen=True, slots=True)
class TimewaitExit:
    """The queue pair may be used again: no packet of the connection can still arrive."""

    comm_id: int


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A SIDR_REQ has arrived for a datagram service: answer with a queue pair, or refuse."""

    comm_id: int
    listener: int
    gid: bytes
    req: SidrReq


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """The SIDR_REP has arrived; its status tells whether it names a queue pair."""

    comm_id: int
    rep: SidrRep


CmEvent: TypeAlias = (
    ConnectRequest
    | ConnectResponse
    | Established
    | Rejected
    | Unreachable
    | Disconnected
    | TimewaitExit
    | ServiceRequest
    | ServiceResponse
)
