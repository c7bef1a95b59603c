"""States of a communication, and what every input does in each (IBTA 1.7 section 12.9).

The table is the machine: a state and an input give what to send, what to tell the consumer,
and the next state. What a row does not list is ignored when it is a message, and refused when
it is a call of the consumer.

Two things differ from the drawings of the specification. A DREQ is answered at once instead
of waiting for the consumer, so that a consumer that never looks does not hold its peer. And
whoever has sent a REJ stays for a while to repeat it, since nothing acknowledges a REJ: if it
is lost, the same request comes again and looks new, or, when it was the RTU that did not
arrive, the peer goes on believing in the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple


class CmState(Enum):
    """Where a communication stands."""

    REQ_SENT = auto()
    REQ_ACKNOWLEDGED = auto()
    """Active: the peer has asked for more time by a MRA."""
    REP_RECEIVED = auto()
    """Active: the consumer is to move its queue pair and establish."""
    MRA_REP_SENT = auto()
    REQ_RECEIVED = auto()
    """Passive: the consumer is to accept or reject."""
    MRA_REQ_SENT = auto()
    REP_SENT = auto()
    REP_ACKNOWLEDGED = auto()
    RTU_TIMEOUT = auto()
    """Passive: no RTU came; the REJ that says so is repeated, as the peer may be through."""
    ESTABLISHED = auto()
    DREQ_SENT = auto()
    TIMEWAIT = auto()
    """Over; late messages are still answered."""
    REJ_SENT = auto()
    """Refused; the REJ is repeated to whoever has missed it."""
    SIDR_REQ_SENT = auto()
    SIDR_REQ_RECEIVED = auto()
    SIDR_REP_SENT = auto()
    CLOSED = auto()
    """Forgotten: no communication stays in this state."""


class CmInput(Enum):
    """What can happen to a communication."""

    REQ = auto()
    REP = auto()
    MRA = auto()
    REJ = auto()
    RTU = auto()
    DREQ = auto()
    DREP = auto()
    SIDR_REQ = auto()
    SIDR_REP = auto()
    ACCEPT = auto()
    ESTABLISH = auto()
    REJECT = auto()
    DISCONNECT = auto()
    ABANDON = auto()
    """The consumer closes its handle, wherever the communication stands."""
    TIMEOUT = auto()
    """The timer has run out, and there are retries left."""
    EXPIRED = auto()
    """The timer has run out for the last time."""


CALLS = frozenset(
    {
        CmInput.ACCEPT,
        CmInput.ESTABLISH,
        CmInput.REJECT,
        CmInput.DISCONNECT,
        CmInput.ABANDON,
    }
)
TIMERS = frozenset({CmInput.TIMEOUT, CmInput.EXPIRED})
MESSAGES = frozenset(CmInput) - CALLS - TIMERS


class Send(Enum):
    """What a rule sends."""

    NOTHING = auto()
    GIVEN = auto()
    """The message that came with the call; kept, for repetitions."""
    AGAIN = auto()
    """The last one that was kept."""
    MRA = auto()
    DREQ = auto()
    """Kept, too."""
    DREP = auto()
    REJ_TIMEOUT = auto()
    REJ_STALE = auto()
    REJ_CONSUMER = auto()
    """All REJs are kept, but that for a stale connection."""
    SIDR_REJECTED = auto()


class Tell(Enum):
    """What a rule tells the consumer."""

    NOTHING = auto()
    RESPONSE = auto()
    ESTABLISHED = auto()
    REJECTED = auto()
    UNREACHABLE = auto()
    DISCONNECTED = auto()
    TIMEWAIT_EXIT = auto()
    SERVICE_RESPONSE = auto()


class Rule(NamedTuple):
    """What an input does."""

    to: CmState
    send: Send = Send.NOTHING
    tell: Tell = Tell.NOTHING


class Timer(Enum):
    """What the timer of a state is for."""

    NONE = auto()
    RETRY = auto()
    """Sends again, and gives up after the last retry."""
    LINGER = auto()
    """Ends the state; everything sent in it starts it anew."""


TIMER_OF: Mapping[CmState, Timer] = {
    CmState.REQ_SENT: Timer.RETRY,
    CmState.REQ_ACKNOWLEDGED: Timer.RETRY,
    CmState.REP_RECEIVED: Timer.NONE,
    CmState.MRA_REP_SENT: Timer.NONE,
    CmState.REQ_RECEIVED: Timer.NONE,
    CmState.MRA_REQ_SENT: Timer.NONE,
    CmState.REP_SENT: Timer.RETRY,
    CmState.REP_ACKNOWLEDGED: Timer.RETRY,
    CmState.RTU_TIMEOUT: Timer.RETRY,
    CmState.ESTABLISHED: Timer.NONE,
    CmState.DREQ_SENT: Timer.RETRY,
    CmState.TIMEWAIT: Timer.LINGER,
    CmState.REJ_SENT: Timer.LINGER,
    CmState.SIDR_REQ_SENT: Timer.RETRY,
    CmState.SIDR_REQ_RECEIVED: Timer.NONE,
    CmState.SIDR_REP_SENT: Timer.LINGER,
    CmState.CLOSED: Timer.NONE,
}

_S, _I = CmState, CmInput

_REQUESTING: dict[CmInput, Rule] = {
    _I.REP: Rule(_S.REP_RECEIVED, tell=Tell.RESPONSE),
    _I.MRA: Rule(_S.REQ_ACKNOWLEDGED),
    _I.REJ: Rule(_S.CLOSED, tell=Tell.REJECTED),
    _I.TIMEOUT: Rule(_S.REQ_SENT, Send.AGAIN),
    # The peer may have a REP under way that will never reach us: it must not wait for a RTU.
    _I.EXPIRED: Rule(_S.CLOSED, Send.REJ_TIMEOUT, Tell.UNREACHABLE),
    _I.ABANDON: Rule(_S.CLOSED, Send.REJ_TIMEOUT),
}
_RESPONDED: dict[CmInput, Rule] = {
    _I.REP: Rule(_S.MRA_REP_SENT, Send.MRA),
    _I.REJ: Rule(_S.CLOSED, tell=Tell.REJECTED),
    _I.ESTABLISH: Rule(_S.ESTABLISHED, Send.GIVEN),
    _I.REJECT: Rule(_S.REJ_SENT, Send.GIVEN),
    _I.ABANDON: Rule(_S.REJ_SENT, Send.REJ_CONSUMER),
}
_REQUESTED: dict[CmInput, Rule] = {
    _I.REQ: Rule(_S.MRA_REQ_SENT, Send.MRA),
    _I.REJ: Rule(_S.CLOSED, tell=Tell.REJECTED),
    _I.ACCEPT: Rule(_S.REP_SENT, Send.GIVEN),
    _I.REJECT: Rule(_S.REJ_SENT, Send.GIVEN),
    _I.ABANDON: Rule(_S.REJ_SENT, Send.REJ_CONSUMER),
}
_RESPONDING: dict[CmInput, Rule] = {
    _I.REQ: Rule(_S.REP_SENT, Send.AGAIN),
    _I.RTU: Rule(_S.ESTABLISHED, tell=Tell.ESTABLISHED),
    _I.MRA: Rule(_S.REP_ACKNOWLEDGED),
    _I.REJ: Rule(_S.TIMEWAIT, tell=Tell.REJECTED),
    # The RTU is lost and the peer is through already.
    _I.DREQ: Rule(_S.TIMEWAIT, Send.DREP, Tell.DISCONNECTED),
    _I.REJECT: Rule(_S.REJ_SENT, Send.GIVEN),
    _I.DISCONNECT: Rule(_S.DREQ_SENT, Send.DREQ),
    _I.ABANDON: Rule(_S.REJ_SENT, Send.REJ_CONSUMER),
    _I.TIMEOUT: Rule(_S.REP_SENT, Send.AGAIN),
    _I.EXPIRED: Rule(_S.RTU_TIMEOUT, Send.REJ_TIMEOUT, Tell.UNREACHABLE),
}

RULES: Mapping[CmState, Mapping[CmInput, Rule]] = {
    _S.REQ_SENT: _REQUESTING,
    _S.REQ_ACKNOWLEDGED: _REQUESTING,
    _S.REP_RECEIVED: _RESPONDED,
    _S.MRA_REP_SENT: _RESPONDED,
    _S.REQ_RECEIVED: _REQUESTED,
    _S.MRA_REQ_SENT: _REQUESTED,
    _S.REP_SENT: _RESPONDING,
    _S.REP_ACKNOWLEDGED: _RESPONDING,
    _S.RTU_TIMEOUT: {
        _I.RTU: Rule(_S.RTU_TIMEOUT, Send.AGAIN),
        _I.DREQ: Rule(_S.REJ_SENT, Send.DREP),
        _I.DISCONNECT: Rule(_S.RTU_TIMEOUT),
        _I.ABANDON: Rule(_S.RTU_TIMEOUT),
        _I.TIMEOUT: Rule(_S.RTU_TIMEOUT, Send.AGAIN),
        _I.EXPIRED: Rule(_S.CLOSED),
    },
    _S.ESTABLISHED: {
        # The active side keeps its RTU; a REP that comes again has missed it.
        _I.REP: Rule(_S.ESTABLISHED, Send.AGAIN),
        _I.REJ: Rule(_S.TIMEWAIT, tell=Tell.REJECTED),
        _I.DREQ: Rule(_S.TIMEWAIT, Send.DREP, Tell.DISCONNECTED),
        _I.DISCONNECT: Rule(_S.DREQ_SENT, Send.DREQ),
        _I.ABANDON: Rule(_S.DREQ_SENT, Send.DREQ),
    },
    _S.DREQ_SENT: {
        _I.DREP: Rule(_S.TIMEWAIT, tell=Tell.DISCONNECTED),
        _I.DREQ: Rule(_S.TIMEWAIT, Send.DREP, Tell.DISCONNECTED),
        _I.REJ: Rule(_S.TIMEWAIT, tell=Tell.DISCONNECTED),
        _I.DISCONNECT: Rule(_S.DREQ_SENT),
        _I.ABANDON: Rule(_S.DREQ_SENT),
        _I.TIMEOUT: Rule(_S.DREQ_SENT, Send.AGAIN),
        _I.EXPIRED: Rule(_S.TIMEWAIT, tell=Tell.DISCONNECTED),
    },
    _S.TIMEWAIT: {
        _I.REQ: Rule(_S.TIMEWAIT, Send.REJ_STALE),
        _I.DREQ: Rule(_S.TIMEWAIT, Send.DREP),
        _I.DISCONNECT: Rule(_S.TIMEWAIT),
        _I.ABANDON: Rule(_S.TIMEWAIT),
        _I.EXPIRED: Rule(_S.CLOSED, tell=Tell.TIMEWAIT_EXIT),
    },
    _S.REJ_SENT: {
        _I.REQ: Rule(_S.REJ_SENT, Send.AGAIN),
        _I.REP: Rule(_S.REJ_SENT, Send.AGAIN),
        _I.RTU: Rule(_S.REJ_SENT, Send.AGAIN),
        _I.DREQ: Rule(_S.REJ_SENT, Send.DREP),
        _I.DISCONNECT: Rule(_S.REJ_SENT),
        _I.ABANDON: Rule(_S.REJ_SENT),
        _I.EXPIRED: Rule(_S.CLOSED),
    },
    _S.SIDR_REQ_SENT: {
        _I.SIDR_REP: Rule(_S.CLOSED, tell=Tell.SERVICE_RESPONSE),
        _I.ABANDON: Rule(_S.CLOSED),
        _I.TIMEOUT: Rule(_S.SIDR_REQ_SENT, Send.AGAIN),
        _I.EXPIRED: Rule(_S.CLOSED, tell=Tell.UNREACHABLE),
    },
    _S.SIDR_REQ_RECEIVED: {
        _I.ACCEPT: Rule(_S.SIDR_REP_SENT, Send.GIVEN),
        _I.REJECT: Rule(_S.SIDR_REP_SENT, Send.GIVEN),
        _I.ABANDON: Rule(_S.SIDR_REP_SENT, Send.SIDR_REJECTED),
    },
    _S.SIDR_REP_SENT: {
        _I.SIDR_REQ: Rule(_S.SIDR_REP_SENT, Send.AGAIN),
        _I.DISCONNECT: Rule(_S.SIDR_REP_SENT),
        _I.ABANDON: Rule(_S.SIDR_REP_SENT),
        _I.EXPIRED: Rule(_S.CLOSED),
    },
    _S.CLOSED: {},
}
"""State -> input -> rule; the timers of a state are there exactly when ``TIMER_OF`` has one."""
