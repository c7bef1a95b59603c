"""Injected faults: as often as planned, the same for the same seed, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from emulator.link.damage import MAX_TRAILING_BYTES
from emulator.link.faults import HOLD_NS, MAX_OVERTAKING_FRAMES, FaultLink, FaultPlan
from emulator.link.frames import Burst
from emulator.link.memory import MemoryLink, memory_link_pair
from kvlane.errors import ConfigError
from tests.support.link_bursts import burst_to, receive_once

FRAMES = 4000
PAYLOADS = [number.to_bytes(4, "big") * 4 for number in range(FRAMES)]
MS = 1_000_000


class Line:
    """A faulty end ``a`` and a plain end ``b``; both directions, frames delivered in bursts."""

    def __init__(self, plan: FaultPlan, seed: int = 1, capacity_frames: int = 2 * FRAMES) -> None:
        below, self.b = memory_link_pair(capacity_frames)
        self.a = FaultLink(below, plan, random.Random(seed))

    def outward(self, payloads: list[bytes], batch: int = 50) -> list[bytes]:
        """Send from a to b until everything that was accepted has come out."""
        arrived: list[bytes] = []
        for start in range(0, len(payloads), batch):
            part = payloads[start : start + batch]
            assert self.a.send(burst_to(self.b, part, self.a)) == len(part)
            arrived += receive_once(self.b)
        self.a.receive(Burst(1, 64), HOLD_NS)
        return arrived + receive_once(self.b)

    def inward(self, payloads: list[bytes], batch: int = 50) -> list[bytes]:
        """Send from b to a until everything has come out."""
        arrived: list[bytes] = []
        for start in range(0, len(payloads), batch):
            part = payloads[start : start + batch]
            assert self.b.send(burst_to(self.a, part, self.b)) == len(part)
            arrived += drain(self.a, 0)
        return arrived + drain(self.a, HOLD_NS)

    def close(self) -> None:
        """Both ends."""
        self.a.close()
        self.b.close()


OpenLine = Callable[..., Line]


@pytest.fixture
def open_line() -> Iterator[OpenLine]:
    """``Line``, whose descriptors are given back after the test."""
    opened: list[Line] = []

    def open_one(plan: FaultPlan, seed: int = 1, capacity_frames: int = 2 * FRAMES) -> Line:
        opened.append(Line(plan, seed, capacity_frames))
        return opened[-1]

    yield open_one
    for line in opened:
        line.close()
        assert (line.a.fileno(), line.b.fileno()) == (-1, -1)


def drain(link: FaultLink | MemoryLink, now: int) -> list[bytes]:
    arrived: list[bytes] = []
    while some := receive_once(link, now):
        arrived += some
    return arrived


both_ways = pytest.mark.parametrize("way", ["outward", "inward"])


@both_ways
def test_without_faults_nothing_changes(way: str, open_line: OpenLine) -> None:
    line = open_line(FaultPlan())
    assert getattr(line, way)(PAYLOADS) == PAYLOADS
    assert set(line.a.injected.values()) == {0}
    assert line.a.next_release(0) is None


@both_ways
def test_drop(way: str, open_line: OpenLine) -> None:
    line = open_line(FaultPlan(drop=0.1))
    arrived = getattr(line, way)(PAYLOADS)
    assert 0.07 * FRAMES < line.a.injected["drop"] < 0.13 * FRAMES
    assert len(arrived) == FRAMES - line.a.injected["drop"]
    assert arrived == sorted(arrived)
    assert len(set(arrived)) == len(arrived)


@both_ways
def test_duplicate(way: str, open_line: OpenLine) -> None:
    line = open_line(FaultPlan(duplicate=0.1))
    arrived = getattr(line, way)(PAYLOADS)
    copies = Counter(arrived)
    assert sorted(copies) == PAYLOADS
    assert Counter(copies.values())[2] == line.a.injected["duplicate"]
    assert 0.07 * FRAMES < line.a.injected["duplicate"] < 0.13 * FRAMES
    assert arrived == sorted(arrived)


@both_ways
def test_reorder(way: str, open_line: OpenLine) -> None:
    line = open_line(FaultPlan(reorder=0.1))
    arrived = getattr(line, way)(PAYLOADS)
    assert sorted(arrived) == PAYLOADS
    place = {payload: index for index, payload in enumerate(arrived)}
    overtaken = sum(place[left] > place[right] for left, right in pairwise(PAYLOADS))
    assert 0.07 * FRAMES < line.a.injected["reorder"] < 0.13 * FRAMES
    assert overtaken > line.a.injected["reorder"] / 2
    # Others may be held meanwhile, so a frame can move by more than it is overtaken by.
    late = max(place[payload] - index for index, payload in enumerate(PAYLOADS))
    assert 1 <= late <= 3 * MAX_OVERTAKING_FRAMES


@both_ways
def test_corrupt_spoils_as_many_frames_as_it_says(way: str, open_line: OpenLine) -> None:
    line = open_line(FaultPlan(corrupt=0.1))
    arrived = getattr(line, way)(PAYLOADS)
    assert len(arrived) == FRAMES
    spoilt = sum(sent != got for sent, got in zip(PAYLOADS, arrived, strict=True))
    assert spoilt == line.a.injected["corrupt"]
    assert 0.07 * FRAMES < spoilt < 0.13 * FRAMES
    assert {len(got) for got in arrived} == set(range(1, 16 + MAX_TRAILING_BYTES + 1))


def test_a_frame_that_garbage_makes_longer_than_the_burst_still_leaves(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(corrupt=1.0))
    for _ in range(50):
        assert line.a.send(burst_to(line.b, [bytes(100)], line.a)) == 1
    lengths = {len(payload) for payload in receive_once(line.b)}
    assert max(lengths) > 100
    assert line.a.next_release(0) is None


@pytest.mark.parametrize(
    ("codepoint", "is_marked"),
    [(0b00, False), (0b01, True), (0b10, True), (0b11, True)],
    ids=["not ECT", "ECT(1)", "ECT(0)", "CE"],
)
def test_only_frames_that_heed_marks_are_marked(
    codepoint: int, is_marked: bool, open_line: OpenLine
) -> None:
    """RFC 3168 section 5: others would have to be dropped instead."""
    line = open_line(FaultPlan(ecn=1.0))
    sent = burst_to(line.b, PAYLOADS[:10], line.a)
    sent.frames.tos[:10] = 40 << 2 | codepoint
    assert line.a.send(sent) == 10
    arrived = Burst(10, 1 << 10)
    assert line.b.receive(arrived, 0) == 10
    expected = 40 << 2 | (0b11 if is_marked else codepoint)
    assert set(arrived.frames.tos.tolist()) == {expected}
    assert line.a.injected["ecn"] == 10 * is_marked
    assert set(sent.frames.tos.tolist()) == {40 << 2 | codepoint}


@both_ways
def test_a_plan_without_marks_draws_nothing_for_them(way: str, open_line: OpenLine) -> None:
    """So a seed from before there were marks still gives the same faults."""
    plain, marking = open_line(FaultPlan(drop=0.1)), open_line(FaultPlan(drop=0.1, ecn=0.5))
    assert getattr(marking, way)(PAYLOADS) == getattr(plain, way)(PAYLOADS)


ALL_FAULTS = FaultPlan(drop=0.05, duplicate=0.05, reorder=0.05, corrupt=0.05)


@both_ways
def test_the_seed_decides(way: str, open_line: OpenLine) -> None:
    first, same, other = (open_line(ALL_FAULTS, seed) for seed in (7, 7, 8))
    arrived = getattr(first, way)(PAYLOADS)
    assert getattr(same, way)(PAYLOADS) == arrived
    assert same.a.injected == first.a.injected
    assert getattr(other, way)(PAYLOADS) != arrived


@pytest.mark.parametrize("batch", [1, 7, 50])
def test_how_frames_are_batched_does_not_matter(batch: int, open_line: OpenLine) -> None:
    assert open_line(ALL_FAULTS).outward(PAYLOADS, batch) == open_line(ALL_FAULTS).outward(
        PAYLOADS, 100
    )


@both_ways
def test_every_frame_is_accounted_for(way: str, open_line: OpenLine) -> None:
    line = open_line(ALL_FAULTS)
    arrived = getattr(line, way)(PAYLOADS)
    injected = line.a.injected
    assert len(arrived) == FRAMES - injected["drop"] + injected["duplicate"]


def test_a_link_below_that_takes_little_costs_no_frame(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(duplicate=0.5, reorder=0.3), capacity_frames=3)
    waiting = PAYLOADS[:300]
    arrived: list[bytes] = []
    while waiting:
        accepted = line.a.send(burst_to(line.b, waiting[:20], line.a))
        assert accepted in (0, len(waiting[:20]))
        waiting = waiting[accepted:]
        arrived += receive_once(line.b)
    while line.a.next_release(HOLD_NS) is not None:
        line.a.receive(Burst(1, 64), HOLD_NS)
        arrived += receive_once(line.b)
    assert set(arrived) == set(PAYLOADS[:300])
    assert len(arrived) == 300 + line.a.injected["duplicate"]


def test_back_pressure_from_below_reaches_the_sender(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(), capacity_frames=3)
    assert line.a.send(burst_to(line.b, PAYLOADS[:5], line.a)) == 5
    assert line.a.send(burst_to(line.b, PAYLOADS[5:10], line.a)) == 0
    assert line.a.next_release(7) == 7
    assert receive_once(line.b) == PAYLOADS[:3]
    assert line.a.send(burst_to(line.b, PAYLOADS[5:10], line.a)) == 5
    assert receive_once(line.b) == [*PAYLOADS[3:6]]


def test_nothing_more_is_read_while_frames_wait_to_be_delivered(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(duplicate=1.0), capacity_frames=8)
    assert line.b.send(burst_to(line.a, PAYLOADS[:8], line.b)) == 8
    assert len(receive_once(line.a, frames=3)) == 3
    assert len(receive_once(line.a, frames=3)) == 3
    assert line.b.send(burst_to(line.a, PAYLOADS[:8], line.b)) == 3


def test_a_small_burst_above_costs_no_frame(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(duplicate=1.0))
    line.b.send(burst_to(line.a, PAYLOADS[:10], line.b))
    arrived: list[bytes] = []
    while some := receive_once(line.a, frames=3):
        assert len(some) <= 3
        arrived += some
    assert arrived == [payload for payload in PAYLOADS[:10] for _ in range(2)]


def test_a_held_frame_comes_after_a_while_though_no_other_does(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(reorder=1.0))
    line.b.send(burst_to(line.a, [b"lonely"], line.b))
    assert receive_once(line.a, now=MS) == []
    assert line.a.next_release(MS) == MS + HOLD_NS
    assert receive_once(line.a, now=MS + HOLD_NS - 1) == []
    assert receive_once(line.a, now=MS + HOLD_NS) == [b"lonely"]
    assert line.a.next_release(MS + HOLD_NS) is None


def test_a_frame_held_outward_is_sent_by_a_later_receive(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(reorder=1.0))
    line.a.send(burst_to(line.b, [b"lonely"], line.a))
    assert receive_once(line.b) == []
    assert line.a.next_release(0) == HOLD_NS
    receive_once(line.a, now=HOLD_NS)
    assert receive_once(line.b) == [b"lonely"]


def test_frames_held_from_larger_bursts_survive_smaller_ones(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(reorder=1.0))
    line.a.send(burst_to(line.b, [bytes(5000)], line.a))
    line.a.send(burst_to(line.b, [b"tiny"], line.a))
    receive_once(line.a, now=HOLD_NS)
    assert receive_once(line.b) == [bytes(5000), b"tiny"]


def test_what_is_longer_than_a_burst_is_counted_wherever_it_is_lost(open_line: OpenLine) -> None:
    """The first one comes up to this link and no further, the second not so far."""
    line = open_line(FaultPlan())
    line.b.send(burst_to(line.a, [bytes(80), b"short", bytes(120), b"end"], line.b))
    arrived: list[bytes] = []
    for _ in range(4):
        burst = Burst(8, 64)
        line.a.receive(burst, 0)
        arrived += [burst.payload(index) for index in range(burst.count)]
    assert arrived == [b"short", b"end"]
    assert line.a.counters()["link_lost_receiving"] == 2
    assert line.a.lost_receiving == 1


def test_delay_keeps_the_order(open_line: OpenLine) -> None:
    line = open_line(FaultPlan(delay_ms=2.5))
    line.b.send(burst_to(line.a, PAYLOADS[:3], line.b))
    assert receive_once(line.a, now=10 * MS) == []
    line.b.send(burst_to(line.a, PAYLOADS[3:5], line.b))
    assert receive_once(line.a, now=11 * MS) == []
    assert line.a.next_release(11 * MS) == 12_500_000
    assert receive_once(line.a, now=12_500_000) == PAYLOADS[:3]
    assert receive_once(line.a, now=13_500_000) == PAYLOADS[3:5]


def test_addresses_are_those_of_the_link_below() -> None:
    below, other = memory_link_pair()
    link = FaultLink(below, FaultPlan(), random.Random(1))
    assert (link.gid, link.udp_port, link.source_port) == (below.gid, 4791, 0)
    assert link.receive_window_bytes == below.receive_window_bytes
    assert link.fileno() == below.fileno()
    link.close()
    assert below.fileno() == -1
    other.close()


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", FaultPlan()),
        ("drop=0.01,dup=0.02,reorder=0.03", FaultPlan(0.01, 0.02, 0.03)),
        (" corrupt = 1 , delay_ms=2.5 ,", FaultPlan(corrupt=1.0, delay_ms=2.5)),
    ],
)
def test_plans_as_text(text: str, plan: FaultPlan) -> None:
    assert FaultPlan.parse(text) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("loss=0.1", "'loss' is unknown; one of drop, dup, reorder, corrupt, ecn, delay_ms"),
        ("drop", "'drop' has no number"),
        ("drop=often", "'drop=often' has no number"),
        ("drop=0.1,drop=0.2", "given twice"),
        ("drop=1.5", "no probability"),
        ("dup=-0.1", "no probability"),
        ("reorder=nan", "no probability"),
        ("delay_ms=-1", "no time"),
        ("delay_ms=inf", "no time"),
        ("delay_ms=nan", "no time"),
    ],
)
def test_plans_that_cannot_be(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        FaultPlan.parse(text)
