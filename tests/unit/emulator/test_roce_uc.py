"""UC: nothing is acknowledged, and what is lost costs its own message and no other."""

from __future__ import annotations

import pytest

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.wire.imm import ImmDt
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import AccessFlags, QpState, QpType, WcOpcode, WcStatus, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Frame, Pair
from tests.support.roce_script import Script, reth
from tests.support.roce_work import (
    part,
    pattern,
    post,
    post_receive,
    receive,
    statuses,
    towards,
    work,
    wr_ids,
)

UC = QpType.UC
MTU = 256


def uc_pair(mtu: int = MTU) -> Pair:
    return Pair(mtu, kind=UC)


def without(index: int, frames: list[Frame]) -> list[Frame]:
    return frames[:index] + frames[index + 1 :]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000])
@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.SEND_WITH_IMM])
def test_sends_arrive(opcode: WrOpcode, size: int) -> None:
    pair = uc_pair()
    source, target = pair.a.region(size + 1), pair.b.region(size + 1)
    source.data[:] = pattern(size + 1)
    post_receive(pair.b, receive([part(target)], wr_id=5))
    post(pair.a, work(opcode, [part(source, 0, size)], imm=0xFFEEDDCC))
    pair.run()
    (wc,) = pair.b.poll()
    assert (wc.wr_id, wc.status, wc.byte_len) == (5, WcStatus.SUCCESS, size)
    assert wc.imm == (0xFFEEDDCC if opcode == WrOpcode.SEND_WITH_IMM else 0)
    assert (target.data[:size] == source.data[:size]).all()
    assert target.data[size] == 0
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]


@pytest.mark.parametrize("size", [0, 1, 256, 5000])
@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM])
def test_writes_arrive(opcode: WrOpcode, size: int) -> None:
    pair = uc_pair()
    source, target = pair.a.region(size + 1), pair.b.region(size + 1)
    source.data[:] = pattern(size + 1)
    with_imm = opcode == WrOpcode.RDMA_WRITE_WITH_IMM
    if with_imm:
        post_receive(pair.b, receive(wr_id=6))
    post(pair.a, work(opcode, [part(source, 0, size)], imm=77, **towards(target)))
    pair.run()
    assert (target.data[:size] == source.data[:size]).all()
    assert target.data[size] == 0
    arrived = [(wc.wr_id, wc.opcode, wc.imm, wc.byte_len) for wc in pair.b.poll()]
    assert arrived == ([(6, WcOpcode.RECV_RDMA_WITH_IMM, 77, size)] if with_imm else [])


def test_nothing_is_ever_answered_and_no_timer_runs() -> None:
    pair = uc_pair()
    answers: list[Frame] = []
    pair.to_a = lambda frames: answers.extend(frames) or frames  # type: ignore[func-returns-value]
    local, remote = pair.a.region(3000), pair.b.region(3000)
    post_receive(pair.b, receive([part(remote)]))
    post(pair.a, work(WrOpcode.SEND, [part(local)]))
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    pair.run()
    assert answers == []
    assert pair.a.engine.next_deadline() >= 1 << 61


def test_a_message_may_be_longer_than_any_window() -> None:
    pair = uc_pair()
    size = 1 << 20
    local, remote = pair.a.region(size), pair.b.region(size)
    local.data[:] = pattern(size)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert (local.data == remote.data).all()


@pytest.mark.parametrize("lost", [0, 3, 7])
def test_a_lost_packet_costs_its_message_only(lost: int) -> None:
    """First, middle or last of the second of three messages."""
    pair = uc_pair()
    source, target = pair.a.region(2048), pair.b.region(3 * 2048)
    for i in range(3):
        post_receive(pair.b, receive([part(target, i * 2048, 2048)], wr_id=10 + i))
    for fill in (1, 2, 3):
        source.data[:] = fill
        post(pair.a, work(WrOpcode.SEND, [part(source)], wr_id=fill))
        frames = pair.a.transmit(0)
        for frame in without(lost, frames) if fill == 2 else frames:
            pair.b.receive(frame, 0)
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 3
    # The receive of the broken message serves the next one.
    assert wr_ids(pair.b.poll()) == [10, 11]
    assert (target.data[:2048] == 1).all()
    assert (target.data[2048:4096] == 3).all()
    assert not target.data[4096:].any()


def test_a_lost_packet_of_a_write_completes_no_receive() -> None:
    pair = uc_pair()
    source, target = pair.a.region(2048), pair.b.region(2048)
    post_receive(pair.b, receive(wr_id=3))
    for lost in (0, 4, 7):
        post(
            pair.a,
            work(WrOpcode.RDMA_WRITE_WITH_IMM, [part(source)], imm=lost, **towards(target)),
        )
        for frame in without(lost, pair.a.transmit(0)):
            pair.b.receive(frame, 0)
    assert pair.b.poll() == []
    post(pair.a, work(WrOpcode.RDMA_WRITE_WITH_IMM, [part(source)], imm=9, **towards(target)))
    pair.run()
    assert [(wc.wr_id, wc.imm) for wc in pair.b.poll()] == [(3, 9)]


def test_disorder_inside_a_message_is_a_gap() -> None:
    script = Script(kind=UC)
    target = script.port.region(1024)
    post_receive(script.port, receive([part(target)]))
    script.request(Opcode.UC_SEND_FIRST, 0, payload=bytes(MTU))
    script.request(Opcode.UC_SEND_MIDDLE, 2, payload=bytes(MTU))
    script.request(Opcode.UC_SEND_MIDDLE, 1, payload=bytes(MTU))
    script.request(Opcode.UC_SEND_LAST, 3, payload=bytes(MTU))
    assert script.port.poll() == []
    assert script.counter("rx_uc_gap") == 1
    script.request(Opcode.UC_SEND_ONLY, 4, payload=b"x")
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


@pytest.mark.parametrize("psn", [0, 1, 1000, 0x7FFFFF, 0x800000, 0xFFFFFF])
def test_a_message_may_begin_at_any_number(psn: int) -> None:
    script = Script(kind=UC)
    target = script.port.region(8)
    post_receive(script.port, receive([part(target)]))
    script.request(Opcode.UC_SEND_ONLY, psn, payload=b"x")
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


def test_refusals_are_silent_and_leave_the_queue_pair_alive() -> None:
    script = Script(kind=UC)
    target = script.port.region(1024)
    closed = script.port.region(64, AccessFlags.REMOTE_READ)
    post_receive(script.port, receive([part(target, 0, 100)]))
    refused = [
        (Opcode.UC_RDMA_WRITE_ONLY, (reth(target, 8, rkey=target.key ^ 1),), bytes(8)),
        (Opcode.UC_RDMA_WRITE_ONLY, (reth(closed, 8),), bytes(8)),
        (Opcode.UC_RDMA_WRITE_ONLY, (reth(target, 8, offset=1020),), bytes(8)),
        (Opcode.UC_RDMA_WRITE_ONLY, (reth(target, 9),), bytes(8)),
        (Opcode.UC_RDMA_WRITE_FIRST, (reth(target, 900),), bytes(8)),
        (Opcode.UC_SEND_MIDDLE, (), bytes(MTU)),
        (Opcode.UC_SEND_LAST_WITH_IMMEDIATE, (ImmDt(1),), bytes(8)),
        (Opcode.UC_SEND_ONLY, (), bytes(101)),
    ]
    for psn, (opcode, extensions, payload) in enumerate(refused):
        assert script.request(opcode, psn, *extensions, payload=payload) == [], opcode.name
    assert script.port.poll() == []
    assert script.port.engine.take_events() == []
    assert script.port.state == QpState.RTS
    assert not target.data.any()
    script.request(Opcode.UC_SEND_ONLY, 50, payload=b"fine")
    (wc,) = script.port.poll()
    assert (wc.status, wc.byte_len) == (WcStatus.SUCCESS, 4)


def test_without_a_receive_the_whole_message_is_dropped() -> None:
    script = Script(kind=UC)
    target = script.port.region(1024)
    script.request(Opcode.UC_SEND_FIRST, 0, payload=bytes(MTU))
    post_receive(script.port, receive([part(target)]))
    script.request(Opcode.UC_SEND_LAST, 1, payload=b"tail")
    assert script.port.poll() == []
    assert script.counter("rx_no_receive") == 1
    script.request(Opcode.UC_SEND_ONLY, 2, payload=b"next")
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


@pytest.mark.parametrize(
    "opcode",
    [
        WrOpcode.RDMA_READ,
        WrOpcode.ATOMIC_CMP_AND_SWP,
        WrOpcode.ATOMIC_FETCH_AND_ADD,
        WrOpcode.SEND_WITH_INV,
    ],
)
def test_what_uc_cannot_carry_stops_sending_until_it_is_set_going_again(opcode: WrOpcode) -> None:
    pair = uc_pair()
    local, remote = pair.a.region(8), pair.b.region(8)
    post(
        pair.a,
        work(opcode, [part(local)], wr_id=1, **towards(remote)),
        work(WrOpcode.RDMA_WRITE, [part(local)], wr_id=2, **towards(remote)),
    )
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_QP_OP_ERR, WcStatus.WR_FLUSH_ERR]
    assert pair.a.state == QpState.SQE
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], wr_id=3, **towards(remote)))
    assert [(int(wc.wr_id), int(wc.status)) for wc in pair.a.poll()] == [(3, WcStatus.WR_FLUSH_ERR)]
    # It still receives.
    post_receive(pair.a, receive([part(local)]))
    post(pair.b, work(WrOpcode.SEND, [part(remote)]))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    pair.a.engine.qps.modify(pair.a.qp, QpAttributes(qp_state=QpState.RTS), QpMask.STATE)
    local.data[:] = 7
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert (remote.data == 7).all()


def test_a_receive_that_cannot_be_written_ends_the_queue_pair() -> None:
    script = Script(kind=UC)
    closed = script.port.region(64, AccessFlags.REMOTE_READ)
    post_receive(script.port, receive([part(closed)], 1), receive([part(closed)], 2))
    script.request(Opcode.UC_SEND_ONLY, 0, payload=b"x")
    assert statuses(script.port.poll()) == [WcStatus.LOC_PROT_ERR, WcStatus.WR_FLUSH_ERR]
    assert script.port.state == QpState.ERR


def test_rc_packets_mean_nothing_to_uc() -> None:
    script = Script(kind=UC)
    region = script.port.region(8, ALL_ACCESS)
    post_receive(script.port, receive([part(region)]))
    script.request(Opcode.RC_SEND_ONLY, 0, payload=b"x")
    script.request(Opcode.RC_RDMA_READ_REQUEST, 0, reth(region, 8))
    assert script.port.poll() == []
    assert script.counter("rx_bad_header") == 2
