"""One communication of a connection manager, and the messages that it can write itself."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.cm.states import CmState, Send
from emulator.wire.cm import (
    AnsweredMessage,
    CmMessage,
    Drep,
    Dreq,
    Mra,
    Rej,
    RejectReason,
    SidrRep,
    SidrStatus,
)

NEVER = 1 << 62
"""A deadline that does not come, ns."""

_ANSWERED = {
    CmState.REQ_RECEIVED: AnsweredMessage.REQ,
    CmState.MRA_REQ_SENT: AnsweredMessage.REQ,
    CmState.REP_RECEIVED: AnsweredMessage.REP,
    CmState.MRA_REP_SENT: AnsweredMessage.REP,
}

_REASONS = {
    Send.REJ_TIMEOUT: RejectReason.TIMEOUT,
    Send.REJ_STALE: RejectReason.STALE_CONNECTION,
    Send.REJ_CONSUMER: RejectReason.CONSUMER_REJECT,
}

KEPT = frozenset({Send.GIVEN, Send.DREQ, Send.REJ_TIMEOUT, Send.REJ_CONSUMER, Send.SIDR_REJECTED})
"""What is sent again when its turn comes; everything else is an answer of one moment."""


@dataclass(slots=True)
class Communication:
    """All that is known of it; gone from memory with the last timer."""

    comm_id: int
    gid: bytes
    """The peer's."""
    state: CmState
    transaction_id: int
    max_retries: int
    retry_ns: int
    """Between two repetitions of what it has sent."""
    linger_ns: int
    """How long it stays to answer late messages, longer than the peer's repetitions take."""
    service_timeout_code: int
    """What its MRAs promise."""
    local_ca_guid: int = 0
    remote_comm_id: int = 0
    remote_qpn: int = 0
    service_id: int = 0
    listener: int | None = None
    """Who is asked about it; ``None`` on the active side."""
    request_key: tuple[type[CmMessage], bytes, int] | None = None
    """By which the peer's repeated request finds it; ``None`` on the active side."""
    options: int = 0
    """Ours, for enhanced connection establishment; they go with a REQ or a REP."""
    kept: CmMessage | None = None
    deadline: int = NEVER
    retries_left: int = 0
    abandoned: bool = False
    """The consumer has closed its handle and wants to hear nothing."""

    @property
    def answered(self) -> AnsweredMessage:
        """Which message a MRA or a REJ would now be about."""
        return _ANSWERED.get(self.state, AnsweredMessage.OTHER)

    def written(self, send: Send) -> CmMessage | None:
        """The message of a rule, if the communication can write it itself."""
        ids = (self.comm_id, self.remote_comm_id)
        if send == Send.AGAIN:
            return self.kept
        if send == Send.MRA:
            return Mra(*ids, self.answered, self.service_timeout_code)
        if send == Send.DREQ:
            return Dreq(*ids, self.remote_qpn)
        if send == Send.DREP:
            return Drep(*ids)
        if send == Send.SIDR_REJECTED:
            return self.service_refusal(b"")
        if send in _REASONS:
            return self.rejection(_REASONS[send], b"")
        return None

    def rejection(self, reason: int, private_data: bytes) -> Rej:
        """A REJ for it. One for a timeout tells who it is from, as the peer may know no id."""
        info = b""
        if reason == RejectReason.TIMEOUT:
            info = self.local_ca_guid.to_bytes(8, "big")
        return Rej(
            self.comm_id,
            self.remote_comm_id,
            self.answered,
            reason,
            info_length=len(info),
            info=info,
            private_data=private_data,
        )

    def service_refusal(self, private_data: bytes) -> SidrRep:
        """A SIDR_REP that names no queue pair."""
        return SidrRep(
            self.remote_comm_id,
            self.service_id,
            SidrStatus.REJECTED_BY_PROVIDER,
            private_data=private_data,
        )
