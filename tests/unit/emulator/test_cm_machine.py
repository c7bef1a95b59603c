"""Connection management row by row: IBTA 1.7 section 12.9.

And nothing stays in memory (SoftRoCE/librxe-dev#14, "stops answering after 1000 connects").
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from emulator.cm.communication import NEVER
from emulator.cm.events import (
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
from emulator.cm.manager import CmOptions
from emulator.cm.states import CmState
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
    SidrStatus,
    emit_cm,
    parse_cm,
    timeout_ns,
)
from kvlane.errors import CapacityError, VerbsError
from tests.support.cm_pair import (
    ACTIVE,
    PASSIVE,
    QPN,
    SERVICE,
    CmPair,
    Connection,
    asked,
    established,
    nothing,
    reply,
    request,
)

INTERVAL_NS = timeout_ns(CmOptions().response_timeout_code)


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
    assert (mra.answered, mra.service_timeout) == (AnsweredMessage.REQ, 20)
    made.deliver(ACTIVE, mra)
    assert made.states == (CmState.REQ_ACKNOWLEDGED, CmState.MRA_REQ_SENT)
    wait = made.pair.a.manager.next_deadline() - made.pair.now
    assert wait == timeout_ns(20) + INTERVAL_NS
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
