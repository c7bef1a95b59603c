"""The in-process link: frames and descriptors unchanged, in order, with back-pressure."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from emulator.link.frames import Burst
from emulator.link.memory import MemoryLink, memory_link_pair
from tests.support.link_bursts import burst_to, descriptor_to, receive_frames, receive_once

Pair = tuple[MemoryLink, MemoryLink]


@pytest.fixture
def pair() -> Iterator[Pair]:
    links = memory_link_pair(capacity_frames=8)
    yield links
    for link in links:
        link.close()


def is_readable(link: MemoryLink) -> bool:
    poller = select.poll()
    poller.register(link.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def test_both_directions_in_order(pair: Pair) -> None:
    a, b = pair
    payloads = [b"one", b"two", b"three"]
    assert a.send(burst_to(b, payloads, a)) == 3
    assert b.send(burst_to(a, [b"back"], b)) == 1
    assert receive_frames(b, 3) == payloads
    assert receive_frames(a, 1) == [b"back"]


def test_descriptors_travel_with_the_frames(pair: Pair) -> None:
    a, b = pair
    sent = Burst(2, 100)
    for tos in (1, 2):
        descriptor = descriptor_to(a, b)
        descriptor.tos = tos
        sent.append(b"frame", descriptor)
    a.send(sent)
    burst = Burst(4, 100)
    b.receive(burst, 0)
    assert burst.frames[:2].tolist() == sent.frames.tolist()


def test_a_frame_longer_than_the_burst_is_lost_and_counted(pair: Pair) -> None:
    a, b = pair
    a.send(burst_to(b, [bytes(101), b"end"], a))
    burst = Burst(4, 100)
    assert b.receive(burst, 0) == 1
    assert burst.payload(0) == b"end"
    assert b.counters() == {"link_lost_receiving": 1}


def test_the_sender_may_reuse_its_burst(pair: Pair) -> None:
    a, b = pair
    sent = burst_to(b, [b"first"], a)
    a.send(sent)
    sent.arena[:] = 0
    sent.frames.tos[:] = 9
    burst = Burst(4, 100)
    assert b.receive(burst, 0) == 1
    assert burst.payload(0) == b"first"
    assert burst.frames.tos[0] == 0


def test_a_full_queue_accepts_a_prefix(pair: Pair) -> None:
    a, b = pair
    payloads = [bytes((number,)) for number in range(11)]
    assert a.send(burst_to(b, payloads, a)) == 8
    assert a.send(burst_to(b, payloads, a)) == 0
    assert receive_frames(b, 8) == payloads[:8]
    assert a.send(burst_to(b, payloads[8:], a)) == 3


def test_readable_exactly_while_frames_wait(pair: Pair) -> None:
    a, b = pair
    assert not is_readable(b)
    a.send(burst_to(b, [b"1", b"2", b"3"], a))
    assert is_readable(b)
    assert receive_once(b, frames=2) == [b"1", b"2"]
    assert is_readable(b)
    assert receive_once(b, frames=2) == [b"3"]
    assert not is_readable(b)


def test_a_frame_larger_than_any_burst_does_not_block_the_others(pair: Pair) -> None:
    a, b = pair
    a.send(burst_to(b, [bytes(200), b"small"], a))
    burst = Burst(4, 100)
    assert b.receive(burst, 0) == 1
    assert burst.payload(0) == b"small"


def test_closed_ends(pair: Pair) -> None:
    a, b = pair
    a.send(burst_to(b, [b"unread"], a))
    b.close()
    assert receive_once(b) == []
    assert b.fileno() == -1
    assert a.send(burst_to(b, [b"lost"], a)) == 1
