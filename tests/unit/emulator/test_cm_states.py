"""The table of states: every input in every state does what it says, and raises nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from emulator.cm.manager import CmOptions
from emulator.cm.states import CALLS, MESSAGES, RULES, TIMER_OF, TIMERS, CmInput, CmState, Timer
from emulator.wire.cm import (
    AnsweredMessage,
    CmMessage,
    Drep,
    Dreq,
    Mra,
    Rej,
    Rep,
    Rtu,
    SidrRep,
    SidrReq,
)
from kvlane.errors import VerbsError
from tests.support.cm_pair import (
    ACTIVE,
    PASSIVE,
    QPN,
    SERVICE,
    CmPair,
    Connection,
    asked,
    reply,
    request,
)


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
