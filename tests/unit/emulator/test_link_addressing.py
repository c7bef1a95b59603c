"""Addressing of the UDP link: which GIDs and ports frames carry for which sockets."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network

import pytest

from emulator.link.addressing import MappedAddressing, VirtualAddressing
from emulator.link.frames import Burst
from emulator.link.gid import gid_halves, gid_of_halves
from emulator.link.udp import UdpLink
from emulator.roce.engine import RoceEngine
from kvlane.limits import ROCE_V2_UDP_PORT
from tests.support.link_bursts import burst_to, receive_once, wait_readable

UNIQUE_LOCAL = IPv6Network("fd00::/8")
ADDRESS = ("127.0.0.1", 40001)

Pair = tuple[UdpLink, UdpLink]


@pytest.fixture
def pair() -> Iterator[Pair]:
    links = [UdpLink("127.0.0.1", addressing=VirtualAddressing()) for _ in range(2)]
    yield links[0], links[1]
    for link in links:
        link.close()


def gid_of(address: tuple[str, int]) -> bytes:
    return gid_of_halves(*VirtualAddressing().endpoint(address)[:2])


def test_a_virtual_gid_is_a_unique_local_address_that_carries_the_socket() -> None:
    gid = IPv6Address(gid_of(ADDRESS))
    assert gid in UNIQUE_LOCAL
    assert gid.exploded == "fd6b:766c:616e:0000:9c41:0000:7f00:0001"


@pytest.mark.parametrize("port", [1, 0x7FFF, 0x8000, 0xC000, 0xFFFF])
def test_a_virtual_gid_leads_back_to_its_socket(port: int) -> None:
    address = ("192.168.250.3", port)
    endpoint = VirtualAddressing().endpoint(address)
    found = VirtualAddressing().socket_address(*endpoint[:2], ROCE_V2_UDP_PORT)
    assert found == address


def test_sockets_of_one_host_have_different_gids() -> None:
    assert len({gid_of(("127.0.0.1", port)) for port in range(1, 0x10000, 7)}) == 9363


def test_no_virtual_gid_ends_like_an_empty_table_entry() -> None:
    assert gid_of(("0.0.0.1", 1))[8:] != bytes(8)


def test_virtual_frames_have_the_ports_of_rocev2() -> None:
    for port in (1, 0x3FFF, 0x4000, 0xFFFF):
        endpoint = VirtualAddressing().endpoint(("127.0.0.1", port))
        assert endpoint.udp_port == ROCE_V2_UDP_PORT
        assert 0xC000 <= endpoint.source_port <= 0xFFFF


@pytest.mark.parametrize(
    ("gid", "port"),
    [
        (gid_of(ADDRESS), ROCE_V2_UDP_PORT + 1),
        (bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]), ROCE_V2_UDP_PORT),
        (IPv6Address("fe80::1").packed, ROCE_V2_UDP_PORT),
        (gid_of(ADDRESS)[:8] + bytes(4) + bytes([127, 0, 0, 1]), ROCE_V2_UDP_PORT),
        (gid_of(ADDRESS)[:10] + b"\0\1" + gid_of(ADDRESS)[12:], ROCE_V2_UDP_PORT),
    ],
    ids=["another port", "IPv4", "foreign IPv6", "no port", "other bits set"],
)
def test_what_names_no_socket_goes_nowhere(gid: bytes, port: int) -> None:
    assert VirtualAddressing().socket_address(*gid_halves(gid), port) is None


def test_mapped_addressing_is_the_default_and_tells_the_truth() -> None:
    link = UdpLink("127.0.0.1")
    try:
        endpoint = MappedAddressing().endpoint(("127.0.0.1", link.udp_port))
        assert link.gid == gid_of_halves(*endpoint[:2])
        assert IPv6Address(link.gid).ipv4_mapped is not None
        assert link.source_port == link.udp_port
    finally:
        link.close()


def test_descriptors_name_both_ends_by_their_virtual_addresses(pair: Pair) -> None:
    sender, receiver = pair
    assert sender.send(burst_to(receiver, [b"x" * 60], sender)) == 1
    wait_readable(receiver)
    burst = Burst(8, 1 << 16)
    assert receiver.receive(burst, 0) == 1
    frame = burst.frames[0]
    assert gid_of_halves(frame.src_hi, frame.src_lo) == sender.gid
    assert gid_of_halves(frame.dst_hi, frame.dst_lo) == receiver.gid
    assert (frame.src_port, frame.dst_port) == (sender.source_port, ROCE_V2_UDP_PORT)


def test_frames_find_their_way_among_several_links_of_one_host(pair: Pair) -> None:
    sender, receiver = pair
    third = UdpLink("127.0.0.1", addressing=VirtualAddressing())
    try:
        sender.send(burst_to([receiver, third], [b"to the second", b"to the third!"], sender))
        for link, payload in ((receiver, b"to the second"), (third, b"to the third!")):
            wait_readable(link)
            assert receive_once(link) == [payload]
    finally:
        third.close()


def test_a_frame_for_nobody_is_lost_and_counted(pair: Pair) -> None:
    sender, receiver = pair
    burst = burst_to(receiver, [b"x" * 60], sender)
    burst.frames.dst_port[0] = ROCE_V2_UDP_PORT + 1
    assert sender.send(burst) == 1
    assert sender.lost_sending == 1


def test_a_stray_datagram_is_counted_and_nothing_else(pair: Pair) -> None:
    """Any program may send to the socket below; its ICRC cannot fit the virtual headers."""
    _, receiver = pair
    engine = RoceEngine(
        gid=receiver.gid,
        source_port=receiver.source_port,
        window_bytes=1 << 20,
        rng=random.Random(1),
    )
    target = VirtualAddressing().socket_address(*gid_halves(receiver.gid), ROCE_V2_UDP_PORT)
    assert target is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"hello" * 20, target)
        wait_readable(receiver)
    burst = Burst(8, 1 << 16)
    receiver.receive(burst, 0)
    engine.receive(burst, 0)
    assert engine.counters()["rx_icrc_encapsulated"] == 1
