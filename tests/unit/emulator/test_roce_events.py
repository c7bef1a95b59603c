"""Asynchronous events: what is told, of whom, and how often."""

from __future__ import annotations

import pytest

from emulator.roce.attributes import REQUIRED, AddressHandle, QpAttributes, QpMask
from emulator.roce.engine import AsyncEvent
from emulator.roce.state import MAX_EVENTS
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import EventType, Mtu, QpState, QpType, WcStatus, WrOpcode
from tests.support.roce_pair import Pair, Port
from tests.support.roce_script import Script, reth
from tests.support.roce_work import part, post, statuses, towards, work


def events(port: Port) -> list[AsyncEvent]:
    return port.engine.take_events()


def stay_in_rtr(pair: Pair) -> None:
    """b anew, connected to a but not yet sending."""
    b = pair.b
    kind = b.kind
    b.engine.qps.destroy(b.qp)
    b.qp = b.new_qp()
    attributes = QpAttributes(
        qp_state=QpState.RTR,
        ah=AddressHandle(dgid=pair.a.engine.gid),
        path_mtu=int(Mtu.MTU_1024),
        dest_qp_num=pair.a.number,
        rq_psn=pair.a.first_psn,
        max_dest_rd_atomic=4,
        min_rnr_timer=12,
    )
    needed = REQUIRED[QpState.INIT, QpState.RTR][kind]
    b.engine.qps.modify(b.qp, attributes, QpMask.STATE | needed)
    pair.a.engine.qps.table[pair.a.qp].remote_qpn = b.number


@pytest.mark.parametrize("kind", [QpType.RC, QpType.UC])
def test_the_first_request_in_rtr_establishes_the_connection_once(kind: QpType) -> None:
    pair = Pair(kind=kind)
    stay_in_rtr(pair)
    local, remote = pair.a.region(8), pair.b.region(8)
    for _ in range(3):
        post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
        pair.step()
    assert events(pair.b) == [AsyncEvent(EventType.COMM_EST, pair.b.number)]
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 3


def test_in_rts_nobody_is_told() -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(8)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    pair.run()
    assert events(pair.a) == events(pair.b) == []


@pytest.mark.parametrize(
    ("opcode", "how", "event"),
    [
        (Opcode.RC_RDMA_WRITE_ONLY, "key", EventType.QP_ACCESS_ERR),
        (Opcode.RC_RDMA_READ_REQUEST, "key", EventType.QP_ACCESS_ERR),
        (Opcode.RC_RDMA_WRITE_ONLY, "length", EventType.QP_REQ_ERR),
        (Opcode.RC_SEND_MIDDLE, "order", EventType.QP_REQ_ERR),
    ],
)
def test_a_refused_request_is_told_of_on_the_responders_side(
    opcode: Opcode, how: str, event: EventType
) -> None:
    script = Script()
    region = script.port.region(64)
    length = 9 if how == "length" else 8
    header = () if how == "order" else (reth(region, length, rkey=1 if how == "key" else None),)
    payload = {"order": bytes(256)}.get(how, bytes(8))
    if opcode == Opcode.RC_RDMA_READ_REQUEST:
        payload = b""
    script.request(opcode, 0, *header, payload=payload)
    assert events(script.port) == [AsyncEvent(event, script.port.number)]
    assert script.port.state == QpState.ERR


def test_a_read_whose_region_goes_meanwhile_is_told_of() -> None:
    pair = Pair(256)
    local, remote = pair.a.region(200_000), pair.b.region(200_000)
    post(pair.a, work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)))
    pair.step()
    pair.b.engine.regions.deregister(remote.key)
    pair.run()
    assert events(pair.b) == [AsyncEvent(EventType.QP_ACCESS_ERR, pair.b.number)]
    assert pair.b.state == QpState.ERR
    assert events(pair.a) == []


def test_the_requesters_own_faults_are_completions_not_events() -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(8)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [(local.addr, 8, 1)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_PROT_ERR]
    assert events(pair.a) == []


def test_events_come_in_the_order_in_which_things_happen() -> None:
    pair = Pair()
    stay_in_rtr(pair)
    local, remote = pair.a.region(8), pair.b.region(8)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], remote_addr=0, rkey=0))
    pair.run()
    assert [e.event for e in events(pair.b)] == [EventType.COMM_EST, EventType.QP_ACCESS_ERR]


def test_nobody_fetching_them_harms_nobody() -> None:
    """More than are kept: the later ones are lost and counted, and the queue pairs go on."""
    pair = Pair()
    srq = pair.b.engine.srqs.create(1, 1)
    for _ in range(MAX_EVENTS + 10):
        index = pair.b.new_qp(srq)
        pair.b.engine.qps.fail(index)
        pair.b.engine.qps.destroy(index)
    assert len(events(pair.b)) == MAX_EVENTS
    assert pair.b.engine.counters()["events_lost"] == 10
    local, remote = pair.a.region(8), pair.b.region(8)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
