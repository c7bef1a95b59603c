"""Headers of the raw link: written as the plain twin and scapy write them, and read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from emulator.link._ethernet_kernels import (
    ETHERNET_BYTES,
    MAX_HEADER_BYTES,
    NOT_ROCE,
    put_headers,
    source_mac,
    take_headers,
)
from emulator.link.frames import FRAME
from emulator.wire.ip import emit_headers, emit_packet
from kvlane.limits import ROCE_V2_UDP_PORT
from tests.support.frame_strategies import frames, new_frame

OURS, THEIRS = 0x02_00_00_00_00_AA, 0xFE_DC_BA_98_76_54
ETHERTYPES = {4: b"\x08\x00", 6: b"\x86\xdd"}
V4 = new_frame("::ffff:192.0.2.1", "::ffff:192.0.2.2", src_port=50000, dst_port=4791, length=36)
V6 = new_frame("2001:db8::1", "2001:db8::2", src_port=50000, dst_port=4791, length=36)
macs = st.integers(0, (1 << 48) - 1)


def emitted(frame: Any, payload_bytes: int, source: int = OURS, destination: int = THEIRS) -> bytes:
    """Ethernet, IP and UDP headers by the kernel."""
    described = frame.copy()
    described.length = payload_bytes
    out = np.zeros(MAX_HEADER_BYTES, np.uint8)
    written = put_headers(described, int(out.ctypes.data), source, destination)
    return out[:written].tobytes()


def parsed(packet: bytes) -> tuple[Any, int]:
    """Descriptor and place of the BTH by the kernel."""
    data = np.frombuffer(packet or b"\0", np.uint8).copy()
    frame = np.zeros(1, FRAME).view(np.recarray)[0]
    return frame, take_headers(frame, int(data.ctypes.data), len(packet))


@given(frames(), st.integers(0, 4200), macs, macs)
def test_headers_are_those_of_the_plain_twin(
    frame: Any, payload_bytes: int, source: int, destination: int
) -> None:
    ip_and_udp = emit_headers(frame, payload_bytes)
    ethernet = destination.to_bytes(6, "big") + source.to_bytes(6, "big")
    ethernet += ETHERTYPES[ip_and_udp[0] >> 4]
    assert emitted(frame, payload_bytes, source, destination) == ethernet + ip_and_udp


@given(frames(), st.binary(max_size=100), st.binary(max_size=30), macs)
def test_what_is_sent_is_read_back(frame: Any, payload: bytes, padding: bytes, mac: int) -> None:
    frame.dst_port = ROCE_V2_UDP_PORT
    packet = emitted(frame, len(payload), source=mac) + payload
    found, start = parsed(packet + padding)
    expected = frame.copy()
    expected.length = len(payload)
    assert found == expected
    assert packet[start:] == payload
    data = np.frombuffer(packet, np.uint8)
    assert source_mac(int(data.ctypes.data)) == mac


@settings(max_examples=40, deadline=None)
@given(frame=frames(), words=st.integers(0, 40))
def test_scapy_reads_the_same(frame: Any, words: int) -> None:
    payload = bytes(range(4 * words))
    packet = Ether(emitted(frame, len(payload)) + payload)
    assert (packet.src, packet.dst) == ("02:00:00:00:00:aa", "fe:dc:ba:98:76:54")
    network = packet[IP] if IP in packet else packet[IPv6]
    udp = network[UDP]
    assert (udp.sport, udp.dport, udp.chksum) == (frame.src_port, frame.dst_port, 0)
    assert udp.len == 8 + len(payload)
    if IP in packet:
        assert (network.tos, network.id, network.ttl) == (frame.tos, frame.ip_id, 64)
        assert (int(network.flags) << 13, network.len) == (frame.ip_frag, 28 + len(payload))
        sent = network.chksum
        del network.chksum
        assert IP(bytes(network)).chksum == sent
    else:
        assert (network.tc, network.fl, network.hlim) == (frame.tos, frame.flow_label, 64)
        assert network.plen == 8 + len(payload)


def changed(packet: bytes, offset: int, value: int) -> bytes:
    """A packet with one byte of IP or UDP header changed, and its IPv4 checksum made right."""
    data = bytearray(packet)
    data[ETHERNET_BYTES + offset] = value
    if data[12] == 0x08 and offset not in (10, 11):
        data[24:26] = b"\0\0"
        total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(14, 34, 2))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        data[24:26] = (total ^ 0xFFFF).to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("frame", "offset", "value"),
    [
        pytest.param(V4, 0, 0x46, id="options"),
        pytest.param(V4, 0, 0x55, id="version"),
        pytest.param(V4, 6, 0x20, id="more fragments"),
        pytest.param(V4, 7, 0x01, id="fragment offset"),
        pytest.param(V4, 9, 6, id="tcp"),
        pytest.param(V4, 10, 0x77, id="checksum"),
        pytest.param(V4, 3, 0xFF, id="longer than the frame"),
        pytest.param(V4, 3, 27, id="no room for udp"),
        pytest.param(V4, 25, 45, id="udp length"),
        pytest.param(V4, 23, 0, id="other port"),
        pytest.param(V6, 0, 0x40, id="ipv6: version"),
        pytest.param(V6, 5, 0xFF, id="ipv6: longer than the frame"),
        pytest.param(V6, 6, 0, id="ipv6: extension header"),
        pytest.param(V6, 45, 45, id="ipv6: udp length"),
        pytest.param(V6, 43, 0, id="ipv6: other port"),
    ],
)
def test_what_is_no_whole_roce_packet_is_refused(frame: Any, offset: int, value: int) -> None:
    packet = emitted(frame, 36) + bytes(36)
    assert parsed(packet)[1] != NOT_ROCE
    assert parsed(changed(packet, offset, value))[1] == NOT_ROCE


def test_ipv6_with_ipv4_mapped_addresses_is_refused() -> None:
    packet = bytearray(emitted(V6, 36) + bytes(36))
    for start in (22, 38):
        mapped = packet.copy()
        mapped[start : start + 16] = bytes(10) + b"\xff\xff\x0a\0\0\1"
        assert parsed(bytes(mapped))[1] == NOT_ROCE


@pytest.mark.parametrize("frame", [V4, V6], ids=["ipv4", "ipv6"])
def test_every_truncation_is_refused(frame: Any) -> None:
    packet = emitted(frame, 36) + bytes(36)
    assert packet[ETHERNET_BYTES:] == emit_packet(frame, bytes(36))
    for length in range(len(packet)):
        assert parsed(packet[:length])[1] == NOT_ROCE


def test_other_protocols_are_refused() -> None:
    packet = emitted(V4, 36) + bytes(36)
    assert parsed(packet[:12] + b"\x08\x06" + packet[14:])[1] == NOT_ROCE
