"""The fence, and the send queue drained: what waits for what, and when the owner is told."""

from __future__ import annotations

import pytest

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.roce.engine import AsyncEvent
from emulator.wire.aeth import Aeth
from emulator.wire.atomic_eth import AtomicAckEth
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import EventType, QpState, SendFlags, WcStatus, WrOpcode
from tests.support.roce_pair import Pair, Port
from tests.support.roce_script import RNR, Script
from tests.support.roce_work import part, post, post_receive, receive, statuses, towards, work

FENCED = SendFlags.SIGNALED | SendFlags.FENCE


def answer_read(script: Script, psn: int, nbytes: int = 8) -> None:
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_ONLY, psn, Aeth.ack(1), payload=bytes(nbytes))


def test_without_a_fence_a_send_overtakes_no_read_but_does_not_wait() -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    post(
        script.port,
        work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)),
        work(WrOpcode.SEND, [part(local)]),
    )
    assert script.requests() == ["RDMA_READ_REQUEST 0", "SEND_ONLY 1"]


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        (WrOpcode.SEND, "SEND_ONLY"),
        (WrOpcode.RDMA_WRITE, "RDMA_WRITE_ONLY"),
        (WrOpcode.RDMA_READ, "RDMA_READ_REQUEST"),
        (WrOpcode.ATOMIC_FETCH_AND_ADD, "FETCH_ADD"),
    ],
)
def test_a_fenced_request_waits_for_reads_and_atomics(opcode: WrOpcode, name: str) -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    post(
        script.port,
        work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)),
        work(WrOpcode.ATOMIC_FETCH_AND_ADD, [part(local)], **towards(remote)),
        work(opcode, [part(local)], FENCED, **towards(remote)),
    )
    assert script.requests() == ["RDMA_READ_REQUEST 0", "FETCH_ADD 1"]
    answer_read(script, 0)
    assert script.requests() == []
    script.respond(Opcode.RC_ATOMIC_ACKNOWLEDGE, 1, Aeth.ack(2), AtomicAckEth(5))
    assert script.requests() == [f"{name} 2"]


def test_a_fence_does_not_wait_for_writes() -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    post(
        script.port,
        work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)),
        work(WrOpcode.SEND, [part(local)], FENCED),
    )
    assert script.requests() == ["RDMA_WRITE_ONLY 0", "SEND_ONLY 1"]


def test_a_fence_in_the_middle_of_its_own_message_holds_nothing_up() -> None:
    pair = Pair(256)
    local, remote = pair.a.region(5000), pair.b.region(5000)
    post_receive(pair.b, receive([part(remote)]))
    post(
        pair.a,
        work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)),
        work(WrOpcode.SEND, [part(local)], FENCED),
    )
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 2


def to_state(port: Port, state: QpState, notify: bool = False) -> None:
    mask = QpMask.STATE | (QpMask.EN_SQD_ASYNC_NOTIFY if notify else QpMask(0))
    attributes = QpAttributes(qp_state=state, en_sqd_async_notify=1)
    port.engine.qps.modify(port.qp, attributes, mask)


def drained(script: Script) -> list[AsyncEvent]:
    script.packets()
    return script.port.engine.take_events()


def test_draining_finishes_what_has_begun_and_begins_nothing() -> None:
    script = Script()
    local, remote = script.port.region(1000), script.pair.a.region(1000)
    script.port.engine.qps.table[script.port.qp].window = 2
    for _ in range(2):
        post(script.port, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    assert script.requests() == ["RDMA_WRITE_FIRST 0", "RDMA_WRITE_MIDDLE 1"]
    to_state(script.port, QpState.SQD, notify=True)
    assert drained(script) == []
    script.acknowledge(1)
    assert script.requests() == ["RDMA_WRITE_MIDDLE 2", "RDMA_WRITE_LAST 3"]
    assert drained(script) == []
    script.acknowledge(3)
    assert drained(script) == [AsyncEvent(EventType.SQ_DRAINED, script.port.number)]
    assert drained(script) == []
    assert len(script.port.poll()) == 1
    to_state(script.port, QpState.RTS)
    assert script.requests() == ["RDMA_WRITE_FIRST 4", "RDMA_WRITE_MIDDLE 5"]


def test_an_idle_queue_is_drained_at_once() -> None:
    script = Script()
    to_state(script.port, QpState.SQD, notify=True)
    assert drained(script) == [AsyncEvent(EventType.SQ_DRAINED, script.port.number)]


def test_who_did_not_ask_is_not_told() -> None:
    script = Script()
    to_state(script.port, QpState.SQD)
    assert drained(script) == []


def test_a_request_that_waits_to_be_sent_again_is_not_drained() -> None:
    """After a NAK nothing is under way for a moment, and yet the message is not finished."""
    script = Script()
    local = script.port.region(8)
    post(script.port, work(WrOpcode.SEND, [part(local)]))
    assert script.requests() == ["SEND_ONLY 0"]
    to_state(script.port, QpState.SQD, notify=True)
    script.acknowledge(0, RNR | 14)
    assert drained(script) == []
    script.now += 2_000_000
    assert script.requests() == ["SEND_ONLY 0"]
    assert drained(script) == []
    script.acknowledge(0)
    assert [e.event for e in drained(script)] == [EventType.SQ_DRAINED]


def test_draining_waits_for_the_responses_of_reads() -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    post(script.port, work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)))
    script.packets()
    to_state(script.port, QpState.SQD, notify=True)
    assert drained(script) == []
    answer_read(script, 0)
    assert [e.event for e in drained(script)] == [EventType.SQ_DRAINED]


def test_a_drained_queue_pair_takes_posts_and_serves_its_peer() -> None:
    pair = Pair(256)
    to_state(pair.b, QpState.SQD, notify=True)
    local, remote = pair.a.region(1000), pair.b.region(1000)
    remote.data[:] = 3
    post(pair.b, work(WrOpcode.RDMA_WRITE, [part(remote)], **towards(local)))
    post(pair.a, work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert pair.b.poll() == []
    to_state(pair.b, QpState.RTS)
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.SUCCESS]
