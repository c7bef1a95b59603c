"""DCQCN: the reaction point against a plain twin, and the engine marking, telling, obeying."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.roce.congestion import _dcqcn_kernels as dcqcn
from emulator.roce.congestion.state import CC_WORDS
from emulator.wire.icrc import icrc
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import QpState, QpType, WcStatus, WrOpcode
from kvlane.verbs.records import new_records
from tests.support.dcqcn_twin import PlainDcqcn
from tests.support.roce_pair import Frame, Pair, reseal
from tests.support.roce_work import part, pattern, post, statuses, to_port, towards, work

GBPS = 1_000_000_000
LINE = 100 * GBPS
US = 1_000
CE = 3


def reaction_point(line_rate: int = LINE) -> Any:
    (cc,) = new_records(dcqcn.DCQCN, 1)
    dcqcn.start(cc, line_rate)
    return cc


def rate(cc: Any, now: int) -> int:
    return int(dcqcn.allowed_rate(cc, 0, now))


# The reaction point


def test_its_state_fits_the_room_that_every_queue_pair_has() -> None:
    assert dcqcn.DCQCN.itemsize <= 8 * CC_WORDS


def test_before_the_first_notification_the_line_rate_holds() -> None:
    cc = reaction_point()
    for now in (0, 10**6, 10**12):
        assert dcqcn.allowed_rate(cc, 4096, now) == LINE


def test_the_first_notification_halves_the_rate_at_once() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 5 * US)
    # INITIAL_ALPHA_VALUE is 1023: a hair less than half is taken.
    assert rate(cc, 5 * US) == LINE - LINE * 1023 // 2048
    assert cc.target == LINE


def test_a_second_one_within_the_monitoring_period_cuts_at_its_end() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    first = rate(cc, 0)
    dcqcn.on_notification(cc, 2 * US)
    assert rate(cc, 2 * US) == first
    assert rate(cc, 4 * US - 1) == first
    assert rate(cc, 4 * US) < first * 52 // 100
    assert rate(cc, 8 * US) == rate(cc, 4 * US), "and only once"


def test_without_notifications_alpha_decays_by_its_gain_every_microsecond() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    alpha = 1023
    for step in range(1, 50):
        dcqcn.advance(cc, step * US)
        alpha = alpha * 1019 // 1024
        assert cc.alpha == alpha
    dcqcn.advance(cc, 10_000 * US)
    assert cc.alpha == 0


def test_a_small_alpha_makes_a_small_cut() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    before = rate(cc, 290 * US)
    dcqcn.on_notification(cc, 290 * US)
    assert before * 3 // 4 < rate(cc, 290 * US) < before


def test_fast_recovery_halves_the_way_back_to_the_target() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    low = rate(cc, 299 * US)
    assert rate(cc, 300 * US) == (low + LINE + 1) // 2


def test_time_and_bytes_count_as_stages_of_their_own() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    low = rate(cc, 0)
    dcqcn.allowed_rate(cc, dcqcn.INCREASE_STEP_BYTES - 1, US)
    assert (cc.byte_stage, cc.rate) == (0, low)
    dcqcn.allowed_rate(cc, 1, US)
    assert (cc.byte_stage, cc.time_stage) == (1, 0)
    assert cc.rate == (low + LINE + 1) // 2


def limited_below_the_line(now: int = 0) -> Any:
    """A reaction point whose target lies far below the line rate."""
    cc = reaction_point()
    dcqcn.on_notification(cc, now)
    cc.target = cc.rate = 10 * GBPS
    return cc


def test_past_the_threshold_the_target_grows_by_a_fixed_step() -> None:
    cc = limited_below_the_line()
    dcqcn.advance(cc, 300 * US)
    assert cc.target == 10 * GBPS
    dcqcn.advance(cc, 600 * US)
    assert cc.target == 10 * GBPS + dcqcn.ADDITIVE_BPS
    dcqcn.advance(cc, 900 * US)
    assert cc.target == 10 * GBPS + 2 * dcqcn.ADDITIVE_BPS


def test_past_the_threshold_on_both_counts_it_grows_faster_and_faster() -> None:
    cc = limited_below_the_line()
    dcqcn.advance(cc, 600 * US)
    targets = [int(cc.target)]
    for _ in range(4):
        dcqcn.allowed_rate(cc, dcqcn.INCREASE_STEP_BYTES, 600 * US)
        targets.append(int(cc.target))
        dcqcn.advance(cc, int(cc.increase_time))
        targets.append(int(cc.target))
    steps = [b - a for a, b in pairwise(targets)]
    # The first count of bytes finds time past the threshold; then both are.
    assert steps[0] == steps[1] == dcqcn.ADDITIVE_BPS
    hyper = steps[2:]
    assert hyper == sorted(hyper)
    assert hyper[0] == dcqcn.HYPER_BPS
    assert hyper[-1] > dcqcn.HYPER_BPS


def test_the_rate_comes_back_to_the_line_and_the_limit_ends() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    now = 0
    rates = []
    while cc.limited:
        now += 300 * US
        rates.append(rate(cc, now))
        assert now < 10**9
    assert rates == sorted(rates)
    assert rates[-1] == LINE
    dcqcn.on_notification(cc, now)
    assert rate(cc, now) == LINE - LINE * 1023 // 2048, "like a first one again"


def test_the_rate_never_falls_below_the_least_nor_more_than_by_half_at_once() -> None:
    cc = reaction_point()
    before = LINE
    for step in range(100):
        dcqcn.on_notification(cc, step * 4 * US)
        now = rate(cc, step * 4 * US)
        assert now >= before // 2
        before = now
    assert before == dcqcn.MIN_BPS


def test_the_target_follows_the_rate_down_only_after_an_increase_by_time() -> None:
    cc = reaction_point()
    dcqcn.on_notification(cc, 0)
    dcqcn.on_notification(cc, 10 * US)
    assert cc.target == LINE
    dcqcn.allowed_rate(cc, dcqcn.INCREASE_STEP_BYTES, 11 * US)
    dcqcn.on_notification(cc, 20 * US)
    assert cc.target == LINE, "bytes do not count (CLAMP_TGT_RATE_AFTER_TIME_INC)"
    before = rate(cc, 330 * US)
    dcqcn.on_notification(cc, 330 * US)
    assert cc.target == before


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, str, int]]:
    """Times that grow, each with a notification, a packet or a mere look."""
    now, history = 0, []
    for _ in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0, 1, 999, 1_000, 1_001, 4_000, 50_000, 300_000, 2_000_000]))
        kind = draw(st.sampled_from(["notify", "send", "send", "look"]))
        history.append((now, kind, draw(st.integers(0, 70_000))))
    return history


@given(history=histories(), line_mbps=st.sampled_from([1, 10, 1_000, 100_000]))
def test_it_does_what_its_plain_twin_does(
    history: list[tuple[int, str, int]], line_mbps: int
) -> None:
    cc, twin = reaction_point(line_mbps * 1_000_000), PlainDcqcn(line_mbps * 1_000_000)
    for now, kind, nbytes in history:
        if kind == "notify":
            dcqcn.on_notification(cc, now)
            twin.on_notification(now)
        elif kind == "send":
            assert dcqcn.allowed_rate(cc, nbytes, now) == twin.allowed_rate(nbytes, now)
        else:
            dcqcn.advance(cc, now)
            twin.advance(now)
        assert (int(cc.rate), int(cc.target)) == (twin.rate, twin.target)


@given(history=histories(), looks=st.lists(st.integers(0, 50_000_000), max_size=20))
def test_looking_more_often_changes_nothing(
    history: list[tuple[int, str, int]], looks: list[int]
) -> None:
    watched, alone = reaction_point(), reaction_point()
    for now, kind, nbytes in history:
        for look in sorted(looks):
            if look <= now:
                dcqcn.advance(watched, look)
        for cc in (watched, alone):
            if kind == "notify":
                dcqcn.on_notification(cc, now)
            elif kind == "send":
                dcqcn.allowed_rate(cc, nbytes, now)
        looks = [look for look in looks if look > now]
    last = history[-1][0]
    assert rate(watched, last) == rate(alone, last)


# The engine around it


def congested_pair(kind: QpType = QpType.RC, line_rate: int = GBPS) -> Pair:
    """A pair, connected anew with congestion control on."""
    pair = Pair(1024, kind=kind)
    for port in (pair.a, pair.b):
        port.engine.enable_congestion_control(line_rate)
        port.engine.qps.destroy(port.qp)
        port.qp = port.new_qp()
    pair.a.connect(pair.b, 1024)
    pair.b.connect(pair.a, 1024)
    return pair


def marked(frames: list[Frame]) -> list[Frame]:
    """As a switch passes them on that is congested."""
    out = []
    for payload, descriptor in frames:
        record = descriptor.copy()
        if int(record.tos) & 3 == 2:
            record.tos = int(record.tos) | CE
        out.append((payload, record))
    return out


def is_cnp(frame: Frame) -> bool:
    return frame[0][0] == Opcode.CNP


def write(pair: Pair, nbytes: int = 100_000) -> None:
    local, remote = pair.a.region(nbytes), pair.b.region(nbytes)
    local.data[:] = pattern(nbytes)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **towards(remote)))


def finish(pair: Pair) -> int:
    """Run to the end with a fine clock; returns how long it took, ns."""
    begun = pair.now
    done: list[Any] = []
    while not done:
        if not pair.step():
            due = min(pair.a.engine.next_deadline(), pair.b.engine.next_deadline())
            pair.now = max(pair.now, due)
        done = pair.a.poll()
    assert statuses(done) == [WcStatus.SUCCESS]
    return pair.now - begun


def test_frames_are_marked_as_ecn_capable_only_when_it_is_on() -> None:
    for pair, ecn in ((congested_pair(), 2), (Pair(), 0)):
        write(pair, 100)
        (frame,) = pair.a.transmit(0)
        assert int(frame[1].tos) & 3 == ecn


def test_a_marked_frame_is_answered_with_a_notification() -> None:
    pair = congested_pair()
    write(pair, 100)
    now = 10 * US
    for frame in marked(pair.a.transmit(now)):
        pair.b.receive(frame, now)
    cnp, ack = pair.b.transmit(now)
    assert is_cnp(cnp)
    assert ack[0][0] == Opcode.RC_ACKNOWLEDGE
    assert cnp[0][:28] == (
        bytes((0x81, 0, 0xFF, 0xFF, 0x40)) + pair.a.number.to_bytes(3, "big") + bytes(20)
    )
    assert int(cnp[1].tos) == 0xC2
    counters = pair.b.engine.counters()
    assert (counters["np_ecn_marked_roce_packets"], counters["np_cnp_sent"]) == (1, 1)


def test_a_notification_is_byte_for_byte_what_a_connectx_4_sends() -> None:
    """Captured from a ConnectX-4 Lx; only addresses and numbers are the engine's to choose."""
    ip_udp = bytes.fromhex("45c2003c718c4000401191610a0011010a001201000012b700280000")
    bth = bytes.fromhex("8100ffff40000118") + bytes(20)
    assert icrc(ip_udp, bth).to_bytes(4, "little").hex() == "82fd002a"
    pair = congested_pair()
    write(pair, 100)
    for frame in marked(pair.a.transmit(10 * US)):
        pair.b.receive(frame, 10 * US)
    cnp = pair.b.transmit(10 * US)[0]
    assert cnp[0][:5] + cnp[0][8:28] == bth[:5] + bth[8:]
    assert int(cnp[1].tos) == ip_udp[1]
    assert len(cnp[0]) + 28 == int.from_bytes(ip_udp[2:4], "big")


def test_no_two_notifications_of_a_queue_pair_are_closer_than_4_us() -> None:
    pair = congested_pair(line_rate=100 * GBPS)
    write(pair, 1_000_000)
    sent = []
    now = 10 * US
    while now < 60 * US:
        for frame in marked(pair.a.transmit(now)):
            pair.b.receive(frame, now)
        for frame in pair.b.transmit(now):
            if is_cnp(frame):
                sent.append(now)
            else:
                pair.a.receive(frame, now)
        now += 500
    assert len(sent) > 3
    assert min(b - a for a, b in pairwise(sent)) >= 4 * US


def test_an_unmarked_frame_or_one_that_nobody_looks_at_is_not_answered() -> None:
    quiet = congested_pair()
    write(quiet, 100)
    for frame in quiet.a.transmit(0):
        quiet.b.receive(frame, 10 * US)
    assert not any(map(is_cnp, quiet.b.transmit(10 * US)))
    without = Pair()
    write(without, 100)
    for payload, descriptor in without.a.transmit(0):
        descriptor.tos = CE
        without.b.receive((payload, descriptor), 10 * US)
    assert not any(map(is_cnp, without.b.transmit(10 * US)))


def test_a_marked_datagram_is_answered_by_nobody() -> None:
    """A UD queue pair has no peer to tell."""
    pair = Pair(kind=QpType.UD)
    for port in (pair.a, pair.b):
        port.engine.enable_congestion_control(GBPS)
    post(pair.a, work(WrOpcode.SEND, [part(pair.a.region(8))], **to_port(pair.b)))
    for frame in marked(pair.a.transmit(10 * US)):
        pair.b.receive(frame, 10 * US)
    assert pair.b.transmit(20 * US) == []


@pytest.mark.parametrize("kind", [QpType.RC, QpType.UC])
def test_a_notification_slows_the_requester_and_silence_lets_it_recover(kind: QpType) -> None:
    pair = congested_pair(kind)
    write(pair)
    free = finish(pair)
    pair.to_b = marked
    write(pair)
    congested = finish(pair)
    assert pair.a.engine.counters()["rp_cnp_handled"] > 10
    assert congested > 5 * free
    pair.to_b = list
    for _ in range(2000):
        pair.now += 300 * US
        write(pair, 10)
        finish(pair)
    write(pair)
    assert finish(pair) < 2 * free


def test_the_line_rate_paces_even_without_notifications() -> None:
    pair = congested_pair(line_rate=GBPS // 100)
    write(pair, 10_000)
    took = finish(pair)
    # 10 Mb/s: 80,000 bits take 8 ms and more with headers; the last packet is not waited for.
    assert 7_000 * US < took < 8_500 * US
    # The acknowledgement timer, 1 ms, does not take the slow sender for a deaf peer.
    assert pair.a.engine.counters()["retransmitted_packets"] == 0


def test_a_responder_slows_the_reads_that_it_answers() -> None:
    pair = congested_pair()
    local, remote = pair.a.region(100_000), pair.b.region(100_000)
    remote.data[:] = pattern(100_000)
    read = work(WrOpcode.RDMA_READ, [part(local)], **towards(remote))
    post(pair.a, read)
    free = finish(pair)
    pair.to_a = marked
    post(pair.a, read)
    assert finish(pair) > 5 * free
    assert pair.b.engine.counters()["rp_cnp_handled"] > 10
    assert (local.data == remote.data).all()


def test_notifications_without_a_reaction_point_are_counted_and_ignored() -> None:
    pair = congested_pair()
    plain = Pair()
    cnp_source = congested_pair()
    write(cnp_source, 100)
    for frame in marked(cnp_source.a.transmit(10 * US)):
        cnp_source.b.receive(frame, 10 * US)
    payload, descriptor = cnp_source.b.transmit(10 * US)[0]
    for target, counter in ((pair, "rp_cnp_handled"), (plain, "rp_cnp_ignored")):
        aimed = bytearray(payload)
        aimed[5:8] = target.a.number.to_bytes(3, "big")
        target.a.receive(reseal(aimed, descriptor), 20 * US)
        assert target.a.engine.counters()[counter] == 1
        assert target.a.state == QpState.RTS


def test_a_waiting_sender_sleeps_and_does_not_spin() -> None:
    """What holds it up is the window, not the pace: no deadline may lie in the past."""
    pair = congested_pair()
    pair.a.engine.qps.table[pair.a.qp].ack_timeout_ns = 0
    pair.a.engine.qps.table[pair.a.qp].window = 4
    write(pair)
    now = 0
    for _ in range(100):
        pair.a.transmit(now)
        now += 100 * US
    assert pair.a.engine.next_deadline() > now


def test_the_same_history_gives_the_same_frames() -> None:
    def run() -> list[bytes]:
        pair = congested_pair()
        pair.a.next_iova = pair.b.next_iova = 1 << 40
        seen: list[bytes] = []
        pair.to_b = lambda frames: seen.extend(f[0] for f in frames) or marked(frames)  # type: ignore[func-returns-value]
        write(pair, 20_000)
        finish(pair)
        return seen

    assert run() == run()
