"""A modify is carried out whole or not at all, whatever is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.roce.attributes import OPTIONAL, REQUIRED, AddressHandle, QpAttributes, QpMask
from kvlane.errors import VerbsError
from kvlane.verbs.enums import Mtu, QpState, QpType
from tests.support.roce_pair import OPTIONS, Port, mapped_gid

U8, U16, U32 = 1 << 8, 1 << 16, 1 << 32
TO_RTR = QpMask.STATE | REQUIRED[QpState.INIT, QpState.RTR][QpType.RC]
TO_RTS = QpMask.STATE | REQUIRED[QpState.RTR, QpState.RTS][QpType.RC]

GOOD = QpAttributes(
    path_mtu=2,
    qkey=3,
    rq_psn=4,
    sq_psn=5,
    dest_qp_num=6,
    qp_access_flags=1,
    ah=AddressHandle(dgid=mapped_gid(7)),
    max_rd_atomic=8,
    max_dest_rd_atomic=9,
    min_rnr_timer=10,
    timeout=11,
    retry_cnt=4,
    rnr_retry=5,
)


class Subject:
    """A queue pair, and all that can be seen of it."""

    def __init__(self, kind: QpType = QpType.RC, state: QpState = QpState.INIT) -> None:
        self.port = Port(1, 1, OPTIONS, 0, kind, port_mtu=Mtu.MTU_1024)
        if state != QpState.INIT:
            self.port.connect(self.port, Mtu.MTU_512.nbytes)
            self.port.engine.qps.table[self.port.qp].state = int(state)

    def modify(self, new: QpAttributes, mask: QpMask) -> None:
        self.port.engine.qps.modify(self.port.qp, new, mask)

    def seen(self) -> tuple[object, ...]:
        qps = self.port.engine.qps
        attributes, caps = qps.query(self.port.qp)
        return replace(attributes), caps, self.port.state, qps.table[self.port.qp].tobytes()


def bad_path(**fields: object) -> QpAttributes:
    return replace(GOOD, ah=replace(GOOD.ah, **fields))


@pytest.mark.parametrize(
    "new",
    [
        bad_path(dgid=b""),
        bad_path(dgid=bytes(15)),
        bad_path(dgid=bytes(17)),
        bad_path(udp_port=0),
        bad_path(udp_port=U16),
        bad_path(flow_label=1 << 20),
        bad_path(traffic_class=U8),
        bad_path(hop_limit=-1),
        bad_path(sl=16),
        bad_path(port_num=2),
        bad_path(sgid_index=U8),
        bad_path(static_rate=U8),
        replace(GOOD, path_mtu=0),
        replace(GOOD, path_mtu=6),
        replace(GOOD, path_mtu=int(Mtu.MTU_2048)),
        replace(GOOD, dest_qp_num=1 << 24),
        replace(GOOD, rq_psn=-1),
        replace(GOOD, rq_psn=1 << 80),
        replace(GOOD, max_dest_rd_atomic=65),
        replace(GOOD, min_rnr_timer=32),
    ],
    ids=lambda new: "path" if new.ah != GOOD.ah else "plain",
)
def test_one_bad_attribute_among_good_ones_changes_nothing(new: QpAttributes) -> None:
    subject = Subject()
    before = subject.seen()
    with pytest.raises(VerbsError, match=r"must (be|have)|port's MTU"):
        subject.modify(replace(new, qp_state=QpState.RTR), TO_RTR)
    assert subject.seen() == before
    subject.modify(replace(GOOD, qp_state=QpState.RTR), TO_RTR)
    assert subject.seen() != before


@pytest.mark.parametrize("index", [1, 2, 0xFFFF])
@pytest.mark.parametrize("kind", list(QpType))
def test_the_p_key_table_has_one_entry(kind: QpType, index: int) -> None:
    subject = Subject(kind)
    before = subject.seen()
    with pytest.raises(VerbsError, match=f"pkey_index must be 0, not {index}"):
        subject.modify(replace(GOOD, pkey_index=index), QpMask.PKEY_INDEX)
    assert subject.seen() == before


def test_psns_beyond_24_bits_are_cut_as_hardware_does() -> None:
    subject = Subject()
    subject.modify(replace(GOOD, qp_state=QpState.RTR, rq_psn=0xFF000004), TO_RTR)
    subject.modify(replace(GOOD, qp_state=QpState.RTS, sq_psn=0xFF000005), TO_RTS)
    attributes, _ = subject.port.engine.qps.query(subject.port.qp)
    assert (attributes.rq_psn, attributes.sq_psn) == (4, 5)


def numbers(*edges: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([-1, 0, 1, *edges, 1 << 31, U32, 1 << 63, 1 << 70]))


PATHS = st.builds(
    AddressHandle,
    dgid=st.sampled_from([mapped_gid(3), mapped_gid(4), bytes(15), bytes(17), b""]),
    udp_port=numbers(4791, U16),
    flow_label=numbers(1 << 20),
    traffic_class=numbers(U8),
    sl=numbers(15, 16),
    port_num=st.sampled_from([0, 1, 2]),
)
ATTRIBUTES = st.builds(
    QpAttributes,
    qp_state=st.sampled_from(QpState),
    path_mtu=numbers(2, 3, 4, 6),
    qkey=numbers(),
    rq_psn=numbers(1 << 24),
    sq_psn=numbers(1 << 24),
    dest_qp_num=numbers(1 << 24),
    qp_access_flags=numbers(),
    ah=PATHS,
    pkey_index=st.sampled_from([0, 1]),
    en_sqd_async_notify=numbers(U8),
    max_rd_atomic=numbers(64, 65),
    max_dest_rd_atomic=numbers(64, 65),
    min_rnr_timer=numbers(31, 32),
    port_num=st.sampled_from([0, 1, 2]),
    timeout=numbers(31, 32),
    retry_cnt=numbers(7, 8),
    rnr_retry=numbers(7, 8),
)


TRANSITIONS = [*{**REQUIRED, **OPTIONAL}, (QpState.RTS, QpState.RESET), (QpState.RTS, QpState.ERR)]


@st.composite
def modifies(draw: st.DrawFn) -> tuple[QpType, QpState, QpAttributes, QpMask]:
    """Mostly of a legal transition and mask, so that the values are what decides."""
    kind = draw(st.sampled_from(QpType))
    before, after = draw(st.sampled_from(TRANSITIONS))
    needed = REQUIRED.get((before, after), {}).get(kind, QpMask(0))
    taken = OPTIONAL.get((before, after), {}).get(kind, QpMask(0))
    mask = QpMask.STATE | needed
    for bit in QpMask:
        if bit & taken and draw(st.booleans()):
            mask |= bit
    drawn = draw(ATTRIBUTES)
    good = replace(GOOD, qp_state=after)
    spoilt = draw(st.sets(st.sampled_from(sorted(set(GOOD.__slots__) - {"qp_state"})), max_size=2))
    new = replace(good, **{name: getattr(drawn, name) for name in spoilt})
    if draw(st.integers(0, 9)) == 0:
        new.qp_state = drawn.qp_state
    return kind, before, new, mask


@given(modifies())
def test_a_refused_modify_leaves_all_as_it_was(
    case: tuple[QpType, QpState, QpAttributes, QpMask],
) -> None:
    kind, before, new, mask = case
    subject = Subject(kind, before)
    seen = subject.seen()
    try:
        subject.modify(new, mask)
    except VerbsError:
        assert subject.seen() == seen
    else:
        assert subject.port.state == new.qp_state
