"""The kinds of events. All are values; times are those of the clock that the tracer reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from kvlane.verbs.enums import QpState


class Direction(str, Enum):
    """Seen from the NIC."""

    SENT = "sent"
    RECEIVED = "received"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at one NIC."""

    at_ns: int

    def as_record(self) -> dict[str, Any]:
        """Names and plain values, with the kind of event under ``event``, for JSON."""
        plain = {
            name: value.name if isinstance(value, QpState) else value
            for name, value in asdict(self).items()
        }
        return {"event": type(self).__name__, **plain}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet(Event):
    """A packet on the link. Where ``fault`` says that it cannot be read, the rest is a guess."""

    direction: Direction
    opcode: str
    """Name of the ``Opcode``, or its number in hexadecimal."""
    dst_qpn: int
    src_qpn: int | None
    """Only datagrams name their sender."""
    psn: int
    length: int
    """Bytes of payload, without pad."""
    flags: tuple[str, ...] = ()
    """Of ``solicited``, ``ack_request``, ``fecn``, ``becn``."""
    syndrome: int | None = None
    """The AETH's, for responses that have one."""
    answer: str = ""
    """The syndrome in words: ``ACK``, ``RNR_NAK``, ``NAK PSN_SEQUENCE_ERROR`` ..."""
    msn: int | None = None
    fault: str = ""
    """Empty for a packet that can be read and whose ICRC is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QpEvent(Event):
    """Something about one queue pair of this NIC."""

    qpn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange(QpEvent):
    """The queue pair is in another state."""

    before: QpState
    after: QpState
    cause: str
    """``modify``, or what arrived, or what ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retransmission(QpEvent):
    """A request packet leaves that had left before."""

    psn: int
    opcode: str
    cause: str
    """What made the requester go back: the code of a NAK, ``RNR``, ``TIMEOUT`` ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NakSent(QpEvent):
    """The responder refuses a request, or misses one."""

    psn: int
    code: str
    """Name of the ``NakCode``."""
    reason: str
    """What was wrong, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NakReceived(QpEvent):
    """The peer refuses or misses a request, and the requester has acted on that."""

    psn: int
    code: str
    """Name of the ``NakCode``, or ``IMPLIED`` when a response shows that an earlier is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RnrNakSent(QpEvent):
    """No receive is posted here: the peer shall come again."""

    psn: int
    wait_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RnrNakReceived(QpEvent):
    """The peer has no receive posted."""

    psn: int
    wait_ns: int
    retries_left: int
    """Those of ``rnr_retry``; they stay at 7, "for ever"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AckTimeout(QpEvent):
    """No acknowledgement came in time."""

    psn: int
    """The oldest that is not acknowledged."""
    retries_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateRequest(QpEvent):
    """A request that had been executed before."""

    psn: int
    opcode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Event):
    """A received packet had no effect on any queue pair but its counter, or, on UC, cost the
    message that it belongs to or follows."""

    counter: str
    """The counter that tells why."""
    qpn: int | None
    """The destination that it names, when it is long enough to name one."""
    psn: int | None
