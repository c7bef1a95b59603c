"""Property: what the UDP link sends as messages arrives as it was sent, in order."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from emulator.link.batching import BATCHING, MESSAGES
from emulator.link.frames import Burst
from emulator.link.udp import UdpLink
from tests.support.link_bursts import burst_to, wait_readable

_LONGEST = 4132
_FRAMES = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([1, 16, 1040, 4116, _LONGEST]), st.integers(1, _LONGEST)),
        st.sampled_from([0, 0, 0, 2, 0xFF]),
    ),
    min_size=1,
    max_size=150,
)
"""Length and type of service."""
_ARENA_BYTES = 150 * _LONGEST


def _burst(frames: list[tuple[int, int]], sender: UdpLink, receiver: UdpLink) -> Burst:
    payloads = [
        bytes((index + byte) % 251 for byte in range(min(length, 8))).ljust(length, b"\xa5")
        for index, (length, _) in enumerate(frames)
    ]
    burst = burst_to(receiver, payloads, sender)
    burst.frames.tos[:] = [tos for _, tos in frames]
    return burst


def _payloads(burst: Burst) -> list[bytes]:
    return [burst.payload(index) for index in range(burst.count)]


@given(_FRAMES, st.sampled_from(BATCHING), st.integers(1, 80))
def test_frames_arrive_as_they_were_sent(
    frames: list[tuple[int, int]], receiving: str, max_frames: int
) -> None:
    sender = UdpLink("127.0.0.1", batching=MESSAGES)
    receiver = UdpLink("127.0.0.1", batching=receiving)
    burst = _burst(frames, sender, receiver)
    assert sender.send(burst) == len(frames)
    arrived: list[tuple[bytes, int]] = []
    while len(arrived) < len(frames):
        wait_readable(receiver)
        some = Burst(max_frames, _ARENA_BYTES)
        receiver.receive(some, 0)
        arrived += zip(_payloads(some), some.frames.tos[: some.count].tolist(), strict=True)
    assert arrived == list(zip(_payloads(burst), (tos for _, tos in frames), strict=True))
    assert sender.lost_sending == receiver.lost_receiving == 0
    sender.close()
    receiver.close()


@contextmanager
def _narrow(link: UdpLink) -> Iterator[socket.socket]:
    """The other end of a pair of which one end has the place of the link's socket.

    Loopback never fills a UDP socket. This pair keeps messages whole and in order too, takes no
    notice of names, and is full when some ten messages have not been read.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    udp = os.dup(link.fileno())
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        os.dup2(near.fileno(), link.fileno())
        yield far
    os.dup2(udp, link.fileno())
    os.close(udp)


def _read(far: socket.socket, count: int) -> list[bytes]:
    """Up to so many messages, of those that are there."""
    messages: list[bytes] = []
    while len(messages) < count:
        try:
            messages.append(far.recv(_LONGEST))
        except BlockingIOError:
            break
    return messages


@given(_FRAMES, st.lists(st.integers(1, 20), min_size=1))
def test_a_socket_that_is_full_in_the_middle_takes_the_rest_later(
    frames: list[tuple[int, int]], reads: list[int]
) -> None:
    sender = UdpLink("127.0.0.1", batching=MESSAGES)
    burst = _burst(frames, sender, sender)
    wanted, arrived = _payloads(burst), []
    with _narrow(sender) as far:
        turn = 0
        while burst.count:
            sent = sender.send(burst)
            left = burst.count - sent
            burst.frames[:left] = burst.frames[sent : burst.count].copy()
            burst.count = left
            arrived += _read(far, reads[turn % len(reads)])
            turn += 1
        arrived += _read(far, len(frames))
    assert arrived == wanted
    assert sender.lost_sending == 0
    sender.close()
