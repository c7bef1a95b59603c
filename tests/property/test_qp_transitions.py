"""Modify and the states of a queue pair: every state, target, kind and attribute.

The table here is written down from IBTA 1.7 section 11.2.5.2 on its own; what the code allows is
compared with it, first as a table and then by doing it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.roce.attributes import OPTIONAL, REQUIRED, AddressHandle, QpAttributes, QpCaps, QpMask
from emulator.roce.engine import EngineLimits, RoceEngine
from emulator.roce.transitions import BY_FAULT, TRANSITIONS
from kvlane.errors import VerbsError
from kvlane.verbs.enums import AccessFlags, QpState, QpType, WrOpcode
from tests.support.roce_pair import Pair, mapped_gid
from tests.support.roce_work import part, post, post_receive, receive, to_port, work

RESET, INIT, RTR, RTS = QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS
SQD, SQE, ERR = QpState.SQD, QpState.SQE, QpState.ERR
RC, UC, UD = QpType.RC, QpType.UC, QpType.UD

# from to: kind needed / allowed besides
STANDARD = """
RESET INIT: RC PKEY_INDEX PORT ACCESS_FLAGS /
RESET INIT: UC PKEY_INDEX PORT ACCESS_FLAGS /
RESET INIT: UD PKEY_INDEX PORT QKEY /
INIT INIT: RC / PKEY_INDEX PORT ACCESS_FLAGS
INIT INIT: UC / PKEY_INDEX PORT ACCESS_FLAGS
INIT INIT: UD / PKEY_INDEX PORT QKEY
INIT RTR: RC AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER / \
ALT_PATH ACCESS_FLAGS PKEY_INDEX
INIT RTR: UC AV PATH_MTU DEST_QPN RQ_PSN / ALT_PATH ACCESS_FLAGS PKEY_INDEX
INIT RTR: UD / PKEY_INDEX QKEY
RTR RTS: RC SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC / \
ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RTR RTS: UC SQ_PSN / ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
RTR RTS: UD SQ_PSN / QKEY
RTS RTS: RC / ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RTS RTS: UC / ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
RTS RTS: UD / QKEY
RTS SQD: RC / EN_SQD_ASYNC_NOTIFY
RTS SQD: UC / EN_SQD_ASYNC_NOTIFY
RTS SQD: UD / EN_SQD_ASYNC_NOTIFY
SQD RTS: RC / ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
SQD RTS: UC / ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
SQD RTS: UD / QKEY
SQD SQD: RC / PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC \
ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
SQD SQD: UC / AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
SQD SQD: UD / PKEY_INDEX QKEY
SQE RTS: RC /
SQE RTS: UC / ACCESS_FLAGS
SQE RTS: UD / QKEY
"""
ALWAYS = QpMask.STATE | QpMask.CUR_STATE


def mask_of(names: str) -> QpMask:
    mask = QpMask(0)
    for name in names.split():
        mask |= QpMask[name]
    return mask


def parsed(text: str) -> dict[tuple[QpState, QpState, QpType], tuple[QpMask, QpMask]]:
    rules = {}
    for line in text.strip().splitlines():
        states, _, rest = line.partition(": ")
        before, after = (QpState[name] for name in states.split())
        kind, _, rest = rest.partition(" ")
        needed, _, besides = rest.partition("/")
        rules[before, after, QpType[kind]] = (mask_of(needed), mask_of(besides))
    for kind, before, after in product(QpType, QpState, (RESET, ERR)):
        rules[before, after, kind] = (QpMask(0), QpMask(0))
    return rules


RULES = parsed(STANDARD)
CASES = list(product(QpState, QpState, QpType))


def case_name(case: tuple[QpState, QpState, QpType]) -> str:
    return "-".join(part.name for part in case)


class Subject:
    """One queue pair that can be put into any state."""

    def __init__(self, kind: QpType) -> None:
        self.engine = RoceEngine(
            gid=mapped_gid(1),
            source_port=0,
            window_bytes=1 << 16,
            rng=random.Random(1),
            limits=EngineLimits(max_qps=4, max_cqs=2, max_srqs=1, max_mrs=2),
        )
        self.kind = kind
        cq = self.engine.cqs.create(16)
        self.qp = self.engine.qps.create(kind, pd=1, send_cq=cq, recv_cq=cq, caps=QpCaps())

    @property
    def state(self) -> QpState:
        return self.engine.qps.state(self.qp)

    def modify(self, wanted: QpState, mask: QpMask) -> None:
        attributes = QpAttributes(
            qp_state=wanted,
            path_mtu=3,
            qkey=5,
            rq_psn=6,
            sq_psn=7,
            dest_qp_num=8,
            qp_access_flags=int(AccessFlags.REMOTE_READ),
            ah=AddressHandle(dgid=mapped_gid(2)),
            en_sqd_async_notify=1,
            max_rd_atomic=9,
            max_dest_rd_atomic=10,
            min_rnr_timer=11,
            timeout=12,
            retry_cnt=3,
            rnr_retry=4,
        )
        self.engine.qps.modify(self.qp, attributes, mask)

    def force(self, state: QpState) -> None:
        """Into a state, on the legal way as far as it goes."""
        for before, after in ((RESET, INIT), (INIT, RTR), (RTR, RTS)):
            if self.state == state:
                return
            self.modify(after, QpMask.STATE | RULES[before, after, self.kind][0])
        if state in (SQD, ERR):
            self.modify(state, QpMask.STATE)
        elif state == SQE:  # no modify leads there
            self.engine.qps.table[self.qp].state = int(SQE)

    def snapshot(self) -> tuple[Any, ...]:
        """All that a modify could have changed."""
        return (self.engine.qps.table[self.qp].tobytes(), self.engine.qps.query(self.qp))


def subject_in(kind: QpType, state: QpState) -> Subject:
    subject = Subject(kind)
    subject.force(state)
    assert subject.state == state
    return subject


def refuses(subject: Subject, wanted: QpState, mask: QpMask, match: str) -> None:
    """The modify is refused, says why, and leaves everything as it was."""
    before = subject.snapshot()
    with pytest.raises(VerbsError, match=match):
        subject.modify(wanted, mask)
    assert subject.snapshot() == before


def test_the_tables_are_those_of_the_standard() -> None:
    tables = {
        (before, after, kind): (
            REQUIRED.get((before, after), {}).get(kind, QpMask(0)),
            OPTIONAL.get((before, after), {}).get(kind, QpMask(0)),
        )
        for before, after, kind in CASES
        if after in TRANSITIONS[before] | {RESET, ERR}
    }
    assert tables == RULES


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_legal_transition_works_with_what_it_needs(
    case: tuple[QpState, QpState, QpType],
) -> None:
    before, after, kind = case
    subject = subject_in(kind, before)
    if case not in RULES:
        refuses(subject, after, QpMask.STATE, f"{before.name} to {after.name}")
        refuses(subject, after, ~QpMask(0), f"{before.name} to {after.name}")
        return
    needed, besides = RULES[case]
    subject.modify(after, QpMask.STATE | needed)
    assert subject.state == after
    again = subject_in(kind, before)
    again.modify(after, ALWAYS | needed | besides)
    assert again.state == after


@pytest.mark.parametrize("case", RULES, ids=case_name)
def test_each_attribute_is_needed_or_allowed_or_refused(
    case: tuple[QpState, QpState, QpType],
) -> None:
    before, after, kind = case
    needed, besides = RULES[case]
    subject = subject_in(kind, before)
    for bit in QpMask:
        if bit & needed:
            refuses(subject, after, (QpMask.STATE | needed) & ~bit, rf"needs {bit.name}$")
        elif not bit & (besides | ALWAYS):
            refuses(subject, after, QpMask.STATE | needed | bit, rf"cannot set {bit.name}$")


@pytest.mark.parametrize("kind", QpType)
@pytest.mark.parametrize("state", QpState)
def test_without_a_state_the_rules_are_those_of_staying(kind: QpType, state: QpState) -> None:
    subject = subject_in(kind, state)
    if (state, state, kind) not in RULES:
        refuses(subject, ERR, QpMask(0), f"{state.name} to {state.name}")
        return
    _, besides = RULES[state, state, kind]
    subject.modify(ERR, besides)
    assert subject.state == state


STEPS = st.lists(
    st.tuples(st.sampled_from(QpState), st.integers(0, (1 << len(QpMask)) - 1), st.booleans()),
    max_size=12,
)


@given(kind=st.sampled_from(QpType), steps=STEPS)
def test_any_sequence_of_modifies_follows_the_rules(
    kind: QpType, steps: list[tuple[QpState, int, bool]]
) -> None:
    """With any mask, or, where it is told so, with one that fits if there is one."""
    subject = Subject(kind)
    for wanted, bits, fitting in steps:
        before = subject.state
        rule = RULES.get((before, wanted, kind))
        mask = QpMask(bits) | QpMask.STATE
        if rule is not None and fitting:
            mask = QpMask.STATE | rule[0] | (QpMask(bits) & rule[1])
        needed, besides = rule or (QpMask(0), QpMask(0))
        legal = rule is not None and not needed & ~mask and not mask & ~(needed | besides | ALWAYS)
        if legal:
            subject.modify(wanted, mask)
            assert subject.state == wanted
        else:
            refuses(subject, wanted, mask, kind.name if rule is not None else "cannot go")


@pytest.mark.parametrize(
    ("bit", "field", "value"),
    [
        (QpMask.PATH_MTU, "path_mtu", 0),
        (QpMask.PATH_MTU, "path_mtu", 6),
        (QpMask.DEST_QPN, "dest_qp_num", 1 << 24),
        (QpMask.MIN_RNR_TIMER, "min_rnr_timer", 32),
        (QpMask.MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", -1),
    ],
)
def test_a_value_out_of_range_is_refused_as_a_whole(bit: QpMask, field: str, value: int) -> None:
    subject = subject_in(RC, INIT)
    before = subject.snapshot()
    needed, _ = RULES[INIT, RTR, RC]
    attributes = QpAttributes(
        qp_state=RTR, path_mtu=3, ah=AddressHandle(dgid=mapped_gid(2)), dest_qp_num=8
    )
    setattr(attributes, field, value)
    assert bit & needed
    with pytest.raises(VerbsError, match=field):
        subject.engine.qps.modify(subject.qp, attributes, QpMask.STATE | needed)
    assert subject.snapshot() == before


# What leads out of a state without a modify.


def bad_request(pair: Pair) -> None:
    """b is asked for memory that it has not."""
    pair.a.send(WrOpcode.RDMA_WRITE, pair.a.region(8), 8, remote=pair.b.region(8), rkey=1)


def unwritable_receive(pair: Pair) -> None:
    """b gets a datagram that its receive cannot take."""
    post_receive(pair.b, receive([part(pair.b.region(64, AccessFlags.REMOTE_READ))]))
    post(pair.a, work(WrOpcode.SEND, [part(pair.a.region(8))], **to_port(pair.b)))


def bad_send(pair: Pair) -> None:
    """b sends from memory that it may not read."""
    region = pair.b.region(8)
    post(pair.b, work(WrOpcode.SEND, [(region.addr, 8, region.key ^ 1)], **to_port(pair.a)))


def overrun(pair: Pair) -> None:
    """Another queue pair of b loses a completion of the queue that both use."""
    b = pair.b
    small = b.engine.cqs.create(1)
    b.engine.qps.table[b.qp].send_cq = small
    other = b.new_qp()
    b.engine.qps.table[other].recv_cq = small
    region = b.region(8)
    for _ in range(2):
        b.engine.qps.post_receives(other, receive([part(region)]))
    b.engine.qps.fail(other)


FAULTS: list[tuple[QpType, QpState, Callable[[Pair], None], QpState]] = [
    (RC, RTR, bad_request, ERR),
    (RC, RTS, bad_request, ERR),
    (RC, SQD, bad_request, ERR),
    (RC, RTS, bad_send, ERR),
    (UC, RTS, bad_send, SQE),
    (UD, RTS, bad_send, SQE),
    (UD, RTR, unwritable_receive, ERR),
    (UD, SQE, unwritable_receive, ERR),
    *((RC, state, overrun, ERR) for state in (INIT, RTR, RTS, SQD)),
    *((UD, state, overrun, ERR) for state in (INIT, RTR, RTS, SQD, SQE)),
]


@pytest.mark.parametrize(("kind", "state", "break_rule", "after"), FAULTS)
def test_faults_lead_where_the_drawing_says(
    kind: QpType, state: QpState, break_rule: Callable[[Pair], None], after: QpState
) -> None:
    pair = Pair(kind=kind)
    pair.b.engine.qps.table[pair.b.qp].state = int(state)
    break_rule(pair)
    pair.run()
    assert pair.b.state == after
    assert after in BY_FAULT[state]


@pytest.mark.parametrize("kind", [UC, UD])
def test_from_sqe_a_modify_leads_on(kind: QpType) -> None:
    pair = Pair(kind=kind)
    bad_send(pair)
    pair.run()
    assert pair.b.state == SQE
    pair.b.engine.qps.modify(pair.b.qp, QpAttributes(qp_state=RTS), QpMask.STATE)
    assert pair.b.state == RTS
