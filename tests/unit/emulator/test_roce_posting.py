"""Posting by the full interface: what a queue pair takes in which state, and what it flushes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.roce.state import ARM_NEXT, RQE, WQE
from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.enums import (
    EventType,
    QpState,
    QpType,
    SendFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records
from tests.support.roce_pair import Pair, Port, Region

OPCODES = {
    WrOpcode.RDMA_WRITE: WcOpcode.RDMA_WRITE,
    WrOpcode.RDMA_WRITE_WITH_IMM: WcOpcode.RDMA_WRITE,
    WrOpcode.SEND: WcOpcode.SEND,
    WrOpcode.SEND_WITH_IMM: WcOpcode.SEND,
    WrOpcode.SEND_WITH_INV: WcOpcode.SEND,
    WrOpcode.RDMA_READ: WcOpcode.RDMA_READ,
    WrOpcode.ATOMIC_CMP_AND_SWP: WcOpcode.COMP_SWAP,
    WrOpcode.ATOMIC_FETCH_AND_ADD: WcOpcode.FETCH_ADD,
    WrOpcode.LOCAL_INV: WcOpcode.LOCAL_INV,
    WrOpcode.BIND_MW: WcOpcode.BIND_MW,
}

UNRELIABLE = (QpType.UC, QpType.UD)
"""A fault of sending leads these to SQE, and RC to ERR."""


def work(region: Region, length: int, wr_ids: list[int], **fields: int) -> Any:
    """Work requests over the first bytes of a region."""
    works = new_records(WQE, len(wr_ids))
    works.wr_id = wr_ids
    works.opcode = int(WrOpcode.SEND)
    works.length = length
    works.num_sge = 1
    works.sge_addr[:, 0] = region.addr
    works.sge_length[:, 0] = length
    works.sge_lkey[:, 0] = region.key
    for name, value in fields.items():
        works[name] = value
    return works


def receives(region: Region, wr_ids: list[int]) -> Any:
    """Receives over a whole region."""
    entries = new_records(RQE, len(wr_ids))
    entries.wr_id = wr_ids
    entries.length = len(region.data)
    entries.num_sge = 1
    entries.sge_addr[:, 0] = region.addr
    entries.sge_length[:, 0] = len(region.data)
    entries.sge_lkey[:, 0] = region.key
    return entries


def to_state(port: Port, state: QpState) -> None:
    port.engine.qps.modify(port.qp, QpAttributes(qp_state=state), QpMask.STATE)


def summary(port: Port) -> list[tuple[int, WcStatus, WcOpcode]]:
    return [
        (int(wc.wr_id), WcStatus(int(wc.status)), WcOpcode(int(wc.opcode))) for wc in port.poll()
    ]


@pytest.mark.parametrize("opcode", list(OPCODES))
def test_work_posted_in_error_is_flushed_with_its_own_opcode(opcode: WrOpcode) -> None:
    pair = Pair()
    to_state(pair.a, QpState.ERR)
    local = pair.a.region(8)
    pair.a.engine.qps.post_work(pair.a.qp, work(local, 8, [5, 6], opcode=int(opcode)))
    flushed = WcStatus.WR_FLUSH_ERR
    assert summary(pair.a) == [(5, flushed, OPCODES[opcode]), (6, flushed, OPCODES[opcode])]
    assert pair.a.transmit(pair.now) == []


def test_receives_posted_in_error_are_flushed_behind_those_that_were_there() -> None:
    pair = Pair()
    local = pair.a.region(8)
    pair.a.engine.qps.post_receives(pair.a.qp, receives(local, [1, 2]))
    to_state(pair.a, QpState.ERR)
    pair.a.engine.qps.post_receives(pair.a.qp, receives(local, [3]))
    assert summary(pair.a) == [(n, WcStatus.WR_FLUSH_ERR, WcOpcode.RECV) for n in (1, 2, 3)]


def test_a_flush_completion_tells_an_armed_queue() -> None:
    pair = Pair()
    to_state(pair.a, QpState.ERR)
    pair.a.engine.cqs.arm(pair.a.cq, ARM_NEXT)
    pair.a.engine.qps.post_receives(pair.a.qp, receives(pair.a.region(8), [1]))
    assert pair.a.engine.take_ready_cqs() == [pair.a.cq]


def test_posting_in_error_never_fills_a_queue() -> None:
    pair = Pair(options=QpOptions(max_send_wr=4, max_recv_wr=4))
    local = pair.a.region(8)
    to_state(pair.a, QpState.ERR)
    for _ in range(3):
        pair.a.engine.qps.post_work(pair.a.qp, work(local, 8, [1, 2, 3, 4]))
        pair.a.engine.qps.post_receives(pair.a.qp, receives(local, [1, 2, 3, 4]))
    assert len(pair.a.poll()) == 24
    with pytest.raises(QueueFullError):
        pair.a.engine.qps.post_work(pair.a.qp, work(local, 8, [1, 2, 3, 4, 5]))


def test_inline_data_that_is_too_long_is_refused_in_error_too() -> None:
    pair = Pair()
    to_state(pair.a, QpState.ERR)
    too_long = work(pair.a.region(513), 513, [1], send_flags=int(SendFlags.INLINE))
    with pytest.raises(VerbsError, match="inline"):
        pair.a.engine.qps.post_work(pair.a.qp, too_long)
    assert pair.a.poll() == []


def plain(dtype: np.dtype[Any], region: Region, wr_ids: list[int]) -> Any:
    """SEND_WR or RECV_WR records over a whole region."""
    requests = new_records(dtype, len(wr_ids))
    requests.wr_id = wr_ids
    requests.local_addr = region.addr
    requests.length = len(region.data)
    requests.lkey = region.key
    if dtype == SEND_WR:
        requests.opcode = int(WrOpcode.RDMA_WRITE)
    return requests


def to_send_error(port: Port) -> None:
    """By a request that no queue pair but RC takes."""
    port.engine.qps.post_work(port.qp, work(port.region(8), 8, [0], opcode=int(WrOpcode.RDMA_READ)))
    port.transmit(0)
    assert port.state == QpState.SQE
    port.poll()


@pytest.mark.parametrize(
    ("kind", "state"),
    [*((kind, QpState.ERR) for kind in QpType), *((kind, QpState.SQE) for kind in UNRELIABLE)],
)
def test_both_ways_to_post_flush_in_error(kind: QpType, state: QpState) -> None:
    pair = Pair(kind=kind)
    port, qps = pair.a, pair.a.engine.qps
    region = port.region(8)
    if state == QpState.SQE:
        to_send_error(port)
    else:
        to_state(port, state)
    qps.post_send(port.qp, plain(SEND_WR, region, [1, 2]))
    qps.post_work(port.qp, work(region, 8, [3], opcode=int(WrOpcode.RDMA_WRITE)))
    flushed = WcStatus.WR_FLUSH_ERR
    assert summary(port) == [(n, flushed, WcOpcode.RDMA_WRITE) for n in (1, 2, 3)]
    qps.post_recv(port.qp, plain(RECV_WR, region, [4, 5]))
    qps.post_receives(port.qp, receives(region, [6]))
    there = (4, 5, 6) if state == QpState.ERR else ()
    assert summary(port) == [(n, flushed, WcOpcode.RECV) for n in there]
    assert port.transmit(0) == []


def test_the_plain_way_never_fills_a_queue_in_error_either() -> None:
    pair = Pair(options=QpOptions(max_send_wr=4, max_recv_wr=4))
    region, qps = pair.a.region(8), pair.a.engine.qps
    to_state(pair.a, QpState.ERR)
    for _ in range(3):
        qps.post_send(pair.a.qp, plain(SEND_WR, region, [1, 2, 3, 4]))
        qps.post_recv(pair.a.qp, plain(RECV_WR, region, [1, 2, 3, 4]))
    assert len(pair.a.poll()) == 24
    with pytest.raises(QueueFullError):
        qps.post_send(pair.a.qp, plain(SEND_WR, region, [1, 2, 3, 4, 5]))
    with pytest.raises(QueueFullError):
        qps.post_recv(pair.a.qp, plain(RECV_WR, region, [1, 2, 3, 4, 5]))


@pytest.mark.parametrize("kind", list(QpType))
def test_nothing_is_sent_before_rts_and_nothing_received_in_reset(kind: QpType) -> None:
    port = Port(1, 1, QpOptions(), None, kind)
    local = port.region(8)
    with pytest.raises(VerbsError, match="INIT"):
        port.engine.qps.post_work(port.qp, work(local, 8, [1]))
    with pytest.raises(VerbsError, match="INIT"):
        port.engine.qps.post_send(port.qp, plain(SEND_WR, local, [1]))
    port.engine.qps.post_receives(port.qp, receives(local, [1]))
    to_state(port, QpState.RESET)
    with pytest.raises(VerbsError, match="RESET"):
        port.engine.qps.post_receives(port.qp, receives(local, [1]))
    with pytest.raises(VerbsError, match="RESET"):
        port.engine.qps.post_recv(port.qp, plain(RECV_WR, local, [1]))
    assert port.poll() == []


def test_inline_data_is_read_while_posting() -> None:
    pair = Pair()
    source, target = pair.a.region(300), pair.b.region(300)
    source.data[:] = 7
    pair.b.engine.qps.post_receives(pair.b.qp, receives(target, [1]))
    pair.a.engine.qps.post_work(
        pair.a.qp, work(source, 300, [1], send_flags=int(SendFlags.INLINE | SendFlags.SIGNALED))
    )
    source.data[:] = 0
    pair.run()
    assert (target.data == 7).all()


def test_a_resized_shared_queue_keeps_its_receives_in_order() -> None:
    pair = Pair()
    srqs = pair.b.engine.srqs
    srq = srqs.create(1, 4)
    pair.a.qp, pair.b.qp = pair.a.new_qp(), pair.b.new_qp(srq)
    pair.a.connect(pair.b, 1024)
    pair.b.connect(pair.a, 1024)
    source, target = pair.a.region(8), pair.b.region(8)
    srqs.post(srq, receives(target, [1, 2, 3]))
    pair.a.engine.qps.post_work(pair.a.qp, work(source, 8, [1]))
    pair.run()
    srqs.resize(srq, 6)
    srqs.post(srq, receives(target, [4, 5, 6, 7]))
    with pytest.raises(QueueFullError):
        srqs.post(srq, receives(target, [8]))
    pair.a.engine.qps.post_work(pair.a.qp, work(source, 8, [2, 3, 4, 5, 6, 7]))
    pair.run()
    assert [int(wc.wr_id) for wc in pair.b.poll()] == [1, 2, 3, 4, 5, 6, 7]


def test_a_shared_queue_does_not_shrink_below_what_waits_or_its_limit() -> None:
    port = Port(1, 1, QpOptions(), None)
    srqs = port.engine.srqs
    srq = srqs.create(1, 8)
    srqs.post(srq, receives(port.region(8), [1, 2, 3]))
    with pytest.raises(VerbsError, match="3 receives"):
        srqs.resize(srq, 2)
    srqs.set_limit(srq, 5)
    with pytest.raises(VerbsError, match="limit"):
        srqs.resize(srq, 4)
    srqs.resize(srq, 5)
    assert srqs.limit(srq) == 5
    srqs.post(srq, receives(port.region(8), [4, 5]))


def test_a_completion_keeps_the_time_it_came_at() -> None:
    pair = Pair()
    source, target = pair.a.region(8), pair.b.region(8)
    assert pair.b.engine.cqs.oldest_time(pair.b.cq) == 0
    arrivals = [1_000_000, 5_000_000]
    for now in arrivals:
        pair.now = now
        pair.b.engine.qps.post_receives(pair.b.qp, receives(target, [1]))
        pair.a.engine.qps.post_work(pair.a.qp, work(source, 8, [1]))
        pair.run()
    out = new_records(WC, 1)
    for now in arrivals:
        assert pair.b.engine.cqs.oldest_time(pair.b.cq) == now
        assert pair.b.engine.cqs.poll(pair.b.cq, out) == 1


def test_a_send_queue_drains_until_all_is_acknowledged() -> None:
    pair = Pair()
    source, target = pair.a.region(8), pair.b.region(8)
    qps = pair.a.engine.qps
    pair.b.engine.qps.post_receives(pair.b.qp, receives(target, [1]))
    qps.post_work(pair.a.qp, work(source, 8, [1]))
    frames = pair.a.transmit(pair.now)
    assert not qps.is_draining(pair.a.qp)
    to_state(pair.a, QpState.SQD)
    assert qps.is_draining(pair.a.qp)
    for frame in frames:
        pair.b.receive(frame, pair.now)
    pair.run()
    assert not qps.is_draining(pair.a.qp)


def step_until_drained(pair: Pair) -> None:
    """The state and the event say the same, all the way."""
    qps, engine = pair.a.engine.qps, pair.a.engine
    while qps.is_draining(pair.a.qp):
        assert engine.take_events() == []
        assert pair.advance()
    assert not any(wc.status for wc in pair.a.poll())
    pair.a.transmit(pair.now)
    assert [e.event for e in engine.take_events()] == [EventType.SQ_DRAINED]


def to_drained(port: Port) -> None:
    """To SQD, to be told of the end."""
    attributes = QpAttributes(qp_state=QpState.SQD, en_sqd_async_notify=1)
    port.engine.qps.modify(port.qp, attributes, QpMask.STATE | QpMask.EN_SQD_ASYNC_NOTIFY)


def test_a_send_queue_drains_while_it_waits_for_a_receiver() -> None:
    pair = Pair()
    source, target = pair.a.region(8), pair.b.region(8)
    qps = pair.a.engine.qps
    qps.post_work(pair.a.qp, work(source, 8, [1]))
    pair.step()
    to_drained(pair.a)
    assert pair.a.engine.counters()["rnr_nak_retry_err"] == 1
    assert qps.is_draining(pair.a.qp)
    assert pair.a.transmit(pair.now) == []
    assert qps.is_draining(pair.a.qp)
    pair.b.engine.qps.post_receives(pair.b.qp, receives(target, [1]))
    step_until_drained(pair)
    assert len(pair.b.poll()) == 1


@pytest.mark.parametrize(
    "second",
    [
        {"opcode": int(WrOpcode.RDMA_READ)},
        {"opcode": int(WrOpcode.RDMA_WRITE), "send_flags": int(SendFlags.FENCE)},
    ],
    ids=["limit of READs", "fence"],
)
def test_a_send_queue_drains_until_what_waits_for_a_read_has_gone_too(
    second: dict[str, int],
) -> None:
    pair = Pair(options=QpOptions(max_rd_atomic=1, ack_timeout_code=8))
    local, remote = pair.a.region(8), pair.b.region(8)
    named = {"remote_addr": remote.addr, "rkey": remote.key}
    qps = pair.a.engine.qps
    qps.post_work(pair.a.qp, work(local, 8, [1], opcode=int(WrOpcode.RDMA_READ), **named))
    qps.post_work(pair.a.qp, work(local, 8, [2], **second, **named))
    (request,) = pair.a.transmit(pair.now)
    to_drained(pair.a)
    pair.b.receive(request, pair.now)
    for frame in pair.b.transmit(pair.now):
        pair.a.receive(frame, pair.now)
    assert qps.is_draining(pair.a.qp)
    step_until_drained(pair)


def test_a_send_queue_drains_after_a_timeout() -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(8)
    named = {"remote_addr": remote.addr, "rkey": remote.key}
    fields = {"opcode": int(WrOpcode.RDMA_WRITE), **named}
    pair.a.engine.qps.post_work(pair.a.qp, work(local, 8, [1], **fields))
    pair.a.transmit(pair.now)
    to_drained(pair.a)
    step_until_drained(pair)
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 1


def test_what_has_not_begun_is_not_waited_for() -> None:
    pair = Pair()
    to_drained(pair.a)
    pair.a.engine.qps.post_work(pair.a.qp, work(pair.a.region(8), 8, [1]))
    step_until_drained(pair)
    assert pair.a.poll() == []
