"""IP and UDP headers from descriptors and back; what is no RoCEv2 carrier is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from emulator.link.gid import gid_halves
from emulator.wire import ip
from emulator.wire.errors import WireError
from tests.support.frame_strategies import frames, new_frame

V4 = new_frame(
    src="::ffff:192.168.0.7",
    dst="::ffff:192.168.0.7",
    src_port=49152,
    dst_port=4791,
    tos=1,
    ip_id=1144,
    ip_frag=0x4000,
)
V4_HEADERS = bytes.fromhex("45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002c0000")
V6 = new_frame(
    src="2022::1023",
    dst="2023::1024",
    src_port=49152,
    dst_port=4791,
    tos=226,
    flow_label=0x1FACE,
)
PAYLOAD = bytes(range(36))


def test_construct_ipv4() -> None:
    assert ip.emit_headers(V4, 36) == V4_HEADERS
    assert ip.emit_packet(V4, PAYLOAD) == V4_HEADERS + PAYLOAD


def test_deconstruct_ipv4() -> None:
    frame, payload = ip.parse_packet(V4_HEADERS + PAYLOAD)
    expected = V4.copy()
    expected["length"] = 36
    assert frame == expected
    assert payload == PAYLOAD


def test_construct_ipv6() -> None:
    headers = bytes.fromhex(
        "6e21face 002c11 40 20220000000000000000000000001023 20230000000000000000000000001024"
        "c00012b7 002c0000"
    )
    assert ip.emit_packet(V6, PAYLOAD) == headers + PAYLOAD


@given(frames())
def test_packets_give_their_descriptor_back(frame: Any) -> None:
    parsed, payload = ip.parse_packet(ip.emit_packet(frame, PAYLOAD))
    expected = frame.copy()
    expected["length"] = len(PAYLOAD)
    assert parsed == expected
    assert payload == PAYLOAD


def test_ethernet_padding_is_ignored() -> None:
    assert ip.parse_packet(V4_HEADERS + PAYLOAD + bytes(9))[1] == PAYLOAD


@pytest.mark.parametrize("frame", [V4, V6], ids=["ipv4", "ipv6"])
def test_every_truncation_is_refused(frame: Any) -> None:
    packet = ip.emit_packet(frame, PAYLOAD)
    for length in range(len(packet)):
        with pytest.raises(WireError):
            ip.parse_packet(packet[:length])


def resealed(header: bytes) -> bytes:
    """The IPv4 header with a right checksum again."""
    blank = header[:10] + b"\0\0" + header[12:20]
    return blank[:10] + ip.internet_checksum(blank).to_bytes(2, "big") + blank[12:] + header[20:]


@pytest.mark.parametrize(
    ("offset", "value", "text"),
    [
        (0, 0x46, "options"),
        (0, 0x55, "version is 5"),
        (6, 0x20, "fragment"),
        (7, 0x01, "fragment"),
        (9, 6, "not UDP"),
        (25, 0x2D, "UDP length"),
        (3, 0x3F, "UDP length"),
        (3, 0x13, "UDP header"),
    ],
)
def test_ipv4_that_carries_no_datagram(offset: int, value: int, text: str) -> None:
    header = bytearray(V4_HEADERS)
    header[offset] = value
    with pytest.raises(WireError, match=text):
        ip.parse_packet(resealed(bytes(header)) + PAYLOAD)


def test_wrong_ipv4_checksum() -> None:
    with pytest.raises(WireError, match="checksum"):
        ip.parse_packet(V4_HEADERS[:8] + b"\x3f" + V4_HEADERS[9:] + PAYLOAD)


def test_ipv6_with_an_ipv4_mapped_address() -> None:
    packet = bytearray(ip.emit_packet(V6, PAYLOAD))
    packet[24:40] = bytes(10) + b"\xff\xff\x0a\0\0\1"
    with pytest.raises(WireError, match="mapped"):
        ip.parse_packet(bytes(packet))


def test_payload_that_no_packet_holds() -> None:
    with pytest.raises(WireError, match="do not fit"):
        ip.emit_headers(V4, 65508)
    assert len(ip.emit_headers(V4, 65507)) == 28


def test_checksum_of_an_odd_number_of_bytes() -> None:
    assert ip.internet_checksum(b"\x01") == 0xFEFF


def test_gid_halves_need_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        gid_halves(b"\0" * 15)
    assert np.int64(gid_halves(b"\xff" * 16)[0]) == -1
