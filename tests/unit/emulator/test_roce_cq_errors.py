"""A completion queue that overruns: nothing is invented, and all who use it come to an end."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.roce.engine import AsyncEvent
from emulator.roce.state import CQE
from kvlane.errors import VerbsError
from kvlane.verbs.enums import EventType, QpState, QpType, WcStatus, WrOpcode
from kvlane.verbs.records import WC, new_records
from tests.support.roce_pair import Pair, Port
from tests.support.roce_work import (
    part,
    post,
    post_receive,
    receive,
    statuses,
    to_port,
    towards,
    work,
)

CQ_ERR, FATAL = EventType.CQ_ERR, EventType.QP_FATAL
DEPTH = 2


def give_small_cq(port: Port, end: str, qp: int | None = None, depth: int = DEPTH) -> int:
    """A queue of few entries for one end of a queue pair; nothing has completed yet."""
    small = port.engine.cqs.create(depth)
    port.engine.qps.table[port.qp if qp is None else qp][end] = small
    return small


def send_to_b(pair: Pair, count: int) -> None:
    """Messages for which b has receives."""
    extra = to_port(pair.b) if pair.b.kind == QpType.UD else {}
    source, target = pair.a.region(8), pair.b.region(64)
    for _ in range(count):
        post_receive(pair.b, receive([part(target)]))
        post(pair.a, work(WrOpcode.SEND, [part(source)], **extra))
    pair.run()


@pytest.mark.parametrize("kind", list(QpType))
def test_a_lost_receive_completion_ends_the_queue_pair_and_is_told_once(kind: QpType) -> None:
    pair = Pair(kind=kind)
    small = give_small_cq(pair.b, "recv_cq")
    send_to_b(pair, 5)
    assert pair.b.state == QpState.ERR
    assert pair.b.engine.take_events() == [
        AsyncEvent(CQ_ERR, small),
        AsyncEvent(FATAL, pair.b.number),
    ]
    # The third message's, and the flushed ones of two receives that nothing will fill.
    assert pair.b.engine.counters()["cq_overflow"] == 3


def test_the_peer_is_not_told_that_the_message_has_arrived() -> None:
    pair = Pair()
    give_small_cq(pair.b, "recv_cq")
    send_to_b(pair, DEPTH)
    send_to_b(pair, 2)
    assert statuses(pair.a.poll()) == [
        *[WcStatus.SUCCESS] * DEPTH,
        WcStatus.RETRY_EXC_ERR,
        WcStatus.WR_FLUSH_ERR,
    ]


def test_a_lost_send_completion_ends_the_queue_pair() -> None:
    pair = Pair()
    small = give_small_cq(pair.a, "send_cq")
    local, remote = pair.a.region(8), pair.b.region(8)
    for _ in range(4):
        post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    post_receive(pair.a, receive([part(local)], wr_id=9))
    pair.run()
    assert pair.a.state == QpState.ERR
    assert pair.a.engine.take_events() == [
        AsyncEvent(CQ_ERR, small),
        AsyncEvent(FATAL, pair.a.number),
    ]
    (flushed,) = pair.a.poll()
    assert (flushed.wr_id, flushed.status) == (9, WcStatus.WR_FLUSH_ERR), "its other queue is well"
    assert pair.b.state == QpState.RTS


def test_all_that_use_the_queue_end_and_nobody_else() -> None:
    pair = Pair()
    engine = pair.b.engine
    small = give_small_cq(pair.b, "recv_cq")
    sender, receiver, idle, other = (pair.b.new_qp() for _ in range(4))
    engine.qps.table[sender].send_cq = small
    engine.qps.table[receiver].recv_cq = small
    reset = engine.qps.create(
        QpType.RC, pd=1, send_cq=small, recv_cq=small, caps=engine.qps.query(idle)[1]
    )
    engine.qps.table[sender].state = int(QpState.RTS)
    send_to_b(pair, DEPTH + 1)
    states = [engine.qps.state(qp) for qp in (pair.b.qp, sender, receiver)]
    assert states == [QpState.ERR] * 3
    assert [engine.qps.state(qp) for qp in (idle, other)] == [QpState.INIT] * 2
    assert engine.qps.state(reset) == QpState.RESET
    told = engine.take_events()
    assert told[0] == AsyncEvent(CQ_ERR, small)
    fatal = {engine.qps.number(qp) for qp in (pair.b.qp, sender, receiver)}
    assert {event.subject for event in told[1:]} == fatal
    assert [event.event for event in told[1:]] == [FATAL] * 3


def test_one_overrun_may_bring_about_another() -> None:
    """What is flushed into the other queue overruns that one, which ends a third party."""
    pair = Pair()
    engine = pair.b.engine
    first = give_small_cq(pair.b, "recv_cq")
    second = give_small_cq(pair.b, "send_cq", depth=1)
    third = pair.b.new_qp()
    engine.qps.table[third].send_cq = second
    local = pair.b.region(8)
    pair.to_a = lambda _: []
    for _ in range(2):
        post(pair.b, work(WrOpcode.RDMA_WRITE, [part(local)], remote_addr=1, rkey=1))
    source, target = pair.a.region(8), pair.b.region(8)
    for _ in range(DEPTH + 1):
        post_receive(pair.b, receive([part(target)]))
        post(pair.a, work(WrOpcode.SEND, [part(source)]))
    for frame in pair.a.transmit(0):
        pair.b.receive(frame, 0)
    told = engine.take_events()
    assert [event for event in told if event.event == CQ_ERR] == [
        AsyncEvent(CQ_ERR, first),
        AsyncEvent(CQ_ERR, second),
    ]
    assert engine.qps.state(third) == QpState.ERR


def test_posting_to_a_queue_pair_in_error_may_overrun_too() -> None:
    pair = Pair()
    engine = pair.b.engine
    small = give_small_cq(pair.b, "send_cq")
    other = pair.b.new_qp()
    engine.qps.table[other].recv_cq = small
    engine.qps.fail(pair.b.qp)
    local = pair.b.region(8)
    for _ in range(DEPTH):
        post(pair.b, work(WrOpcode.SEND, [part(local)]))
    assert engine.qps.state(other) == QpState.INIT
    post(pair.b, work(WrOpcode.SEND, [part(local)]))
    assert engine.qps.state(other) == QpState.ERR
    third = pair.b.new_qp()
    engine.qps.table[third].send_cq = small
    give_small_cq(pair.b, "recv_cq", depth=1)
    for _ in range(2):
        post_receive(pair.b, receive([part(local)]))
    assert engine.qps.state(third) == QpState.ERR


def test_nothing_is_written_any_more_neither_in_the_ring_nor_behind_it() -> None:
    """Even when places in the ring become free, because a queue pair is destroyed or it grows."""
    pair = Pair()
    engine = pair.b.engine
    small = give_small_cq(pair.b, "recv_cq")
    guarded = np.full((DEPTH + 2) * CQE.itemsize, 0xA5, np.uint8)
    engine.cqs.table[small].ring = guarded.ctypes.data
    send_to_b(pair, DEPTH + 3)
    spare = (DEPTH + 1) * CQE.itemsize
    assert (guarded[spare:] == 0xA5).all()
    before = guarded[: DEPTH * CQE.itemsize].copy()
    engine.qps.destroy(pair.b.qp)
    assert engine.cqs.fill(small) == 0
    late = pair.b.new_qp()
    engine.qps.table[late].recv_cq = small
    engine.qps.post_receives(late, receive())
    engine.qps.fail(late)
    assert engine.cqs.fill(small) == 0
    assert (guarded[: DEPTH * CQE.itemsize] == before).all()
    assert (guarded[spare:] == 0xA5).all()
    engine.cqs.resize(small, 64)
    engine.qps.post_receives(late, receive())
    assert engine.cqs.fill(small) == 0
    with pytest.raises(VerbsError, match="overrun"):
        engine.cqs.poll(small, new_records(WC, 8))


def test_a_queue_pair_that_comes_later_ends_with_its_first_completion() -> None:
    pair = Pair()
    small = give_small_cq(pair.b, "recv_cq")
    engine = pair.b.engine
    first = pair.b.number
    send_to_b(pair, DEPTH + 1)
    engine.take_events()
    pair.a.qp, pair.b.qp = pair.a.new_qp(), pair.b.new_qp()
    engine.qps.table[pair.b.qp].recv_cq = small
    pair.a.connect(pair.b, 1024)
    pair.b.connect(pair.a, 1024)
    send_to_b(pair, 1)
    assert pair.b.state == QpState.ERR
    assert engine.take_events() == [AsyncEvent(FATAL, pair.b.number)]
    assert first != pair.b.number


def test_a_full_queue_that_loses_nothing_is_no_error() -> None:
    pair = Pair()
    small = give_small_cq(pair.b, "recv_cq")
    send_to_b(pair, DEPTH)
    out = new_records(WC, 8)
    assert pair.b.engine.cqs.poll(small, out) == DEPTH
    send_to_b(pair, DEPTH)
    assert pair.b.engine.cqs.poll(small, out) == DEPTH
    assert pair.b.state == QpState.RTS
    assert pair.b.engine.take_events() == []
