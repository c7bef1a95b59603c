"""UD: one packet is one message, its header is delivered, and what does not fit is not."""

from __future__ import annotations

from ipaddress import IPv4Address

import numpy as np
import pytest

from emulator.roce.state import ARM_SOLICITED
from emulator.wire.bth import Bth
from emulator.wire.deth import Deth
from emulator.wire.ip import emit_headers
from kvlane.verbs.enums import (
    AccessFlags,
    QpState,
    QpType,
    SendFlags,
    WcFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from tests.support.roce_pair import QKEY, Pair, ipv6_gid, mapped_gid
from tests.support.roce_work import (
    part,
    pattern,
    post,
    post_receive,
    receive,
    statuses,
    to_port,
    work,
    wr_ids,
)

GRH = 40


def ud_pair(gid: object = mapped_gid) -> Pair:
    return Pair(kind=QpType.UD, gid=gid)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 1000, 4096])
@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.SEND_WITH_IMM])
def test_a_datagram_arrives_behind_forty_bytes(opcode: WrOpcode, size: int) -> None:
    pair = ud_pair()
    source, target = pair.a.region(size + 1), pair.b.region(GRH + size + 1)
    source.data[:] = pattern(size + 1)
    with_imm = opcode == WrOpcode.SEND_WITH_IMM
    post_receive(pair.b, receive([part(target)], wr_id=8))
    post(pair.a, work(opcode, [part(source, 0, size)], imm=0x80000001, **to_port(pair.b)))
    pair.run()
    (wc,) = pair.b.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (8, WcStatus.SUCCESS, WcOpcode.RECV)
    assert wc.byte_len == GRH + size
    assert wc.src_qp == pair.a.number
    assert wc.wc_flags == (WcFlags.GRH | WcFlags.WITH_IMM if with_imm else WcFlags.GRH)
    assert wc.imm == (0x80000001 if with_imm else 0)
    assert (target.data[GRH : GRH + size] == source.data[:size]).all()
    assert target.data[-1] == 0
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]


def test_the_header_of_ipv4_fills_the_last_twenty_bytes() -> None:
    pair = ud_pair()
    source, target = pair.a.region(10), pair.b.region(100)
    target.data[:] = 0xEE
    post_receive(pair.b, receive([part(target)]))
    post(
        pair.a,
        work(WrOpcode.SEND, [part(source)], ud_traffic_class=0x48, **to_port(pair.b)),
    )
    (frame,) = pair.a.transmit(0)
    pair.b.receive(frame, 0)
    header = target.data[:GRH].tobytes()
    assert header[:20] == bytes(20)
    assert header[20] == 0x45
    assert header[21] == 0x48
    assert header[29] == 17
    assert header[32:36] == IPv4Address("10.0.0.1").packed
    assert header[36:40] == IPv4Address("10.0.0.2").packed
    sent = emit_headers(frame[1], len(frame[0]))
    # But for the checksum, it is what was sent.
    assert header[20:30] == sent[:10]
    assert header[32:] == sent[12:20]


def test_the_header_of_ipv6_fills_all_forty_bytes() -> None:
    pair = ud_pair(ipv6_gid)
    source, target = pair.a.region(10), pair.b.region(100)
    post_receive(pair.b, receive([part(target)]))
    post(
        pair.a,
        work(WrOpcode.SEND, [part(source)], ud_traffic_class=0x48, **to_port(pair.b)),
    )
    (frame,) = pair.a.transmit(0)
    pair.b.receive(frame, 0)
    header = target.data[:GRH].tobytes()
    assert header == emit_headers(frame[1], len(frame[0]))[:GRH]
    assert header[8:24] == ipv6_gid(1)
    assert header[24:] == ipv6_gid(2)


def test_header_and_data_are_scattered_across_the_elements() -> None:
    pair = ud_pair()
    source, target = pair.a.region(100), pair.b.region(400)
    source.data[:] = pattern(100)
    elements = [part(target, 0, 30), part(target, 100, 20), part(target, 200, 90)]
    post_receive(pair.b, receive(elements))
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b)))
    pair.run()
    assert target.data[20] == 0x45
    assert (target.data[110:120] == source.data[:10]).all()
    assert (target.data[200:290] == source.data[10:]).all()
    assert not target.data[120:200].any()
    assert not target.data[290:].any()


def test_a_wrong_key_is_dropped_and_counted() -> None:
    pair = ud_pair()
    source, target = pair.a.region(8), pair.b.region(100)
    post_receive(pair.b, receive([part(target)]))
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b, qkey=QKEY + 1)))
    pair.run()
    assert pair.b.poll() == []
    assert pair.b.engine.counters()["rx_bad_qkey"] == 1
    assert pair.b.state == QpState.RTS
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS], "the sender cannot know"


@pytest.mark.parametrize("controlled", [1 << 31, (1 << 32) - 1])
def test_a_controlled_key_is_replaced_by_the_queue_pairs_own(controlled: int) -> None:
    pair = ud_pair()
    source, target = pair.a.region(8), pair.b.region(100)
    post_receive(pair.b, receive([part(target)]))
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b, qkey=controlled)))
    (frame,) = pair.a.transmit(0)
    assert Deth.parse(frame[0][Bth.NBYTES :]) == Deth(QKEY, pair.a.number)
    pair.b.receive(frame, 0)
    assert statuses(pair.b.poll()) == [WcStatus.SUCCESS]


def test_a_controlled_key_can_be_the_queue_pairs() -> None:
    pair = ud_pair()
    for port in (pair.a, pair.b):
        port.engine.qps.table[port.qp].qkey = 0x80010000
    source, target = pair.a.region(8), pair.b.region(100)
    post_receive(pair.b, receive([part(target)]))
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b, qkey=0x80010000)))
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.SUCCESS]


def test_what_is_too_long_is_dropped_and_the_receive_stays() -> None:
    """Soft-RoCE put the queue pair in error (CVE-2024-40992)."""
    pair = ud_pair()
    source, target = pair.a.region(61), pair.b.region(100)
    post_receive(pair.b, receive([part(target)], wr_id=4))
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b)))
    pair.run()
    assert pair.b.poll() == []
    assert pair.b.engine.counters()["rx_too_long"] == 1
    assert pair.b.state == QpState.RTS
    assert not target.data.any()
    post(pair.a, work(WrOpcode.SEND, [part(source, 0, 60)], **to_port(pair.b)))
    pair.run()
    assert wr_ids(pair.b.poll()) == [4]


def test_without_a_receive_it_is_dropped() -> None:
    pair = ud_pair()
    post(pair.a, work(WrOpcode.SEND, [part(pair.a.region(8))], **to_port(pair.b)))
    pair.run()
    assert pair.b.engine.counters()["rx_no_receive"] == 1
    assert pair.b.state == QpState.RTS


def test_a_receive_that_cannot_be_written_ends_the_queue_pair() -> None:
    pair = ud_pair()
    source = pair.a.region(8)
    closed = pair.b.region(100, AccessFlags.REMOTE_READ)
    post_receive(pair.b, receive([part(closed)], 1), receive([part(closed)], 2))
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b)))
    pair.run()
    assert statuses(pair.b.poll()) == [WcStatus.LOC_PROT_ERR, WcStatus.WR_FLUSH_ERR]
    assert pair.b.state == QpState.ERR
    assert not closed.data.any()


def test_more_than_a_packet_is_a_local_length_error() -> None:
    pair = ud_pair()
    source = pair.a.region(4097)
    post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_LEN_ERR]
    assert pair.a.state == QpState.SQE


@pytest.mark.parametrize(
    "opcode", [op for op in WrOpcode if op not in (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM)]
)
def test_only_sends_are_carried(opcode: WrOpcode) -> None:
    pair = ud_pair()
    local = pair.a.region(8)
    post(pair.a, work(opcode, [part(local)], **to_port(pair.b)))
    assert pair.a.transmit(0) == []
    assert statuses(pair.a.poll()) == [WcStatus.LOC_QP_OP_ERR]


def test_one_queue_pair_speaks_to_many_and_each_flow_has_its_port() -> None:
    pair = ud_pair()
    source = pair.a.region(8)
    number = pair.b.number
    for offset in range(4):
        post(pair.a, work(WrOpcode.SEND, [part(source)], **to_port(pair.b, number + offset)))
    frames = pair.a.transmit(0)
    assert [int.from_bytes(f[0][5:8], "big") for f in frames] == [number + i for i in range(4)]
    ports = {int(f[1].src_port) for f in frames}
    assert len(ports) > 1
    assert min(ports) >= 0xC000


def test_a_solicited_datagram_wakes_who_waits_for_one() -> None:
    pair = ud_pair()
    source, target = pair.a.region(8), pair.b.region(200)
    for flags in (SendFlags.SIGNALED, SendFlags.SIGNALED | SendFlags.SOLICITED):
        post_receive(pair.b, receive([part(target, 0, 100)]))
        pair.b.engine.cqs.arm(pair.b.cq, ARM_SOLICITED)
        post(pair.a, work(WrOpcode.SEND, [part(source)], flags, **to_port(pair.b)))
        pair.run()
        woken = pair.b.engine.take_ready_cqs()
        assert woken == ([pair.b.cq] if flags & SendFlags.SOLICITED else [])


def test_inline_datagrams_hold_what_was_there_when_posting() -> None:
    pair = ud_pair()
    target = pair.b.region(100)
    post_receive(pair.b, receive([part(target)]))
    scratch = np.full(16, 5, np.uint8)
    element = (int(scratch.ctypes.data), 16, 0)
    flags = SendFlags.SIGNALED | SendFlags.INLINE
    post(pair.a, work(WrOpcode.SEND, [element], flags, **to_port(pair.b)))
    scratch[:] = 9
    pair.run()
    assert (target.data[GRH : GRH + 16] == 5).all()
