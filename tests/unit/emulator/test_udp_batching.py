"""How the UDP link batches: what it finds out about the kernel, and messages where there are no
segments."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emulator.link._udp_inbox_kernels import SLOT_BYTES
from emulator.link.batching import AUTO, BATCHING, MESSAGES, SEGMENTS, choose_batching
from emulator.link.frames import IPV4_MAPPED_LOW, Burst
from emulator.link.mtu import HEADER_BYTES
from emulator.link.udp import MAX_PAYLOAD_BYTES, UdpLink
from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu
from tests.support.link_bursts import (
    burst_to,
    receive_flood_of_empty,
    receive_frames,
    wait_readable,
)

_SO_NO_CHECK = 11


@pytest.fixture
def receiver() -> Iterator[UdpLink]:
    """One that reads by ``recvmmsg``."""
    link = UdpLink("127.0.0.1", batching=MESSAGES)
    yield link
    link.close()


@contextmanager
def links(*batchings: str) -> Iterator[list[UdpLink]]:
    opened = [UdpLink("127.0.0.1", batching=batching) for batching in batchings]
    try:
        yield opened
    finally:
        for link in opened:
            link.close()


def make_refuse_segments(link: UdpLink, refuse: bool = True) -> None:
    """Linux refuses UDP_SEGMENT on sockets that send no checksum."""
    with socket.socket(fileno=os.dup(link.fileno())) as same_socket:
        same_socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, int(refuse))


def numbered(count: int, nbytes: int = 1040) -> list[bytes]:
    return [
        index.to_bytes(4, "big") + bytes((index % 251,)) * (nbytes - 4) for index in range(count)
    ]


def longest_read(link: UdpLink) -> int:
    """Bytes of the next read from its socket, which joins segments that came as one."""
    wait_readable(link)
    with socket.socket(fileno=os.dup(link.fileno())) as same_socket:
        return len(same_socket.recv(MAX_PAYLOAD_BYTES))


@pytest.mark.parametrize("batching", [AUTO, SEGMENTS])
def test_a_kernel_that_has_segments_is_used_so(batching: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        chosen = choose_batching(udp, batching)
    assert (chosen.segmentation, chosen.coalescing) == (True, True)
    assert "sends by UDP_SEGMENT, receives by UDP_GRO" in str(chosen)


def test_messages_are_used_when_asked_for() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        chosen = choose_batching(udp, MESSAGES)
    assert (chosen.segmentation, chosen.coalescing) == (False, False)
    assert str(chosen) == "sends by sendmmsg, receives by recvmmsg: messages were asked for"


def test_a_socket_without_the_options_takes_messages_and_says_why() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        chosen = choose_batching(other, AUTO)
    assert (chosen.segmentation, chosen.coalescing) == (False, False)
    assert "UDP_SEGMENT: Operation not supported; UDP_GRO: Operation not supported" in chosen.why


def test_segments_that_the_kernel_lacks_are_not_to_be_insisted_on() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        with pytest.raises(ConfigError, match="no UDP_SEGMENT and no UDP_GRO; write auto or"):
            choose_batching(other, SEGMENTS)
        with pytest.raises(ConfigError, match="one of auto, segments, messages"):
            choose_batching(other, "packets")


@pytest.mark.parametrize("batching", BATCHING)
def test_opening_says_in_one_line_what_is_in_use(
    batching: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), links(batching) as (link,):
        (message,) = caplog.messages
        assert f"127.0.0.1:{link.udp_port} sends by " in message
        assert (link.segmentation, link.coalescing) == (batching != MESSAGES,) * 2


def test_segments_that_are_refused_from_the_start_are_given_up_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    payloads = numbered(150)
    with links(AUTO, AUTO) as (sender, receiver):
        make_refuse_segments(sender)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert sender.send(burst_to(receiver, payloads, sender)) == 150
        assert receive_frames(receiver, 300) == payloads * 2
        assert (sender.segmentation, sender.lost_sending) == (False, 0)
        (message,) = caplog.messages
        assert f"127.0.0.1:{receiver.udp_port}" in message
        assert "everything goes by sendmmsg" in message


def test_segments_that_one_way_refuses_go_as_messages_there_and_as_segments_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    payloads = numbered(10)
    with links(AUTO, AUTO, AUTO) as (sender, refused, other):
        sender.send(burst_to(other, payloads, sender))
        assert receive_frames(other, 10) == payloads
        make_refuse_segments(sender)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                sender.send(burst_to(refused, payloads, sender))
        make_refuse_segments(sender, refuse=False)
        sender.send(burst_to(refused, payloads, sender))
        sender.send(burst_to(other, payloads, sender))
        assert longest_read(other) == 10 * 1040
        assert [longest_read(refused) for _ in range(30)] == [1040] * 30
        assert sender.segmentation
        (message,) = caplog.messages
        assert "what goes there goes by sendmmsg" in message


def test_a_slot_holds_the_longest_packet_there_is() -> None:
    """HEADER_BYTES counts IPv4 and UDP too, which no frame has."""
    assert Mtu.MTU_4096.nbytes + HEADER_BYTES - 28 <= SLOT_BYTES


def test_messages_go_to_several_peers_by_one_burst() -> None:
    payloads = numbered(130, 200)
    with links(MESSAGES, MESSAGES, AUTO) as (sender, one, two):
        assert sender.send(burst_to([one, two], payloads, sender)) == 130
        assert receive_frames(one, 65) == payloads[0::2]
        assert receive_frames(two, 65) == payloads[1::2]


def test_what_cannot_be_sent_is_lost_alone(receiver: UdpLink) -> None:
    payloads = [*numbered(100, 64)]
    payloads[70] = bytes(MAX_PAYLOAD_BYTES + 1)
    with links(MESSAGES) as (sender,):
        burst = burst_to(receiver, payloads, sender)
        burst.frames.dst_hi[0] = burst.frames.dst_hi[66] = 1 << 56  # an IPv6 address
        burst.frames.dst_lo[30] = IPV4_MAPPED_LOW | 0xFFFFFFFF  # broadcast, without permission
        assert sender.send(burst) == 100
        wanted = [payloads[index] for index in range(100) if index not in (0, 30, 66, 70)]
        assert receive_frames(receiver, 96) == wanted
        assert sender.lost_sending == 4


def test_what_is_longer_than_any_packet_is_lost_and_counted(receiver: UdpLink) -> None:
    sizes = [SLOT_BYTES, SLOT_BYTES + 1, 16, MAX_PAYLOAD_BYTES, 1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for size in sizes:
            stranger.sendto(bytes(size), ("127.0.0.1", receiver.udp_port))
    assert [len(frame) for frame in receive_frames(receiver, 3)] == [SLOT_BYTES, 16, 1]
    assert receiver.lost_receiving == 2


def test_empty_datagrams_use_up_the_call_and_become_no_frame(receiver: UdpLink) -> None:
    assert receive_flood_of_empty(receiver, frames=8) == [[], [], [b"end"]]


def test_bursts_of_other_sizes_may_take_turns(receiver: UdpLink) -> None:
    payloads = numbered(40, 100)
    with links(AUTO) as (sender,):
        sender.send(burst_to(receiver, payloads, sender))
    arrived = []
    for frames, arena_bytes in [(4, 1 << 16), (64, 2 * SLOT_BYTES), (64, 150), (64, 1 << 20)]:
        burst = Burst(frames, arena_bytes)
        receiver.receive(burst, 0)
        arrived.append([burst.payload(index) for index in range(burst.count)])
    assert [len(part) for part in arrived] == [4, 2, 1, 33]
    assert [frame for part in arrived for frame in part] == payloads
    assert receiver.receive(Burst(0, 0), 0) == 0


def test_a_descriptor_says_who_sent_and_how(receiver: UdpLink) -> None:
    with links(AUTO) as (sender,):
        burst = burst_to(receiver, numbered(3, 60), sender)
        burst.frames.tos[:] = [0, 2, 0xFF]
        sender.send(burst)
        wait_readable(receiver)
        arrived = Burst(8, 1 << 16)
        assert receiver.receive(arrived, 0) == 3
        assert arrived.frames.tos[:3].tolist() == [0, 2, 0xFF]
        for name in ("src_hi", "src_lo", "dst_hi", "dst_lo", "src_port", "dst_port", "ip_frag"):
            assert arrived.frames[name][:3].tolist() == burst.frames[name].tolist(), name
