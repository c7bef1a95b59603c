"""Shared receive queues: each message its own receive, the limit told once, nothing flushed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.roce.engine import AsyncEvent
from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.enums import EventType, QpState, QpType, WcStatus, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Pair, Port, Region
from tests.support.roce_work import (
    part,
    pattern,
    post,
    receive,
    statuses,
    to_port,
    towards,
    work,
    wr_ids,
)

LIMIT_REACHED, LAST_WQE = EventType.SRQ_LIMIT_REACHED, EventType.QP_LAST_WQE_REACHED


class Shared:
    """Engine b with a shared queue, and ``count`` connections of a to it."""

    def __init__(
        self, count: int = 2, depth: int = 16, kind: QpType = QpType.RC, pd: int = 1
    ) -> None:
        self.pair = Pair(256, kind=kind)
        b = self.pair.b
        self.srq = b.engine.srqs.create(pd, depth)
        self.ends: list[tuple[int, int]] = []
        for _ in range(count):
            self.pair.a.qp, b.qp = self.pair.a.new_qp(), b.new_qp(self.srq)
            self.pair.a.connect(b, 256)
            b.connect(self.pair.a, 256)
            self.ends.append((self.pair.a.qp, b.qp))

    def use(self, index: int) -> Port:
        """Turn both ports to connection ``index``; returns the sender."""
        self.pair.a.qp, self.pair.b.qp = self.ends[index]
        return self.pair.a

    def receives(self, *entries: Any) -> None:
        self.pair.b.engine.srqs.post(self.srq, np.concatenate(entries).view(np.recarray))

    def events(self) -> list[AsyncEvent]:
        return self.pair.b.engine.take_events()


def test_messages_of_two_connections_half_received_at_once_keep_apart() -> None:
    shared = Shared()
    target = shared.pair.b.region(4 * 1024)
    for i in range(3):
        shared.receives(receive([part(target, i * 1024, 1024)], wr_id=10 + i))
    streams = []
    for index, fill in ((0, 1), (1, 2)):
        source = shared.use(index).region(1024)
        source.data[:] = fill
        post(shared.pair.a, work(WrOpcode.SEND, [part(source)]))
    frames = shared.pair.a.transmit(0)
    numbers = [shared.pair.b.engine.qps.number(qp) for _, qp in shared.ends]
    for number in numbers:
        streams.append([f for f in frames if int.from_bytes(f[0][5:8], "big") == number])
    for frame in (f for both in zip(*streams, strict=True) for f in both):
        shared.pair.b.receive(frame, 0)
    done = shared.pair.b.poll()
    assert wr_ids(done) == [10, 11]
    assert [int(wc.qp_num) for wc in done] == numbers
    assert (target.data[:1024] == 1).all()
    assert (target.data[1024:2048] == 2).all()
    assert not target.data[2048:].any()


def test_receives_are_taken_in_the_order_of_posting() -> None:
    shared = Shared(3)
    target = shared.pair.b.region(8)
    for i in range(9):
        shared.receives(receive([part(target)], wr_id=i))
    source = shared.pair.a.region(8)
    for i in range(9):
        post(shared.use(i % 3), work(WrOpcode.SEND, [part(source)]))
        shared.pair.run()
    assert wr_ids(shared.pair.b.poll()) == list(range(9))


def test_an_empty_queue_is_not_ready_and_serves_again_once_filled() -> None:
    shared = Shared(1)
    source, target = shared.pair.a.region(1000), shared.pair.b.region(1000)
    source.data[:] = pattern(1000)
    post(shared.use(0), work(WrOpcode.SEND, [part(source)]))
    for _ in range(5):
        shared.pair.step()
    assert shared.pair.b.engine.counters()["rnr_nak_sent"] > 0
    shared.receives(receive([part(target)]))
    shared.pair.run()
    assert statuses(shared.pair.a.poll()) == [WcStatus.SUCCESS]
    assert (source.data == target.data).all()


def test_the_limit_is_told_once_until_it_is_set_again() -> None:
    shared = Shared(1)
    target, source = shared.pair.b.region(8), shared.pair.a.region(8)
    srqs = shared.pair.b.engine.srqs
    for i in range(8):
        shared.receives(receive([part(target)], wr_id=i))
    srqs.set_limit(shared.srq, 6)
    told = []
    for _ in range(5):
        post(shared.use(0), work(WrOpcode.SEND, [part(source)]))
        shared.pair.run()
        told.append([e for e in shared.events() if e.event == LIMIT_REACHED])
    # 7, 6, 5, 4, 3 are left: the limit is passed at 5.
    assert told == [[], [], [AsyncEvent(LIMIT_REACHED, shared.srq)], [], []]
    assert srqs.limit(shared.srq) == 0
    srqs.set_limit(shared.srq, 3)
    post(shared.use(0), work(WrOpcode.SEND, [part(source)]))
    shared.pair.run()
    assert shared.events() == [AsyncEvent(LIMIT_REACHED, shared.srq)]


@pytest.mark.parametrize("limit", [-1, 17])
def test_a_limit_beyond_the_depth_is_refused(limit: int) -> None:
    shared = Shared(1)
    with pytest.raises(VerbsError, match="limit"):
        shared.pair.b.engine.srqs.set_limit(shared.srq, limit)


def test_an_error_leaves_the_shared_receives_to_the_others() -> None:
    shared = Shared(2)
    target, source = shared.pair.b.region(8), shared.pair.a.region(8)
    for i in range(3):
        shared.receives(receive([part(target)], wr_id=i))
    failing = shared.ends[0][1]
    shared.pair.b.engine.qps.fail(failing)
    assert shared.pair.b.poll() == []
    number = shared.pair.b.engine.qps.number(failing)
    assert shared.events() == [AsyncEvent(LAST_WQE, number)]
    post(shared.use(1), work(WrOpcode.SEND, [part(source)]))
    shared.pair.run()
    assert wr_ids(shared.pair.b.poll()) == [0]


def test_a_receive_that_a_message_had_begun_is_flushed() -> None:
    shared = Shared(1)
    target, source = shared.pair.b.region(1024), shared.pair.a.region(1024)
    shared.receives(receive([part(target)], wr_id=5), receive([part(target)], wr_id=6))
    post(shared.use(0), work(WrOpcode.SEND, [part(source)]))
    shared.pair.b.receive(shared.pair.a.transmit(0)[0], 0)
    shared.pair.b.engine.qps.fail(shared.pair.b.qp)
    (wc,) = shared.pair.b.poll()
    assert (wc.wr_id, wc.status) == (5, WcStatus.WR_FLUSH_ERR)


def test_the_last_receive_is_told_of_once_however_often_it_fails() -> None:
    shared = Shared(1)
    _, qp = shared.ends[0]
    qps = shared.pair.b.engine.qps
    for _ in range(3):
        qps.modify(qp, QpAttributes(qp_state=QpState.ERR), QpMask.STATE)
    assert [e.event for e in shared.events()] == [LAST_WQE]


def test_a_full_queue_takes_none_of_a_batch() -> None:
    shared = Shared(1, depth=4)
    target = shared.pair.b.region(8)
    shared.receives(*(receive([part(target)], wr_id=i) for i in range(3)))
    with pytest.raises(QueueFullError):
        shared.receives(receive([part(target)]), receive([part(target)]))
    shared.receives(receive([part(target)], wr_id=3))
    source = shared.pair.a.region(8)
    for _ in range(4):
        post(shared.use(0), work(WrOpcode.SEND, [part(source)]))
    shared.pair.run()
    assert wr_ids(shared.pair.b.poll()) == [0, 1, 2, 3]


def test_the_ring_goes_round() -> None:
    shared = Shared(2, depth=3)
    target, source = shared.pair.b.region(3 * 300), shared.pair.a.region(300)
    for i in range(20):
        slot = i % 3
        shared.receives(receive([part(target, slot * 300, 300)], wr_id=i))
        source.data[:] = i + 1
        post(shared.use(i % 2), work(WrOpcode.SEND, [part(source)]))
        shared.pair.run()
        assert wr_ids(shared.pair.b.poll()) == [i]
        assert (target.data[slot * 300 : slot * 300 + 300] == i + 1).all()


SRQ_PD, QP_PD = 2, 1


def with_a_domain_of_its_own(kind: QpType) -> Shared:
    """A shared queue of another protection domain than its queue pair's."""
    return Shared(1, kind=kind, pd=SRQ_PD)


@pytest.mark.parametrize("kind", list(QpType))
@pytest.mark.parametrize(("pd", "allowed"), [(SRQ_PD, True), (QP_PD, False)])
def test_receives_are_written_by_the_protection_domain_of_their_queue(
    kind: QpType, pd: int, allowed: bool
) -> None:
    shared = with_a_domain_of_its_own(kind)
    a, b = shared.use(0), shared.pair.b
    source = a.region(300)
    source.data[:] = pattern(300)
    target = Region(b.engine, 512, ALL_ACCESS, pd=pd)
    shared.receives(receive([part(target)], wr_id=3))
    extra = to_port(b) if kind == QpType.UD else {}
    post(a, work(WrOpcode.SEND, [part(source)], **extra))
    shared.pair.run()
    (wc,) = b.poll()
    assert (wc.wr_id, wc.status) == (3, WcStatus.SUCCESS if allowed else WcStatus.LOC_PROT_ERR)
    assert b.state == (QpState.RTS if allowed else QpState.ERR)
    assert bool(target.data.any()) == allowed


@pytest.mark.parametrize(("pd", "allowed"), [(SRQ_PD, False), (QP_PD, True)])
def test_what_the_peer_names_is_judged_by_the_queue_pairs_domain(pd: int, allowed: bool) -> None:
    shared = with_a_domain_of_its_own(QpType.RC)
    a, b = shared.use(0), shared.pair.b
    source = a.region(8)
    source.data[:] = 7
    shared.receives(receive([]))
    target = Region(b.engine, 8, ALL_ACCESS, pd=pd)
    post(a, work(WrOpcode.RDMA_WRITE_WITH_IMM, [part(source)], **towards(target)))
    shared.pair.run()
    expected = WcStatus.SUCCESS if allowed else WcStatus.REM_ACCESS_ERR
    assert statuses(a.poll()) == [expected]
    assert bool(target.data.any()) == allowed


@pytest.mark.parametrize(("pd", "allowed"), [(SRQ_PD, False), (QP_PD, True)])
def test_what_is_sent_is_judged_by_the_queue_pairs_domain(pd: int, allowed: bool) -> None:
    shared = with_a_domain_of_its_own(QpType.RC)
    shared.use(0)
    b = shared.pair.b
    source, target = Region(b.engine, 8, ALL_ACCESS, pd=pd), shared.pair.a.region(8)
    post(b, work(WrOpcode.RDMA_WRITE, [part(source)], **towards(target)))
    shared.pair.run()
    assert statuses(b.poll()) == [WcStatus.SUCCESS if allowed else WcStatus.LOC_PROT_ERR]


def test_datagrams_share_too() -> None:
    shared = Shared(2, kind=QpType.UD)
    target, source = shared.pair.b.region(200), shared.pair.a.region(8)
    for i in range(3):
        shared.receives(receive([part(target, 0, 100)], wr_id=i))
    for index in (0, 1):
        shared.use(index)
        post(shared.pair.a, work(WrOpcode.SEND, [part(source)], **to_port(shared.pair.b)))
        shared.pair.run()
    done = shared.pair.b.poll()
    assert wr_ids(done) == [0, 1]
    assert [int(wc.qp_num) for wc in done] == [
        shared.pair.b.engine.qps.number(qp) for _, qp in shared.ends
    ]
