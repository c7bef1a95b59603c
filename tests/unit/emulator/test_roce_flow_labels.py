"""Flow labels of a path: on the wire of IPv6, and in the UDP source port of either family."""

from __future__ import annotations

import random

import pytest

from emulator.roce.attributes import AddressHandle, QpAttributes, QpMask
from emulator.roce.engine import RoceEngine
from kvlane.verbs.enums import QpState, QpType, WrOpcode
from tests.support.roce_pair import Frame, Pair, Port, ipv6_gid, mapped_gid
from tests.support.roce_work import part, post, to_port, towards, work

SOURCE_PORTS = {
    0x1: 0xC001,
    0x3FFF: 0xFFFF,
    0x4000: 0xC001,
    0x12345: 0xE341,
    0xFFFFF: 0xFFC0,
}
"""Of labels: the lower 14 bits, with the upper 6 folded in, from 0xC000."""


def set_label(port: Port, peer: Port, flow_label: int) -> None:
    """Change the path of a connected queue pair, which SQD allows."""
    path = AddressHandle(dgid=peer.engine.gid, flow_label=flow_label)
    for state, mask in ((QpState.SQD, QpMask.STATE), (QpState.SQD, QpMask.AV)):
        port.engine.qps.modify(port.qp, QpAttributes(qp_state=state, ah=path), mask)
    port.engine.qps.modify(port.qp, QpAttributes(qp_state=QpState.RTS), QpMask.STATE)


def frame_of(pair: Pair, flow_label: int) -> Frame:
    """One frame with that label from ``a`` to ``b``, by the service of the pair."""
    local, remote = pair.a.region(8), pair.b.region(8)
    if pair.a.kind == QpType.UD:
        fields = {**to_port(pair.b), "ud_flow_label": flow_label}
        post(pair.a, work(WrOpcode.SEND, [part(local)], **fields))
    else:
        set_label(pair.a, pair.b, flow_label)
        post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    (frame,) = pair.a.transmit(0)
    return frame


@pytest.mark.parametrize("gid", [mapped_gid, ipv6_gid], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("flow_label", SOURCE_PORTS)
@pytest.mark.parametrize("kind", list(QpType))
def test_a_label_is_sent_and_chooses_the_source_port(
    kind: QpType, flow_label: int, gid: object
) -> None:
    pair = Pair(kind=kind, gid=gid)  # type: ignore[arg-type]
    _, descriptor = frame_of(pair, flow_label)
    assert int(descriptor.flow_label) == flow_label
    assert int(descriptor.src_port) == SOURCE_PORTS[flow_label]


@pytest.mark.parametrize("kind", list(QpType))
def test_without_a_label_both_ends_choose_one_port(kind: QpType) -> None:
    pair = Pair(kind=kind)
    _, forth = frame_of(pair, 0)
    pair.a, pair.b = pair.b, pair.a
    _, back = frame_of(pair, 0)
    assert (int(forth.flow_label), int(back.flow_label)) == (0, 0)
    assert int(forth.src_port) == int(back.src_port) >= 0xC000


def test_a_label_is_of_its_datagram_and_stays_with_none_after_it() -> None:
    pair = Pair(kind=QpType.UD)
    labels = [0x12345, 0, 0xFFFFF, 0]
    assert [int(frame_of(pair, label)[1].flow_label) for label in labels] == labels


@pytest.mark.parametrize("too_much", [1 << 20, -1 << 20])
def test_of_the_label_of_a_datagram_twenty_bits_count(too_much: int) -> None:
    pair = Pair(kind=QpType.UD, gid=ipv6_gid)
    _, descriptor = frame_of(pair, 0x12345 | too_much)
    assert int(descriptor.flow_label) == 0x12345
    assert int(descriptor.src_port) == SOURCE_PORTS[0x12345]
    _, without = frame_of(pair, too_much)
    _, plain = frame_of(pair, 0)
    assert int(without.src_port) == int(plain.src_port)


@pytest.mark.parametrize("kind", list(QpType))
def test_a_port_that_a_socket_has_chosen_is_that_of_every_frame(kind: QpType) -> None:
    pair = Pair(kind=kind)
    pair.a = Port(1, 1, pair.a.options, pair.a.first_psn, kind)
    pair.a.engine = RoceEngine(
        gid=mapped_gid(1), source_port=5000, window_bytes=1 << 18, rng=random.Random(1)
    )
    pair.a.cq = pair.a.engine.cqs.create(64)
    pair.a.qp = pair.a.new_qp()
    pair.a.connect(pair.b, 1024)
    assert int(frame_of(pair, 0x12345)[1].src_port) == 5000
