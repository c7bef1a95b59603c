"""The UDP link over real sockets: order, grouping, and whatever a peer or a user throws at it."""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from emulator.link.batching import MESSAGES, SEGMENTS
from emulator.link.frames import IPV4_MAPPED_LOW, Burst
from emulator.link.gid import gid_halves
from emulator.link.udp import MAX_PAYLOAD_BYTES, UdpLink
from emulator.wire.errors import WireError
from emulator.wire.ip import parse_packet
from kvlane.errors import ConfigError
from tests.support.link_bursts import (
    PATIENCE_MS,
    burst_to,
    receive_flood_of_empty,
    receive_frames,
    receive_once,
    wait_readable,
)
from tests.support.requirements import lacking

Pair = tuple[UdpLink, UdpLink]
_SO_NO_CHECK = 11
SETTLE_S = 0.02


@pytest.fixture(params=[SEGMENTS, MESSAGES])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two links; the sender sends segments or messages, the receiver has them coalesced."""
    sender = UdpLink("127.0.0.1", batching=request.param)
    receiver = UdpLink("127.0.0.1")
    yield sender, receiver
    sender.close()
    receiver.close()


def numbered(sizes: list[int]) -> list[bytes]:
    """Payloads of these sizes, each with its own content."""
    return [
        index.to_bytes(4, "big") + bytes((index % 251,)) * (size - 4)
        for index, size in enumerate(sizes)
    ]


def test_one_frame_and_its_descriptor(pair: Pair) -> None:
    sender, receiver = pair
    assert sender.send(burst_to(receiver, [b"x" * 60], sender)) == 1
    wait_readable(receiver)
    burst = Burst(1024, 1 << 20)
    assert receiver.receive(burst, 0) == 1
    assert burst.payload(0) == b"x" * 60
    frame = burst.frames[0]
    assert (frame.src_hi, frame.src_lo) == (0, IPV4_MAPPED_LOW | 0x7F000001)
    assert (frame.dst_hi, frame.dst_lo) == gid_halves(receiver.gid)
    assert (frame.src_port, frame.dst_port) == (sender.source_port, receiver.udp_port)
    assert (frame.tos, frame.ip_id, frame.ip_frag, frame.flow_label) == (0, 0, 0x4000, 0)


def captured(wire: socket.socket, port: int) -> tuple[Any, bytes]:
    """The next datagram to that port; the interface is shared with everybody else."""
    while True:
        with suppress(WireError):
            frame, payload = parse_packet(wire.recv(MAX_PAYLOAD_BYTES))
            if frame.dst_port == port:
                return frame, payload


def test_descriptors_tell_what_the_ip_header_says() -> None:
    """The ICRC covers the header, which a UDP socket does not show; a packet socket does."""
    try:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    except PermissionError:
        lacking("a packet socket needs CAP_NET_RAW; run the tests as root, or allow it")
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    with wire:
        wire.bind(("lo", 0x0800))
        wire.settimeout(PATIENCE_MS / 1000)
        for payload in numbered([64, 64]):
            sender.send(burst_to(receiver, [payload], sender))
            wait_readable(receiver)
            burst = Burst(256, 1 << 20)
            receiver.receive(burst, 0)
            header, seen = captured(wire, receiver.udp_port)
            assert seen == burst.payload(0)
            assert header == burst.frames[0]
    sender.close()
    receiver.close()


@pytest.mark.parametrize(
    "sizes",
    [
        [1040] * 10,
        [1040] * 10 + [200],
        [1040] * 64,
        [1040] * 65,
        [1040] * 63 + [999],
        [1040] * 64 + [999],
        [4116] * 15 + [4000],
        [4116] * 40 + [100, 100, 100],
        [16, 1040, 16, 1040, 1040, 16],
        [100, 90, 80, 70, 70, 60],
        [20] * 300,
        [MAX_PAYLOAD_BYTES, 16, MAX_PAYLOAD_BYTES],
        [32753, 32753, 32754, 32754],
        [60000, 5507, 60000, 5508],
    ],
    ids=str,
)
def test_frames_arrive_as_they_were_sent(pair: Pair, sizes: list[int]) -> None:
    sender, receiver = pair
    payloads = numbered(sizes)
    assert sender.send(burst_to(receiver, payloads, sender)) == len(payloads)
    assert receive_frames(receiver, len(payloads)) == payloads
    assert sender.lost_sending == 0
    assert receiver.lost_receiving == 0


def test_many_frames_keep_their_order(pair: Pair) -> None:
    sender, receiver = pair
    payloads = numbered(list(islice(cycle([1040, 1040, 1040, 300, 16, 4116]), 3000)))
    arrived = []
    for start in range(0, len(payloads), 150):
        batch = payloads[start : start + 150]
        assert sender.send(burst_to(receiver, batch, sender)) == len(batch)
        arrived += receive_frames(receiver, len(batch))
    assert arrived == payloads


def test_every_frame_keeps_its_type_of_service(pair: Pair) -> None:
    """Runs of equal frames travel as one call, which has one type of service."""
    sender, receiver = pair
    payloads = numbered([500] * 60)
    burst = burst_to(receiver, payloads, sender)
    wanted = [0] * 20 + [2] * 10 + [3] * 10 + [48 << 2 | 2, 0] * 5 + [0xFF] * 10
    burst.frames.tos[:] = wanted
    assert sender.send(burst) == 60
    arrived: list[tuple[bytes, int]] = []
    while len(arrived) < 60:
        wait_readable(receiver)
        some = Burst(1024, 1 << 20)
        for index in range(receiver.receive(some, 0)):
            arrived.append((some.payload(index), int(some.frames.tos[index])))
    assert arrived == list(zip(payloads, wanted, strict=True))


def test_two_destinations_each_get_their_own(pair: Pair) -> None:
    sender, receiver = pair
    other = UdpLink("127.0.0.1")
    try:
        payloads = numbered([500] * 40)
        assert sender.send(burst_to([receiver, other], payloads, sender)) == 40
        assert receive_frames(receiver, 20) == payloads[0::2]
        assert receive_frames(other, 20) == payloads[1::2]
    finally:
        other.close()


def test_frames_that_do_not_touch_in_the_arena(pair: Pair) -> None:
    sender, receiver = pair
    payloads = numbered([256] * 6)
    burst = burst_to(receiver, payloads, sender)
    order = np.array([0, 1, 4, 5, 2, 3])
    burst.frames[:] = burst.frames[order].copy()
    assert sender.send(burst) == 6
    assert receive_frames(receiver, 6) == [payloads[index] for index in order]


def test_two_senders_are_told_apart(pair: Pair) -> None:
    sender, receiver = pair
    other = UdpLink("127.0.0.1")
    try:
        for link in (sender, other):
            link.send(burst_to(receiver, numbered([700] * 5), link))
        ports: list[int] = []
        while len(ports) < 10:
            wait_readable(receiver)
            burst = Burst(1024, 1 << 20)
            receiver.receive(burst, 0)
            ports += burst.frames.src_port[: burst.count].tolist()
        assert ports == [sender.udp_port] * 5 + [other.udp_port] * 5
    finally:
        other.close()


def test_garbage_is_delivered_or_ignored_and_never_raises() -> None:
    receiver = UdpLink("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        garbage = [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", bytes(3), b"\xff" * MAX_PAYLOAD_BYTES]
        for payload in [*garbage, b"end"]:
            stranger.sendto(payload, ("127.0.0.1", receiver.udp_port))
        # The empty datagram has no byte that a descriptor could point to.
        assert receive_frames(receiver, 5) == [*garbage[1:], b"end"]
    receiver.close()


def test_a_kernel_that_refuses_to_segment_is_found_out_and_nothing_is_lost() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    # Linux refuses UDP_SEGMENT on sockets that send no checksum.
    with socket.socket(fileno=os.dup(sender.fileno())) as same_socket:
        same_socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
    assert sender.segmentation
    payloads = numbered([1040] * 20 + [30])
    assert sender.send(burst_to(receiver, payloads, sender)) == 21
    assert receive_frames(receiver, 21) == payloads
    assert not sender.segmentation
    assert sender.lost_sending == 0
    sender.close()
    receiver.close()


def test_a_refusal_after_a_success_changes_nothing_for_other_peers() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    payloads = numbered([1040] * 5)
    sender.send(burst_to(receiver, payloads, sender))
    with socket.socket(fileno=os.dup(sender.fileno())) as same_socket:
        same_socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
    sender.send(burst_to(receiver, payloads, sender))
    assert receive_frames(receiver, 10) == payloads * 2
    assert sender.segmentation
    sender.close()
    receiver.close()


def test_a_call_carries_no_more_segments_than_every_kernel_takes() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    sender.send(burst_to(receiver, numbered([100] * 64 + [50]), sender))
    wait_readable(receiver)
    with socket.socket(fileno=os.dup(receiver.fileno())) as same_socket:
        assert len(same_socket.recv(MAX_PAYLOAD_BYTES)) <= 64 * 100
    sender.close()
    receiver.close()


def test_single_frames_prove_nothing_about_segmentation() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    sender.send(burst_to(receiver, [b"one"], sender))
    assert sender.segmentation
    sender.close()
    receiver.close()


def test_what_cannot_be_sent_is_lost_and_the_rest_is_sent(pair: Pair) -> None:
    sender, receiver = pair
    payloads = numbered([64, 64, 64, MAX_PAYLOAD_BYTES + 1, 64, 64])
    burst = burst_to(receiver, payloads, sender)
    burst.frames.dst_hi[1] = 1 << 56  # an IPv6 address
    burst.frames.dst_port[4] = 0
    assert sender.send(burst) == 6
    assert receive_frames(receiver, 3) == [payloads[0], payloads[2], payloads[5]]
    assert sender.lost_sending == 3
    assert sender.counters() == {"link_lost_sending": 3, "link_lost_receiving": 0}


def test_the_first_frame_that_is_too_long_is_told_with_what_to_do(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = pair
    burst = burst_to(receiver, numbered([MAX_PAYLOAD_BYTES + 1] * 3), sender)
    with caplog.at_level(logging.WARNING):
        sender.send(burst)
        sender.send(burst)
    assert sender.lost_sending == 6
    (message,) = caplog.messages
    assert f"packets with {MAX_PAYLOAD_BYTES + 1} bytes" in message
    assert "127.0.0.1" in message
    assert "mtu_bytes" in message


def test_losses_of_other_kinds_are_counted_and_not_told(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = pair
    burst = burst_to(receiver, numbered([64]), sender)
    burst.frames.dst_lo[0] = IPV4_MAPPED_LOW | 0xFFFFFFFF  # broadcast, which needs permission
    sender.send(burst)
    assert sender.lost_sending == 1
    assert caplog.messages == []


def fill_up(tcp: socket.socket) -> None:
    """Send until nothing is taken any more, nor after acknowledgements had time to come in."""
    refusals_in_a_row = 0
    while refusals_in_a_row < 5:
        try:
            tcp.send(bytes(1 << 16))
            refusals_in_a_row = 0
        except BlockingIOError:
            refusals_in_a_row += 1
            select.select([], [], [], SETTLE_S)


def test_a_full_socket_ends_the_burst_and_what_it_did_not_take_goes_later(pair: Pair) -> None:
    """Loopback never fills a UDP socket, so for a while a TCP socket that is full has its place:
    it takes no notice of the peer's name, and its errors are as real."""
    sender, receiver = pair
    payloads = numbered([64] * 6)
    burst = burst_to(receiver, payloads, sender)
    burst.frames.dst_port[1] = 0  # lost, full or not
    burst.frames.dst_port[0] = 0
    udp = os.dup(sender.fileno())
    with socket.create_server(("127.0.0.1", 0)) as server:
        full = socket.create_connection(server.getsockname())
        full.setblocking(False)
        fill_up(full)
        os.dup2(full.fileno(), sender.fileno())
        assert sender.send(burst) == 2
        assert sender.lost_sending == 2
        os.dup2(udp, sender.fileno())
        full.close()
    os.close(udp)
    burst.frames[:4] = burst.frames[2:6].copy()
    burst.count = 4
    assert sender.send(burst) == 4
    assert receive_frames(receiver, 4) == payloads[2:]
    assert sender.lost_sending == 2


def test_a_flood_of_empty_datagrams_does_not_keep_the_receiver() -> None:
    receiver = UdpLink("127.0.0.1")
    assert receive_flood_of_empty(receiver, frames=8) == [[], [], [b"end"]]
    receiver.close()


def test_a_peer_that_is_gone_is_a_loss_and_no_error(pair: Pair) -> None:
    sender, receiver = pair
    burst = burst_to(receiver, numbered([64] * 4), sender)
    receiver.close()
    assert [sender.send(burst) for _ in range(3)] == [4, 4, 4]
    assert receive_once(sender) == []


def test_a_burst_that_is_too_small_loses_frames_and_says_so() -> None:
    sender, receiver = UdpLink("127.0.0.1", batching=MESSAGES), UdpLink("127.0.0.1")
    sender.send(burst_to(receiver, numbered([3000, 40]), sender))
    wait_readable(receiver)
    burst = Burst(8, 1000)
    receiver.receive(burst, 0)
    if not burst.count:
        wait_readable(receiver)
        receiver.receive(burst, 0)
    assert burst.payload(0) == numbered([3000, 40])[1]
    assert receiver.lost_receiving == 1
    sender.close()
    receiver.close()


def test_a_coalesced_read_that_is_cut_loses_all_its_frames_and_counts_them() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    sender.send(burst_to(receiver, numbered([1000] * 20 + [300]), sender))
    wait_readable(receiver)
    delivered = receiver.receive(Burst(64, 5000), 0)
    assert (delivered, receiver.lost_receiving) == (0, 21)
    sender.close()
    receiver.close()


def test_more_segments_than_descriptors() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    payloads = numbered([40] * 20)
    sender.send(burst_to(receiver, payloads, sender))
    wait_readable(receiver)
    burst = Burst(8, 1 << 20)
    assert receiver.receive(burst, 0) == 8
    assert [burst.payload(index) for index in range(8)] == payloads[:8]
    assert receiver.lost_receiving == 12
    sender.close()
    receiver.close()


def test_coalesced_reads_are_left_for_a_burst_that_holds_them() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1")
    payloads = numbered([100] * 192)
    sender.send(burst_to(receiver, payloads, sender))
    assert receive_frames(receiver, 192, frames=150) == payloads
    assert receiver.lost_receiving == 0
    sender.close()
    receiver.close()


def test_a_full_burst_leaves_the_rest_for_the_next() -> None:
    sender = UdpLink("127.0.0.1", batching=MESSAGES)
    receiver = UdpLink("127.0.0.1", batching=MESSAGES)
    payloads = numbered([100] * 20)
    sender.send(burst_to(receiver, payloads, sender))
    wait_readable(receiver)
    first = receive_once(receiver, frames=8)
    assert 0 < len(first) <= 8
    rest = receive_frames(receiver, 20 - len(first), frames=8)
    assert first + rest == payloads
    sender.close()
    receiver.close()


def test_nothing_to_send_and_nothing_to_receive(pair: Pair) -> None:
    sender, receiver = pair
    assert sender.send(Burst(4, 64)) == 0
    assert receive_once(receiver) == []


def test_after_close_nothing_comes_and_nothing_raises(pair: Pair) -> None:
    sender, receiver = pair
    sender.send(burst_to(receiver, [b"late"], sender))
    receiver.close()
    assert receiver.fileno() == -1
    assert receive_once(receiver) == []


def test_window_fits_the_buffer_that_was_granted() -> None:
    link = UdpLink("127.0.0.1", buffer_bytes=300_000)
    with socket.socket(fileno=os.dup(link.fileno())) as same_socket:
        granted = same_socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert 0 < link.receive_window_bytes <= granted / 2
    assert link.gid == bytes(10) + b"\xff\xff\x7f\0\0\1"
    link.close()


def test_a_window_of_frames_sent_at_once_is_not_lost() -> None:
    sender, receiver = UdpLink("127.0.0.1"), UdpLink("127.0.0.1", buffer_bytes=1 << 20)
    payloads = numbered([4116] * (receiver.receive_window_bytes // 4116))
    assert sender.send(burst_to(receiver, payloads, sender)) == len(payloads)
    assert receive_frames(receiver, len(payloads)) == payloads
    sender.close()
    receiver.close()


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("0.0.0.0", 0, "stands for every address"),
        ("localhost", 0, "no IPv4 address"),
        ("::1", 0, "no IPv4 address"),
        ("127.0.0.1", 65536, "not in 0..65535"),
        ("127.0.0.1", -1, "not in 0..65535"),
        ("192.0.2.77", 0, "no interface"),
    ],
)
def test_addresses_that_cannot_be_used(host: str, port: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        UdpLink(host, port)


def test_a_port_that_is_taken() -> None:
    first = UdpLink("127.0.0.1")
    with pytest.raises(ConfigError, match="another process has it"):
        UdpLink("127.0.0.1", first.udp_port)
    first.close()
