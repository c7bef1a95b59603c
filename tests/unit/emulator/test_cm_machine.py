"""The state machine of connection management: IBTA 1.7 section 12.9, row by row, and as a whole.

Held besides: whatever is lost or repeated, both sides end up with a connection or both with
an error; no message in any state raises; nothing stays in memory (SoftRoCE/librxe-dev#14).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.cm.communication import NEVER
from emulator.cm.events import (
    CmEvent,
    ConnectRequest,
    ConnectResponse,
    Disconnected,
    Established,
    Rejected,
    ServiceRequest,
    ServiceResponse,
    TimewaitExit,
    Unreachable,
)
from emulator.cm.manager import CmOptions, OutgoingMad
from emulator.cm.states import (
    CALLS,
    MESSAGES,
    RULES,
    TIMER_OF,
    TIMERS,
    CmInput,
    CmState,
    Timer,
)
from emulator.wire.cm import (
    AnsweredMessage,
    CmMessage,
    Drep,
    Dreq,
    Mra,
    Rej,
    RejectReason,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    SidrStatus,
    emit_cm,
    parse_cm,
    timeout_ns,
)
from kvlane.errors import CapacityError, VerbsError
from tests.support.cm_pair import QPN, SERVICE, CmPair, Side, reply, request

INTERVAL_NS = timeout_ns(CmOptions().response_timeout_code)
ACTIVE, PASSIVE = "a", "b"


def nothing(mads: list[OutgoingMad]) -> list[OutgoingMad]:
    """A channel that loses everything."""
    return []


@dataclass
class Connection:
    """A pair with one communication, brought to some state."""

    pair: CmPair = field(default_factory=CmPair)
    a: int = 0
    b: int = 0

    def request(self) -> Connection:
        self.a = self.pair.connect()
        self.pair.settle()
        self.b = self.pair.requested().comm_id
        return self

    def accept(self) -> Connection:
        self.pair.b.manager.accept(self.b, reply(), self.pair.now)
        self.pair.settle()
        return self

    def establish(self) -> Connection:
        self.pair.a.manager.establish(self.a, self.pair.now)
        self.pair.settle()
        return self

    def side(self, name: str) -> tuple[Side, int]:
        return (self.pair.a, self.a) if name == ACTIVE else (self.pair.b, self.b)

    @property
    def states(self) -> tuple[CmState, CmState]:
        return self.pair.a.manager.state(self.a), self.pair.b.manager.state(self.b)

    def deliver(self, to: str, message: CmMessage) -> list[CmMessage]:
        """Give one side a message of the other; return what it sends in answer."""
        side, _ = self.side(to)
        sender, _ = self.side(PASSIVE if to == ACTIVE else ACTIVE)
        before = len(side.sent)
        side.manager.receive(sender.gid, emit_cm(message, 5), self.pair.now)
        side.outgoing()
        return side.sent[before:]

    def expire(self, name: str) -> list[CmMessage]:
        """Let the timer of one side run out; return what it sends."""
        side, _ = self.side(name)
        before = len(side.sent)
        self.pair.now = max(self.pair.now, side.manager.next_deadline())
        side.manager.advance(self.pair.now)
        side.outgoing()
        return side.sent[before:]


def established() -> Connection:
    return Connection().request().accept().establish()


# How it goes when nothing is lost


def test_three_messages_make_a_connection() -> None:
    made = established()
    assert made.states == (CmState.ESTABLISHED, CmState.ESTABLISHED)
    assert made.pair.a.names() == ["Req", "Rtu"]
    assert made.pair.b.names() == ["Rep"]
    assert [type(event) for event in made.pair.a.told(object)] == [ConnectResponse]
    assert [type(event) for event in made.pair.b.told(object)] == [ConnectRequest, Established]
    assert made.pair.a.manager.next_deadline() == NEVER
    assert made.pair.b.manager.next_deadline() == NEVER


def test_what_the_consumers_give_arrives() -> None:
    pair = CmPair()
    req = replace(request(pair.a.gid, pair.b.gid, private_data=b"who"), vendor_id=0x15B3)
    pair.a.manager.connect(req, pair.now, options=0xF00)
    pair.settle()
    seen = pair.requested()
    assert (seen.gid, seen.listener, seen.options) == (pair.a.gid, pair.listener, 0xF00)
    assert seen.req.private_data.rstrip(b"\0") == b"who"
    assert (seen.req.local_qpn, seen.req.vendor_id) == (QPN["a"], 0x15B3)
    pair.b.manager.accept(seen.comm_id, reply(b"me"), pair.now, options=0xB00)
    pair.settle()
    (response,) = pair.a.told(ConnectResponse)
    assert (response.rep.local_qpn, response.options) == (QPN["b"], 0xB00)
    assert response.rep.private_data.rstrip(b"\0") == b"me"


def test_a_request_says_how_long_it_waits_and_how_often() -> None:
    pair = CmPair(CmOptions(response_timeout_code=18, max_retries=5))
    pair.connect()
    pair.exchange()
    (req,) = pair.a.sent
    assert isinstance(req, Req)
    assert (req.remote_response_timeout, req.local_response_timeout) == (18, 18)
    assert req.max_cm_retries == 5


@pytest.mark.parametrize("first", [ACTIVE, PASSIVE])
def test_either_side_ends_it_and_both_are_told(first: str) -> None:
    made = established()
    side, comm_id = made.side(first)
    side.manager.disconnect(comm_id, made.pair.now)
    made.pair.settle()
    assert made.states == (CmState.TIMEWAIT, CmState.TIMEWAIT)
    for one in (made.pair.a, made.pair.b):
        assert len(one.told(Disconnected)) == 1
    while made.pair.tick():
        made.pair.settle()
    assert made.states == (CmState.CLOSED, CmState.CLOSED)
    for one in (made.pair.a, made.pair.b):
        assert len(one.told(TimewaitExit)) == 1


def test_both_end_it_at_once() -> None:
    made = established()
    made.pair.a.manager.disconnect(made.a, made.pair.now)
    made.pair.b.manager.disconnect(made.b, made.pair.now)
    made.pair.settle()
    assert made.states == (CmState.TIMEWAIT, CmState.TIMEWAIT)
    for one in (made.pair.a, made.pair.b):
        assert len(one.told(Disconnected)) == 1


def test_a_dreq_names_the_queue_pair_of_its_receiver() -> None:
    made = established()
    made.pair.a.manager.disconnect(made.a, made.pair.now)
    made.pair.settle()
    (dreq,) = (message for message in made.pair.a.sent if isinstance(message, Dreq))
    assert dreq.remote_qpn == QPN["b"]


def test_reject() -> None:
    made = Connection().request()
    made.pair.b.manager.reject(made.b, b"no room", made.pair.now)
    made.pair.settle()
    (rejected,) = made.pair.a.told(Rejected)
    assert rejected.reason == RejectReason.CONSUMER_REJECT
    assert rejected.private_data.rstrip(b"\0") == b"no room"
    (rej,) = made.pair.b.sent
    assert isinstance(rej, Rej)
    assert rej.answered == AnsweredMessage.REQ


def test_the_active_side_can_reject_the_response() -> None:
    made = Connection().request().accept()
    made.pair.a.manager.reject(made.a, b"", made.pair.now, RejectReason.NO_QP)
    made.pair.settle()
    (rejected,) = made.pair.b.told(Rejected)
    assert rejected.reason == RejectReason.NO_QP
    assert made.states[1] == CmState.TIMEWAIT


# What is sent again, and what answers it


def test_a_request_is_repeated_until_it_is_answered() -> None:
    pair = CmPair()
    pair.to_b = nothing
    pair.connect()
    pair.settle()
    for _ in range(3):
        pair.tick()
        pair.settle()
    assert pair.a.names() == ["Req"] * 4
    assert len({message.emit() for message in pair.a.sent}) == 1


def test_repetitions_are_one_interval_apart() -> None:
    pair = CmPair()
    pair.to_b = nothing
    pair.connect()
    deadlines = []
    for _ in range(3):
        deadlines.append(pair.a.manager.next_deadline())
        pair.tick()
    assert deadlines == [INTERVAL_NS, 2 * INTERVAL_NS, 3 * INTERVAL_NS]


def test_nobody_there() -> None:
    pair = CmPair(CmOptions(max_retries=3))
    pair.to_b = nothing
    comm_id = pair.connect()
    pair.settle()
    while pair.tick():
        pair.settle()
    assert pair.a.names() == ["Req"] * 4 + ["Rej"]
    assert pair.a.told(Unreachable) == [Unreachable(comm_id)]
    assert len(pair.a.manager) == 0


def test_giving_up_frees_a_passive_side_whose_reply_never_arrives() -> None:
    pair = CmPair(CmOptions(max_retries=2))
    pair.to_a = nothing
    made = Connection(pair).request().accept()
    while made.states[0] != CmState.CLOSED:
        made.expire(ACTIVE)
    rej = made.pair.a.sent[-1]
    assert isinstance(rej, Rej)
    assert (rej.reason, rej.remote_comm_id, rej.info_length) == (RejectReason.TIMEOUT, 0, 8)
    assert rej.info[:8] == (0xA).to_bytes(8, "big")
    made.deliver(PASSIVE, rej)
    assert [event.reason for event in pair.b.told(Rejected)] == [RejectReason.TIMEOUT]


def test_a_lost_rtu_is_asked_for_by_the_reply_again() -> None:
    made = Connection().request().accept()
    made.pair.to_b = nothing
    made.establish()
    assert made.states == (CmState.ESTABLISHED, CmState.REP_SENT)
    made.pair.to_b = list
    assert [type(message) for message in made.expire(PASSIVE)] == [Rep]
    (again,) = made.deliver(ACTIVE, made.pair.b.sent[-1])
    assert isinstance(again, Rtu)
    made.deliver(PASSIVE, again)
    assert made.states == (CmState.ESTABLISHED, CmState.ESTABLISHED)


def test_when_no_rtu_ever_arrives_both_learn_of_it() -> None:
    made = Connection(CmPair(CmOptions(max_retries=2))).request().accept()
    made.pair.to_b = nothing
    made.establish()
    while made.pair.tick():
        made.pair.settle()
    assert made.pair.b.told(Unreachable)
    assert [event.reason for event in made.pair.a.told(Rejected)] == [RejectReason.TIMEOUT]


def test_a_slow_consumer_is_excused_by_mra() -> None:
    made = Connection().request()
    (repeated,) = made.expire(ACTIVE)
    (mra,) = made.deliver(PASSIVE, repeated)
    assert isinstance(mra, Mra)
    assert (mra.answered, mra.service_timeout) == (AnsweredMessage.REQ, 24)
    made.deliver(ACTIVE, mra)
    assert made.states == (CmState.REQ_ACKNOWLEDGED, CmState.MRA_REQ_SENT)
    wait = made.pair.a.manager.next_deadline() - made.pair.now
    assert wait == timeout_ns(24) + INTERVAL_NS
    made.accept().establish()
    assert made.states == (CmState.ESTABLISHED, CmState.ESTABLISHED)
    assert len(made.pair.b.told(ConnectRequest)) == 1


def test_a_mra_does_not_hold_for_ever() -> None:
    made = Connection(CmPair(CmOptions(max_retries=2))).request()
    made.deliver(ACTIVE, Mra(made.b, made.a, AnsweredMessage.REQ, 31))
    assert made.pair.a.manager.next_deadline() - made.pair.now <= timeout_ns(24) + INTERVAL_NS
    made.pair.to_b = nothing
    while made.states[0] != CmState.CLOSED:
        made.expire(ACTIVE)
    assert made.pair.a.told(Unreachable)


def test_a_slow_active_consumer_is_excused_too() -> None:
    made = Connection().request().accept()
    (repeated,) = made.expire(PASSIVE)
    (mra,) = made.deliver(ACTIVE, repeated)
    assert isinstance(mra, Mra)
    assert mra.answered == AnsweredMessage.REP
    made.deliver(PASSIVE, mra)
    assert made.states == (CmState.MRA_REP_SENT, CmState.REP_ACKNOWLEDGED)
    made.establish()
    assert made.states == (CmState.ESTABLISHED, CmState.ESTABLISHED)
    assert len(made.pair.a.told(ConnectResponse)) == 1


def test_a_repeated_request_gets_the_reply_again() -> None:
    made = Connection().request()
    req = made.pair.a.sent[0]
    made.pair.to_a = nothing
    made.accept()
    (rep,) = made.deliver(PASSIVE, req)
    assert rep == made.pair.b.sent[0]


def test_a_repeated_request_gets_the_refusal_again() -> None:
    made = Connection().request()
    made.pair.b.manager.reject(made.b, b"no", made.pair.now)
    made.pair.settle()
    (rej,) = made.deliver(PASSIVE, made.pair.a.sent[0])
    assert rej == made.pair.b.sent[0]
    assert len(made.pair.b.told(ConnectRequest)) == 1


def test_a_repeated_dreq_gets_the_drep_again() -> None:
    made = established()
    made.pair.a.manager.disconnect(made.a, made.pair.now)
    made.pair.settle()
    dreq = made.pair.a.sent[-1]
    assert [type(message) for message in made.deliver(PASSIVE, dreq)] == [Drep]
    assert len(made.pair.b.told(Disconnected)) == 1


def test_a_dreq_that_nobody_answers_ends_it_all_the_same() -> None:
    made = Connection(CmPair(CmOptions(max_retries=2))).request().accept().establish()
    made.pair.to_b = nothing
    made.pair.a.manager.disconnect(made.a, made.pair.now)
    made.pair.settle()
    while made.states[0] == CmState.DREQ_SENT:
        made.expire(ACTIVE)
    assert made.states[0] == CmState.TIMEWAIT
    assert len(made.pair.a.told(Disconnected)) == 1


def test_a_dreq_before_the_rtu_ends_it() -> None:
    made = Connection().request().accept()
    (drep,) = made.deliver(PASSIVE, Dreq(made.a, made.b, QPN["b"]))
    assert isinstance(drep, Drep)
    assert made.states[1] == CmState.TIMEWAIT
    assert made.pair.b.told(Disconnected)


# Requests that are refused at the door


def test_nobody_listens() -> None:
    pair = CmPair()
    req = replace(request(pair.a.gid, pair.b.gid), service_id=SERVICE + 1)
    pair.a.manager.connect(req, pair.now)
    pair.settle()
    assert [e.reason for e in pair.a.told(Rejected)] == [RejectReason.INVALID_SERVICE_ID]
    assert len(pair.b.manager) == 0


def test_other_transports_are_refused() -> None:
    pair = CmPair()
    pair.a.manager.connect(replace(request(pair.a.gid, pair.b.gid), transport=3), pair.now)
    pair.settle()
    assert [e.reason for e in pair.a.told(Rejected)] == [RejectReason.INVALID_TRANSPORT_TYPE]


def test_no_more_requests_wait_than_the_backlog_allows() -> None:
    pair = CmPair()
    pair.b.manager.unlisten(pair.listener, pair.now)
    pair.listener = pair.b.manager.listen(SERVICE, 2)
    for index in range(3):
        pair.connect(0x300 + index)
    pair.settle()
    assert len(pair.b.told(ConnectRequest)) == 2
    assert [e.reason for e in pair.a.told(Rejected)] == [RejectReason.NO_RESOURCES]


def test_a_queue_pair_that_asks_anew_ends_its_stale_connection() -> None:
    made = established()
    pair = made.pair
    pair.a.manager = type(pair.a.manager)(random.Random(99))  # the peer has restarted
    pair.connect()
    pair.settle()
    assert [e.reason for e in pair.a.told(Rejected)] == [RejectReason.STALE_CONNECTION]
    assert len(pair.b.told(Disconnected)) == 1
    pair.connect()
    pair.settle()
    assert len(pair.b.told(ConnectRequest)) == 2


def test_one_listener_for_a_service() -> None:
    pair = CmPair()
    with pytest.raises(VerbsError, match="listens for service"):
        pair.b.manager.listen(SERVICE, 1)
    pair.b.manager.unlisten(pair.listener, pair.now)
    pair.b.manager.listen(SERVICE, 1)


def test_who_stops_listening_refuses_those_who_wait() -> None:
    made = Connection().request()
    made.pair.b.manager.unlisten(made.pair.listener, made.pair.now)
    made.pair.settle()
    assert [e.reason for e in made.pair.a.told(Rejected)] == [RejectReason.CONSUMER_REJECT]


# Messages about what does not exist


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (Dreq(7, 8, 9), Drep(8, 7)),
        (Rep(7, 8, 9, 10), Rej(8, 7, AnsweredMessage.REP, RejectReason.INVALID_COMM_ID)),
        (Rtu(7, 8), Rej(8, 7, AnsweredMessage.OTHER, RejectReason.INVALID_COMM_ID)),
        (Rej(7, 8, 0, 28), None),
        (Drep(7, 8), None),
        (Mra(7, 8, 0, 20), None),
        (SidrRep(7, 8, 0), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_strangers(message: CmMessage, answer: CmMessage | None) -> None:
    assert Connection().deliver(PASSIVE, message) == ([] if answer is None else [answer])


@pytest.mark.parametrize("name", [ACTIVE, PASSIVE])
def test_a_third_party_cannot_end_a_connection(name: str) -> None:
    made = established()
    side, comm_id = made.side(name)
    other = made.a + made.b - comm_id
    stranger = bytes(15) + b"\x99"
    for message in (Dreq(other, comm_id, 0), Rej(other, comm_id, 2, 28)):
        side.manager.receive(stranger, emit_cm(message, 1), made.pair.now)
    # Nor can somebody at the right port with a wrong id.
    made.deliver(name, Dreq(other + 1, comm_id, 0))
    assert made.states == (CmState.ESTABLISHED, CmState.ESTABLISHED)


def test_noise_is_counted() -> None:
    pair = CmPair()
    for noise in (b"", bytes(256), bytes(300), emit_cm(Rtu(1, 2), 3)[:-1]):
        pair.b.manager.receive(pair.a.gid, noise, pair.now)
    assert pair.b.manager.malformed == 4
    assert not pair.b.manager.take_mads()


# Datagram services


def asked() -> tuple[CmPair, int, ServiceRequest]:
    pair = CmPair()
    comm_id = pair.a.manager.resolve_service(pair.b.gid, SERVICE, b"hello", pair.now)
    pair.settle()
    (question,) = pair.b.told(ServiceRequest)
    return pair, comm_id, question


def test_a_datagram_service_names_its_queue_pair() -> None:
    pair, comm_id, question = asked()
    assert question.req.private_data.rstrip(b"\0") == b"hello"
    assert question.gid == pair.a.gid
    pair.b.manager.answer_service(question.comm_id, 0x77, 0x01234567, b"yes", pair.now)
    pair.settle()
    (answer,) = pair.a.told(ServiceResponse)
    assert answer.comm_id == comm_id
    assert (answer.rep.status, answer.rep.qpn, answer.rep.qkey) == (0, 0x77, 0x01234567)
    assert answer.rep.private_data.rstrip(b"\0") == b"yes"
    assert len(pair.a.manager) == 0


@pytest.mark.parametrize("how", ["reject", "abandon"])
def test_a_datagram_service_may_refuse(how: str) -> None:
    pair, _, question = asked()
    if how == "reject":
        pair.b.manager.reject(question.comm_id, b"no", pair.now)
    else:
        pair.b.manager.abandon(question.comm_id, pair.now)
    pair.settle()
    assert [e.rep.status for e in pair.a.told(ServiceResponse)] == [SidrStatus.REJECTED_BY_PROVIDER]


def test_an_unknown_datagram_service() -> None:
    pair = CmPair()
    pair.a.manager.resolve_service(pair.b.gid, SERVICE + 1, b"", pair.now)
    pair.settle()
    (answer,) = pair.a.told(ServiceResponse)
    assert answer.rep.status == SidrStatus.SERVICE_ID_NOT_SUPPORTED


def test_a_repeated_question_gets_the_answer_again() -> None:
    pair, _, question = asked()
    pair.to_a = nothing
    pair.b.manager.answer_service(question.comm_id, 0x77, 1, b"", pair.now)
    pair.settle()
    pair.to_a = list
    pair.tick()
    pair.settle()
    assert pair.b.names() == ["SidrRep", "SidrRep"]
    assert len(pair.b.told(ServiceRequest)) == 1
    assert len(pair.a.told(ServiceResponse)) == 1


def test_a_question_that_nobody_answers() -> None:
    pair = CmPair(CmOptions(max_retries=2))
    pair.to_b = nothing
    comm_id = pair.a.manager.resolve_service(pair.b.gid, SERVICE, b"", pair.now)
    while pair.tick():
        pair.settle()
    assert pair.a.told(Unreachable) == [Unreachable(comm_id)]
    assert pair.a.names() == ["SidrReq"] * 3


# The table as a whole


def test_every_state_has_its_row_and_its_timer() -> None:
    assert set(RULES) == set(CmState) == set(TIMER_OF)
    for state, rules in RULES.items():
        has = {what for what in TIMERS if what in rules}
        wanted = {
            Timer.NONE: set(),
            Timer.RETRY: {CmInput.TIMEOUT, CmInput.EXPIRED},
            Timer.LINGER: {CmInput.EXPIRED},
        }[TIMER_OF[state]]
        assert has == wanted, state


def test_every_state_can_be_left_and_abandoned() -> None:
    for state in set(CmState) - {CmState.CLOSED}:
        assert CmInput.ABANDON in RULES[state], state
        seen, frontier = {state}, [state]
        while frontier:
            for rule in RULES[frontier.pop()].values():
                if rule.to not in seen:
                    seen.add(rule.to)
                    frontier.append(rule.to)
        assert CmState.CLOSED in seen, state


def _in_state(state: CmState) -> tuple[Connection, str]:
    """A connection of which one side is in that state, and which side that is."""
    made = Connection(CmPair(CmOptions(max_retries=2)))
    if state in (CmState.SIDR_REQ_SENT, CmState.SIDR_REQ_RECEIVED, CmState.SIDR_REP_SENT):
        pair, made.a, question = asked()
        made.pair, made.b = pair, question.comm_id
        if state == CmState.SIDR_REP_SENT:
            pair.b.manager.answer_service(made.b, 5, 6, b"", pair.now)
        return made, ACTIVE if state == CmState.SIDR_REQ_SENT else PASSIVE
    made.request()
    steps = {
        CmState.REQ_SENT: ACTIVE,
        CmState.REQ_RECEIVED: PASSIVE,
    }
    if state in steps:
        return made, steps[state]
    if state == CmState.REQ_ACKNOWLEDGED:
        made.deliver(ACTIVE, Mra(made.b, made.a, AnsweredMessage.REQ, 10))
        return made, ACTIVE
    if state == CmState.MRA_REQ_SENT:
        made.deliver(PASSIVE, made.pair.a.sent[0])
        return made, PASSIVE
    if state == CmState.REJ_SENT:
        made.pair.b.manager.reject(made.b, b"", made.pair.now)
        return made, PASSIVE
    made.accept()
    if state in (CmState.REP_RECEIVED, CmState.REP_SENT):
        return made, ACTIVE if state == CmState.REP_RECEIVED else PASSIVE
    if state == CmState.MRA_REP_SENT:
        made.deliver(ACTIVE, made.pair.b.sent[0])
        return made, ACTIVE
    if state == CmState.RTU_TIMEOUT:
        for _ in range(3):
            made.expire(PASSIVE)
        return made, PASSIVE
    if state == CmState.REP_ACKNOWLEDGED:
        made.deliver(PASSIVE, Mra(made.a, made.b, AnsweredMessage.REP, 10))
        return made, PASSIVE
    made.establish()
    if state != CmState.ESTABLISHED:
        made.pair.a.manager.disconnect(made.a, made.pair.now)
    if state == CmState.TIMEWAIT:
        made.deliver(ACTIVE, Drep(made.b, made.a))
    return made, ACTIVE


STATES = [state for state in CmState if state != CmState.CLOSED]


def _message(what: CmInput, made: Connection, to: str) -> CmMessage:
    """A message of the peer about this communication."""
    peer, own = (made.b, made.a) if to == ACTIVE else (made.a, made.b)
    sender, receiver = (made.pair.b, made.pair.a) if to == ACTIVE else (made.pair.a, made.pair.b)
    built: dict[CmInput, CmMessage] = {
        CmInput.REQ: replace(request(sender.gid, receiver.gid), local_comm_id=peer),
        CmInput.REP: Rep(peer, own, QPN["b"], 1),
        CmInput.MRA: Mra(peer, own, AnsweredMessage.OTHER, 10),
        CmInput.REJ: Rej(peer, own, AnsweredMessage.OTHER, 28),
        CmInput.RTU: Rtu(peer, own),
        CmInput.DREQ: Dreq(peer, own, 1),
        CmInput.DREP: Drep(peer, own),
        CmInput.SIDR_REQ: SidrReq(peer, SERVICE),
        CmInput.SIDR_REP: SidrRep(own, SERVICE, 0),
    }
    return built[what]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_the_states_of_this_test_are_reached(state: CmState) -> None:
    made, name = _in_state(state)
    side, comm_id = made.side(name)
    assert side.manager.state(comm_id) == state


@pytest.mark.parametrize("what", sorted(MESSAGES, key=str), ids=str)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_message_in_every_state(state: CmState, what: CmInput) -> None:
    made, name = _in_state(state)
    side, comm_id = made.side(name)
    side.news()
    side.outgoing()
    rule = RULES[state].get(what)
    # A request finds its communication by who sent it: the active side has none for it.
    passive_only = what in (CmInput.REQ, CmInput.SIDR_REQ)
    has_key = name == PASSIVE and (what == CmInput.SIDR_REQ) == state.name.startswith("SIDR")
    sent = made.deliver(name, _message(what, made, name))
    if passive_only and not has_key:
        rule = None
    assert side.manager.state(comm_id) == (state if rule is None else rule.to)
    if rule is None and not passive_only:
        assert sent == []
        assert side.news() == []


@pytest.mark.parametrize("what", sorted(CALLS, key=str), ids=str)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_call_in_every_state(state: CmState, what: CmInput) -> None:
    made, name = _in_state(state)
    side, comm_id = made.side(name)
    manager, now = side.manager, made.pair.now
    calls: dict[CmInput, Callable[[], None]] = {
        CmInput.ACCEPT: lambda: manager.accept(comm_id, reply(), now),
        CmInput.ESTABLISH: lambda: manager.establish(comm_id, now),
        CmInput.REJECT: lambda: manager.reject(comm_id, b"", now),
        CmInput.DISCONNECT: lambda: manager.disconnect(comm_id, now),
        CmInput.ABANDON: lambda: manager.abandon(comm_id, now),
    }
    call = calls[what]
    rule = RULES[state].get(what)
    if rule is None:
        with pytest.raises(VerbsError, match=f"{what.name} is not possible in {state.name}"):
            call()
        assert manager.state(comm_id) == state
    else:
        call()
        assert manager.state(comm_id) == rule.to


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_an_abandoned_communication_is_silent_and_goes_away(state: CmState) -> None:
    made, name = _in_state(state)
    side, comm_id = made.side(name)
    told = len(side.told(object))
    side.manager.abandon(comm_id, made.pair.now)
    made.pair.run(lambda _side, _event: None)
    assert side.manager.state(comm_id) == CmState.CLOSED
    assert len(side.told(object)) == told


# Loss, duplication, disorder


@dataclass
class Chaos:
    """Drops, repeats and reorders MADs from a seed; silent loss of one direction from a time."""

    rng: random.Random
    drop: float
    repeat: float
    reorder: float
    dead: bool = False
    held: list[OutgoingMad] = field(default_factory=list)

    def __call__(self, mads: list[OutgoingMad]) -> list[OutgoingMad]:
        arriving, self.held = self.held, []
        for mad in mads:
            if self.dead or self.rng.random() < self.drop:
                continue
            copies = 2 if self.rng.random() < self.repeat else 1
            for _ in range(copies):
                late = self.rng.random() < self.reorder
                (self.held if late else arriving).append(mad)
        return arriving


@dataclass
class Consumer:
    """Accepts, establishes, and remembers how every connection went."""

    pair: CmPair
    outcome: dict[tuple[str, int], str] = field(default_factory=dict)
    peer_of: dict[int, int] = field(default_factory=dict)

    def react(self, side: Side, event: CmEvent) -> None:
        name = ACTIVE if side is self.pair.a else PASSIVE
        manager, now, key = side.manager, self.pair.now, (name, event.comm_id)
        if isinstance(event, ConnectRequest):
            self.peer_of[event.req.local_comm_id] = event.comm_id
            manager.accept(event.comm_id, reply(), now)
        elif isinstance(event, ConnectResponse):
            manager.establish(event.comm_id, now)
            self.outcome[key] = "established"
        elif isinstance(event, Established):
            self.outcome[key] = "established"
        elif isinstance(event, Rejected | Unreachable | Disconnected):
            self.outcome[key] = "ended"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    drop=st.floats(0, 0.4),
    repeat=st.floats(0, 0.4),
    reorder=st.floats(0, 0.4),
    dies=st.sampled_from(["nobody", "a to b", "b to a"]),
    after=st.integers(0, 6),
)
def test_every_connect_ends_alike_on_both_sides(
    seed: int, drop: float, repeat: float, reorder: float, dies: str, after: int
) -> None:
    rng = random.Random(seed)
    pair = CmPair(CmOptions(max_retries=15))
    forth, back = (Chaos(rng, drop, repeat, reorder) for _ in range(2))
    pair.to_b, pair.to_a = forth, back
    consumer = Consumer(pair)
    connects = [pair.connect(0x400 + index) for index in range(4)]
    for _ in range(after):
        pair.exchange()
        for side in (pair.a, pair.b):
            for event in side.news():
                consumer.react(side, event)
    forth.dead, back.dead = dies == "a to b", dies == "b to a"
    pair.run(consumer.react)
    for comm_id in connects:
        peer = consumer.peer_of.get(comm_id)
        theirs = "ended" if peer is None else consumer.outcome[PASSIVE, peer]
        if back.dead and (consumer.outcome[ACTIVE, comm_id], theirs) == ("established", "ended"):
            # Nothing can be heard from the peer, so that the queue pair's retries run out.
            pair.a.manager.disconnect(comm_id, pair.now)
            pair.run(consumer.react)
        assert consumer.outcome[ACTIVE, comm_id] == theirs
    alive = sum(outcome == "established" for outcome in consumer.outcome.values())
    if dies == "nobody":
        assert alive == 2 * len(connects)
    # What has ended is forgotten, what lives is kept.
    assert len(pair.a.manager) + len(pair.b.manager) == alive


# Memory


def test_bug_21_a_thousand_connects_leave_nothing_behind() -> None:
    pair = CmPair()
    for index in range(1000):
        made = Connection(pair).request().accept().establish()
        assert made.states == (CmState.ESTABLISHED, CmState.ESTABLISHED), index
        pair.a.manager.disconnect(made.a, pair.now)
        pair.settle()
    assert len(pair.b.manager) <= 1000
    while pair.tick():
        pair.settle()
    assert len(pair.a.manager) == len(pair.b.manager) == 0
    assert pair.a.manager.next_deadline() == NEVER


def test_what_is_over_makes_room_for_what_is_new() -> None:
    pair = CmPair(CmOptions(max_communications=4))
    for _ in range(20):
        made = Connection(pair).request().accept().establish()
        pair.a.manager.disconnect(made.a, pair.now)
        pair.settle()
    assert len(pair.a.manager) <= 4
    assert len(pair.b.manager) <= 4


def test_what_is_alive_is_not_driven_out() -> None:
    pair = CmPair(CmOptions(max_communications=4))
    made = []
    for index in range(4):
        one = Connection(pair)
        one.a = pair.connect(0x500 + index)
        pair.settle()
        one.b = pair.requested().comm_id
        made.append(one.accept().establish())
    with pytest.raises(CapacityError, match="4 communications"):
        pair.connect()
    req = replace(request(pair.a.gid, pair.b.gid), local_comm_id=0xABC)
    (rej,) = made[0].deliver(PASSIVE, req)
    assert isinstance(rej, Rej)
    assert rej.reason == RejectReason.NO_RESOURCES
    assert all(one.states == (CmState.ESTABLISHED,) * 2 for one in made)


def test_a_flood_of_requests_fills_no_more_than_the_backlog() -> None:
    pair = CmPair()
    for index in range(1000):
        req = replace(request(pair.a.gid, pair.b.gid, index + 2), local_comm_id=index + 1)
        pair.b.manager.receive(pair.a.gid, emit_cm(req, index), pair.now)
    assert len(pair.b.manager) == 64
    answers = [parse_cm(mad.data)[1] for mad in pair.b.manager.take_mads()]
    assert len(answers) == 1000 - 64
    assert all(isinstance(one, Rej) and one.reason == 3 for one in answers)


def test_two_runs_with_one_seed_are_the_same() -> None:
    def messages() -> list[CmMessage]:
        made = established()
        return made.pair.a.sent + made.pair.b.sent

    assert messages() == messages()
