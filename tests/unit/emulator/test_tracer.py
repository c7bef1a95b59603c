"""The engine's own events, as the oracle of what loss, refusal and silence lead to."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from emulator.roce.attributes import QpAttributes, QpMask
from emulator.roce.state import COUNTER_NAMES
from emulator.trace.events import (
    AckTimeout,
    Dropped,
    DuplicateRequest,
    NakReceived,
    NakSent,
    Retransmission,
    RnrNakReceived,
    RnrNakSent,
    StateChange,
)
from emulator.trace.sinks import Recording
from emulator.trace.tracer import DROP_COUNTERS, UC_DROP_COUNTERS, Tracer
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import AccessFlags, QpState, QpType, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import ALL_ACCESS, Channel, Frame, LossyChannel, Pair, reseal
from tests.support.roce_work import part, receive

MTU = 256
PACKETS = 8
NBYTES = PACKETS * MTU
OPTIONS = QpOptions(ack_timeout_code=8, max_send_wr=64, max_recv_wr=64, min_rnr_timer_code=1)
ACK_TIMEOUT_NS = 4096 << OPTIONS.ack_timeout_code
RNR_WAIT_NS = 10_000
"""Of timer code 1."""


class TracedPair(Pair):
    """A pair whose ends both tell one recording."""

    def __init__(self, options: QpOptions = OPTIONS, kind: QpType = QpType.RC) -> None:
        super().__init__(MTU, options, kind=kind)
        self.trace = Recording()
        for port in (self.a, self.b):
            Tracer(port.engine, self.trace, lambda: self.now)

    def write(self, nbytes: int = NBYTES, rkey: int | None = None) -> int:
        """A WRITE from a to b; its first PSN."""
        local, remote = self.a.region(nbytes), self.b.region(nbytes)
        self.a.send(WrOpcode.RDMA_WRITE, local, nbytes, remote=remote, rkey=rkey)
        return self.a.first_psn


def without(match: Callable[[Frame], bool], times: int = 1) -> Channel:
    """A channel that loses the first frames that match."""
    left = [times]

    def channel(frames: list[Frame]) -> list[Frame]:
        kept = []
        for frame in frames:
            if left[0] and match(frame):
                left[0] -= 1
            else:
                kept.append(frame)
        return kept

    return channel


def psn_of(frame: Frame) -> int:
    return int.from_bytes(frame[0][9:12], "big")


def test_an_undisturbed_transfer_has_no_event() -> None:
    pair = TracedPair()
    pair.write()
    pair.run()
    assert len(pair.a.poll()) == 1
    assert pair.trace.events == []


@pytest.mark.parametrize("index", [0, 3, PACKETS - 2])
def test_a_lost_packet_leads_to_one_nak_and_all_is_sent_again_from_it(index: int) -> None:
    pair = TracedPair()
    first = pair.write()
    lost = (first + index) & 0xFFFFFF
    pair.to_b = without(lambda frame: psn_of(frame) == lost)
    pair.run()
    sent = pair.trace.only(NakSent)
    assert (sent.qpn, sent.psn, sent.code) == (pair.b.number, lost, "PSN_SEQUENCE_ERROR")
    assert sent.reason == f"expected PSN {lost}, got {lost + 1}"
    received = pair.trace.only(NakReceived)
    assert (received.qpn, received.psn) == (pair.a.number, lost)
    assert received.code == "PSN_SEQUENCE_ERROR"
    again = pair.trace.of(Retransmission)
    assert [event.psn for event in again] == list(range(lost, first + PACKETS))
    assert {event.cause for event in again} == {"PSN_SEQUENCE_ERROR"}
    dropped = pair.trace.of(Dropped)
    assert [event.psn for event in dropped] == list(range(lost + 1, first + PACKETS))
    assert {event.counter for event in dropped} == {"out_of_sequence"}
    assert pair.trace.of(StateChange) == pair.trace.of(AckTimeout) == []


def test_a_lost_tail_leads_to_a_timeout_and_no_nak() -> None:
    pair = TracedPair()
    last = pair.write() + PACKETS - 1
    pair.to_b = without(lambda frame: psn_of(frame) == last)
    pair.run()
    timeout = pair.trace.only(AckTimeout)
    assert (timeout.qpn, timeout.retries_left) == (pair.a.number, OPTIONS.retry_count - 1)
    again = pair.trace.of(Retransmission)
    assert [event.psn for event in again] == list(range(timeout.psn, last + 1))
    assert {event.cause for event in again} == {"TIMEOUT"}
    assert pair.trace.of(NakSent) == []


def test_a_lost_acknowledgement_leads_to_a_duplicate() -> None:
    pair = TracedPair()
    first = pair.write(MTU)
    pair.to_a = without(lambda frame: frame[0][0] == Opcode.RC_ACKNOWLEDGE)
    pair.run()
    assert pair.trace.only(AckTimeout).psn == first
    assert pair.trace.only(Retransmission).psn == first
    duplicate = pair.trace.only(DuplicateRequest)
    assert (duplicate.qpn, duplicate.psn) == (pair.b.number, first)
    assert duplicate.opcode == "RC_RDMA_WRITE_ONLY"


def test_a_lost_response_is_an_implied_nak() -> None:
    pair = TracedPair()
    local, remote = pair.a.region(NBYTES), pair.b.region(NBYTES)
    lost = pair.a.first_psn + 2
    pair.to_a = without(lambda frame: psn_of(frame) == lost)
    pair.a.send(WrOpcode.RDMA_READ, local, NBYTES, remote=remote)
    pair.run()
    nak = pair.trace.only(NakReceived)
    assert (nak.qpn, nak.psn, nak.code) == (pair.a.number, lost + 1, "IMPLIED")
    again = pair.trace.only(Retransmission)
    assert (again.psn, again.opcode, again.cause) == (lost, "RC_RDMA_READ_REQUEST", "IMPLIED")
    assert pair.trace.of(NakSent) == []


def test_silence_ends_in_error_after_every_retry() -> None:
    pair = TracedPair(QpOptions(ack_timeout_code=8, retry_count=2))
    first = pair.write(MTU)
    pair.to_b = lambda frames: []
    pair.run()
    assert [event.retries_left for event in pair.trace.of(AckTimeout)] == [1, 0, 0]
    assert [event.psn for event in pair.trace.of(Retransmission)] == [first] * 2
    change = pair.trace.only(StateChange)
    assert (change.qpn, change.cause) == (pair.a.number, "TIMEOUT")
    assert (change.before, change.after) == (QpState.RTS, QpState.ERR)


def test_no_receive_is_told_at_both_ends() -> None:
    pair = TracedPair(QpOptions(rnr_retry_count=1, min_rnr_timer_code=1))
    pair.a.send(WrOpcode.SEND, pair.a.region(8), 8)
    pair.run()
    sent, received = pair.trace.of(RnrNakSent), pair.trace.of(RnrNakReceived)
    assert [(e.qpn, e.psn, e.wait_ns) for e in sent] == [
        (pair.b.number, pair.a.first_psn, RNR_WAIT_NS)
    ] * 2
    assert [(e.qpn, e.wait_ns, e.retries_left) for e in received] == [
        (pair.a.number, RNR_WAIT_NS, 0)
    ] * 2
    assert pair.trace.only(Retransmission).cause == "RNR"
    assert pair.trace.only(StateChange).cause == "RNR"


def refused_key(pair: TracedPair) -> None:
    pair.write(MTU, rkey=1)


def too_long(pair: TracedPair) -> None:
    pair.b.recv(pair.b.region(8), 8)
    pair.a.send(WrOpcode.SEND, pair.a.region(9), 9)


def unwritable(pair: TracedPair) -> None:
    pair.b.recv(pair.b.region(8, AccessFlags.REMOTE_READ), 8)
    pair.a.send(WrOpcode.SEND, pair.a.region(8), 8)


def too_many_reads(pair: TracedPair) -> None:
    pair.b.engine.qps.table[pair.b.qp].max_dest_rd_atomic = 1
    for _ in range(2):
        pair.a.send(WrOpcode.RDMA_READ, pair.a.region(8), 8, remote=pair.b.region(8))


@pytest.mark.parametrize(
    ("break_rule", "code", "reason"),
    [
        (refused_key, "REMOTE_ACCESS_ERROR", "its key, range or permission does not hold"),
        (too_long, "INVALID_REQUEST", "it is longer than the receive posted for it"),
        (
            unwritable,
            "REMOTE_OPERATIONAL_ERROR",
            "the receive's own memory cannot be written",
        ),
        (too_many_reads, "INVALID_REQUEST", "more than 1 READs, atomics and FLUSHes at once"),
    ],
)
def test_a_refusal_names_its_reason_and_ends_both_ends(
    break_rule: Callable[[TracedPair], None], code: str, reason: str
) -> None:
    pair = TracedPair()
    break_rule(pair)
    pair.run()
    sent, received = pair.trace.only(NakSent), pair.trace.only(NakReceived)
    assert (sent.qpn, sent.code, sent.reason) == (pair.b.number, code, reason)
    assert (received.qpn, received.code) == (pair.a.number, code)
    ends = pair.trace.of(StateChange)
    assert [(e.qpn, e.after) for e in ends] == [
        (pair.b.number, QpState.ERR),
        (pair.a.number, QpState.ERR),
    ]
    assert ends[0].cause.startswith("RC_")
    assert ends[1].cause == code


def test_a_request_out_of_order_is_named_so() -> None:
    pair = TracedPair()
    first = pair.write()
    pair.to_b = lambda frames: [renamed(frame, first + 1) for frame in frames]
    pair.run()
    nak = pair.trace.only(NakSent)
    assert (nak.psn, nak.code) == (first + 1, "INVALID_REQUEST")
    assert nak.reason == "it does not follow on a WRITE"


def renamed(frame: Frame, psn: int) -> Frame:
    """The frame, a SEND instead of a WRITE when it has that PSN."""
    if psn_of(frame) != psn:
        return frame
    return reseal(bytearray((Opcode.RC_SEND_MIDDLE,)) + frame[0][1:], frame[1])


def test_memory_that_goes_while_it_is_read_is_named_so() -> None:
    pair = TracedPair()
    nbytes = 200_000
    local, remote = pair.a.region(nbytes), pair.b.region(nbytes)
    pair.a.send(WrOpcode.RDMA_READ, local, nbytes, remote=remote)
    pair.step()
    pair.b.engine.regions.deregister(remote.key)
    pair.run()
    nak = pair.trace.only(NakSent)
    assert (nak.qpn, nak.code) == (pair.b.number, "REMOTE_ACCESS_ERROR")
    assert nak.reason == "the memory of a READ being answered has gone"


def flipped(frame: Frame) -> Frame:
    return frame[0][:-1] + bytes((frame[0][-1] ^ 1,)), frame[1]


@pytest.mark.parametrize(
    ("spoil", "counter"),
    [
        (flipped, "rx_icrc_encapsulated"),
        (lambda frame: (frame[0][:15], frame[1]), "rx_runt"),
    ],
)
def test_a_dropped_packet_names_its_counter(spoil: Callable[[Frame], Frame], counter: str) -> None:
    pair = TracedPair()
    pair.write(MTU)
    pair.to_b = lambda frames: [*map(spoil, frames)]
    pair.step()
    assert pair.trace.only(Dropped).counter == counter


NO_DROPS = {
    *("rx_frames", "tx_frames", "rx_bytes", "tx_bytes", "rx_accepted"),
    *("rx_write_requests", "rx_read_requests", "rx_atomic_requests"),
    *("rx_atomic_write_requests", "rx_flush_requests"),
    # Each of these is another event, or leads to one, at this end.
    *("duplicate_request", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err"),
    *("rnr_nak_retry_err", "rnr_nak_sent", "req_remote_access_errors"),
    *("req_remote_invalid_request", "req_cqe_error", "resp_cqe_error", "retransmitted_packets"),
    # What comes with it is in UC_DROP_COUNTERS on UC, and a NAK on RC.
    "resp_local_length_error",
    "cq_overflow",  # the packet was taken; its completion is lost
    "events_lost",  # it is an event that is lost
    *("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"),
    "rp_cnp_ignored",  # a queue pair without congestion control has no use for it
}


def test_every_counter_is_known_to_mean_a_dropped_packet_or_not() -> None:
    """A new counter belongs into one of the three."""
    drops = {*DROP_COUNTERS, *UC_DROP_COUNTERS}
    assert len(drops) == len(DROP_COUNTERS) + len(UC_DROP_COUNTERS)
    assert drops & NO_DROPS == set()
    assert drops | NO_DROPS == set(COUNTER_NAMES)


def uc_pair() -> TracedPair:
    return TracedPair(kind=QpType.UC)


@pytest.mark.parametrize("index", [0, 3, PACKETS - 1])
def test_a_gap_on_uc_costs_a_message_and_is_told_once(index: int) -> None:
    pair = uc_pair()
    lost = (pair.write() + index) & 0xFFFFFF
    pair.write(MTU)
    pair.to_b = without(lambda frame: psn_of(frame) == lost)
    pair.run()
    if index == 0:
        assert pair.trace.events == [], "nobody knows that there was a message"
        return
    told = pair.trace.only(Dropped)
    assert (told.counter, told.qpn, told.psn) == ("rx_uc_gap", pair.b.number, lost + 1)


def test_what_uc_refuses_it_drops_without_a_word_to_the_peer() -> None:
    pair = uc_pair()
    pair.write(MTU, rkey=1)
    pair.run()
    assert pair.trace.only(Dropped).counter == "resp_remote_access_errors"
    assert pair.trace.of(NakSent) == []


def test_two_queue_pairs_with_the_same_peer_are_told_apart() -> None:
    """A frame names its receiver alone; here one port is given up, and another takes over."""
    pair = TracedPair()
    first, first_psn = pair.a.qp, pair.a.first_psn
    pair.write()
    pair.a.first_psn = (first_psn + 0x400000) & 0xFFFFFF
    pair.a.qp = pair.a.new_qp()
    pair.a.connect(pair.b, MTU)
    numbers = [pair.a.engine.qps.number(qp) for qp in (first, pair.a.qp)]
    assert len(set(numbers)) == 2
    pair.write()
    pair.a.transmit(pair.now)
    pair.trace.events.clear()
    pair.now += ACK_TIMEOUT_NS
    pair.a.transmit(pair.now)
    for number, psn in zip(numbers, (first_psn, pair.a.first_psn), strict=True):
        assert pair.trace.only(AckTimeout, qpn=number).psn == psn
        again = pair.trace.of(Retransmission, qpn=number)
        wanted = [(psn + i) & 0xFFFFFF for i in range(PACKETS)]
        assert [event.psn for event in again] == wanted
        assert {event.cause for event in again} == {"TIMEOUT"}


def test_refusals_to_the_same_peer_are_told_apart() -> None:
    """Two queue pairs refuse requests in the same burst, each for its own reason."""
    pair = TracedPair()
    pair.write(MTU, rkey=1)
    spare = pair.b.new_qp()
    forged = pair.a.transmit(0)[0]
    first, pair.b.qp = pair.b.qp, spare
    pair.a.first_psn = (pair.a.first_psn + 0x400000) & 0xFFFFFF
    pair.b.connect(pair.a, MTU)
    other = bytearray(forged[0])
    other[0] = Opcode.RC_RDMA_WRITE_MIDDLE
    other[5:8] = pair.b.number.to_bytes(3, "big")
    other[9:12] = pair.a.first_psn.to_bytes(3, "big")
    pair.b.receive(forged, 0)
    pair.b.receive(reseal(other, forged[1]), 0)
    pair.b.transmit(0)
    numbers = [pair.b.engine.qps.number(qp) for qp in (first, spare)]
    reasons = [pair.trace.only(NakSent, qpn=number).code for number in numbers]
    assert reasons == ["REMOTE_ACCESS_ERROR", "INVALID_REQUEST"]


def test_every_step_to_rts_and_back_is_told() -> None:
    pair = TracedPair()
    port = pair.a
    fresh = port.new_qp()
    assert [e.after for e in pair.trace.of(StateChange)] == [QpState.INIT]
    for state in (QpState.ERR, QpState.RESET):
        port.engine.qps.modify(fresh, QpAttributes(qp_state=state), QpMask.STATE)
    changes = pair.trace.of(StateChange, qpn=port.engine.qps.number(fresh))
    assert [(e.before, e.after) for e in changes] == [
        (QpState.RESET, QpState.INIT),
        (QpState.INIT, QpState.ERR),
        (QpState.ERR, QpState.RESET),
    ]
    assert {e.cause for e in changes} == {"modify"}


def test_a_modify_without_a_change_of_state_is_no_event() -> None:
    pair = TracedPair()
    attributes = QpAttributes(qp_state=QpState.RTS, qp_access_flags=int(ALL_ACCESS))
    pair.a.engine.qps.modify(pair.a.qp, attributes, QpMask.STATE | QpMask.ACCESS_FLAGS)
    assert pair.trace.events == []


def test_an_observed_engine_does_the_same() -> None:
    """Watching changes nothing: same frames, same counters, same bytes."""
    outcomes = []
    for pair in (Pair(MTU, OPTIONS), TracedPair()):
        frames: list[bytes] = []

        def keep(passing: list[Frame], kept: list[bytes] = frames) -> list[Frame]:
            kept.extend(payload for payload, _ in passing)
            return passing

        lose = without(lambda frame: psn_of(frame) % 7 == 3, times=3)
        pair.to_b = lambda passing, lose=lose, keep=keep: lose(keep(passing))  # type: ignore[misc]
        pair.to_a = keep
        local, remote = pair.a.region(20_000), pair.b.region(20_000)
        for opcode in (WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ):
            pair.a.send(opcode, local, 20_000, remote=remote)
        pair.run()
        kinds = [(frame[0], frame[9:12]) for frame in frames]
        outcomes.append((kinds, pair.a.engine.counters(), pair.b.engine.counters()))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_arrives_makes_the_tracer_raise(seed: int) -> None:
    """Loss, disorder and damage, and among it random bytes with a right ICRC for a right QP."""
    rng = random.Random(seed)
    pair = TracedPair()
    lossy = LossyChannel(seed, drop=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1)

    def channel(frames: list[Frame]) -> list[Frame]:
        forged = [
            reseal(bytearray(payload[:8] + rng.randbytes(rng.randrange(8, 60))), descriptor)
            for payload, descriptor in frames
            if rng.random() < 0.2
        ]
        renumbered = [
            reseal(bytearray((rng.randrange(256),)) + payload[1:], descriptor)
            for payload, descriptor in frames
            if rng.random() < 0.2
        ]
        return lossy(frames + forged + renumbered)

    pair.to_a = pair.to_b = channel
    local, remote = pair.a.region(NBYTES), pair.b.region(NBYTES)
    for _ in range(3):
        pair.b.recv(remote, NBYTES)
        for opcode in (WrOpcode.SEND, WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE):
            pair.a.send(opcode, local, NBYTES, remote=remote)
    pair.run()
    assert pair.trace.of(Dropped)
    assert local.guards_hold()
    assert remote.guards_hold()


def test_nobody_is_told_after_the_observer_has_gone() -> None:
    pair = TracedPair()
    for port in (pair.a, pair.b):
        port.engine.observe(None)
    pair.write(MTU, rkey=1)
    pair.run()
    assert pair.a.state == QpState.ERR
    assert pair.trace.events == []


def ended_by_overrun(pair: TracedPair, by_post: bool) -> tuple[int, int]:
    """Two queue pairs of b on a completion queue that is too small for the receives of one,
    which are flushed: numbers of that one and of the other."""
    engine, qp, other = pair.b.engine, pair.b.qp, pair.b.new_qp()
    small = engine.cqs.create(1)
    for each in (qp, other):
        engine.qps.table[each].recv_cq = small
    receives = [receive([part(pair.b.region(MTU))]) for _ in range(2)]
    to_error = (qp, QpAttributes(qp_state=QpState.ERR), QpMask.STATE)
    pair.trace.clear()
    if by_post:
        engine.qps.modify(*to_error)
    for each in receives:
        engine.qps.post_receives(qp, each)
    if not by_post:
        engine.qps.modify(*to_error)
    return engine.qps.number(qp), engine.qps.number(other)


def test_a_modify_tells_what_it_does_to_other_queue_pairs() -> None:
    pair = TracedPair()
    modified, other = ended_by_overrun(pair, by_post=False)
    changes = [(e.qpn, e.before, e.after, e.cause) for e in pair.trace.of(StateChange)]
    assert changes == [
        (modified, QpState.RTS, QpState.ERR, "modify"),
        (other, QpState.INIT, QpState.ERR, "modify"),
    ]
    pair.b.transmit(0)
    assert len(pair.trace.of(StateChange)) == len(changes)


def test_what_a_post_does_to_other_queue_pairs_is_told_with_the_next_burst() -> None:
    pair = TracedPair()
    _, other = ended_by_overrun(pair, by_post=True)
    pair.b.transmit(0)
    change = pair.trace.only(StateChange, qpn=other)
    assert (change.before, change.after, change.cause) == (QpState.INIT, QpState.ERR, "post")


def test_what_a_post_has_done_is_told_before_the_modify_that_follows() -> None:
    pair = TracedPair()
    _, number = ended_by_overrun(pair, by_post=True)
    other = number & (len(pair.b.engine.qps.table) - 1)
    pair.b.engine.qps.modify(other, QpAttributes(qp_state=QpState.RESET), QpMask.STATE)
    changes = pair.trace.of(StateChange, qpn=number)
    assert [(e.before, e.after, e.cause) for e in changes] == [
        (QpState.INIT, QpState.ERR, "post"),
        (QpState.ERR, QpState.RESET, "modify"),
    ]


def test_a_queue_pair_in_the_place_of_another_begins_in_reset() -> None:
    pair = TracedPair()
    engine, gone = pair.a.engine, pair.a.qp
    engine.qps.destroy(gone)
    pair.a.transmit(0)
    assert pair.trace.events == []
    fresh = pair.a.new_qp()
    assert fresh == gone
    change = pair.trace.only(StateChange)
    assert (change.qpn, change.before) == (engine.qps.number(fresh), QpState.RESET)
