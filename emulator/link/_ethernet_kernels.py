"""RoCEv2 in Ethernet: from a frame descriptor to headers, and from headers to a descriptor.

The plain twin is ``emulator.wire.ip``: what is written here is what ``emit_headers`` gives,
and what ``parse_packet`` refuses is refused here.
"""

from __future__ import annotations

from typing import Any

from emulator.wire._byte_kernels import get_be, get_be64, put_be
from emulator.wire.icrc import IPV4_HEADER_BYTES, IPV6_HEADER_BYTES
from emulator.wire.ip import HOP_LIMIT, PROTOCOL_UDP, UDP_HEADER_BYTES
from kvlane.jit import kernel
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.rawmem import bytes_at

ETHERNET_BYTES = 14
MAC_BYTES = 6
MAX_HEADER_BYTES = ETHERNET_BYTES + IPV6_HEADER_BYTES + UDP_HEADER_BYTES
ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
NOT_ROCE = 0
"""``take_headers`` of anything that is no whole RoCEv2 packet."""

_IPV4_START = ETHERNET_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES
_IPV6_START = MAX_HEADER_BYTES
_FRAGMENT = 0x3FFF
"""More-fragments flag and offset."""


@kernel
def is_ipv4_gid(hi: int, lo: int) -> bool:
    """True when the halves are those of an IPv4 address."""
    return bool(hi == 0 and lo >> 32 == 0xFFFF)


@kernel
def _ones_complement(address: int, nbytes: int) -> int:
    """The checksum of RFC 1071 over an even number of bytes."""
    data = bytes_at(address, nbytes)
    total = 0
    for i in range(0, nbytes, 2):
        total += (int(data[i]) << 8) | int(data[i + 1])
    while total >> 16 != 0:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total ^ 0xFFFF)


@kernel
def _put_ipv4(at: int, frame: Any, udp_length: int) -> None:
    put_be(at, 0x4500 | (frame.tos & 0xFF), 2)
    put_be(at + 2, IPV4_HEADER_BYTES + udp_length, 2)
    put_be(at + 4, frame.ip_id, 2)
    put_be(at + 6, frame.ip_frag, 2)
    put_be(at + 8, (HOP_LIMIT << 8) | PROTOCOL_UDP, 2)
    put_be(at + 10, 0, 2)
    put_be(at + 12, frame.src_lo, 4)
    put_be(at + 16, frame.dst_lo, 4)
    put_be(at + 10, _ones_complement(at, IPV4_HEADER_BYTES), 2)


@kernel
def _put_ipv6(at: int, frame: Any, udp_length: int) -> None:
    put_be(at, (6 << 28) | ((frame.tos & 0xFF) << 20) | (frame.flow_label & 0xFFFFF), 4)
    put_be(at + 4, udp_length, 2)
    put_be(at + 6, (PROTOCOL_UDP << 8) | HOP_LIMIT, 2)
    put_be(at + 8, frame.src_hi, 8)
    put_be(at + 16, frame.src_lo, 8)
    put_be(at + 24, frame.dst_hi, 8)
    put_be(at + 32, frame.dst_lo, 8)


@kernel
def put_headers(frame: Any, address: int, source_mac: int, destination_mac: int) -> int:
    """Write Ethernet, IP and UDP headers of a frame; return how many bytes they are.

    There is room for ``MAX_HEADER_BYTES`` at ``address``; MACs are 48-bit numbers. The UDP
    checksum is 0 over IPv4 and IPv6, as soft-RoCE sends it: the ICRC covers more.
    """
    put_be(address, destination_mac, MAC_BYTES)
    put_be(address + MAC_BYTES, source_mac, MAC_BYTES)
    udp_length = UDP_HEADER_BYTES + frame.length
    if is_ipv4_gid(frame.dst_hi, frame.dst_lo):
        put_be(address + 2 * MAC_BYTES, ETHERTYPE_IPV4, 2)
        _put_ipv4(address + ETHERNET_BYTES, frame, udp_length)
        header_bytes = _IPV4_START
    else:
        put_be(address + 2 * MAC_BYTES, ETHERTYPE_IPV6, 2)
        _put_ipv6(address + ETHERNET_BYTES, frame, udp_length)
        header_bytes = _IPV6_START
    at = address + header_bytes - UDP_HEADER_BYTES
    put_be(at, frame.src_port, 2)
    put_be(at + 2, frame.dst_port, 2)
    put_be(at + 4, udp_length, 2)
    put_be(at + 6, 0, 2)
    return int(header_bytes)


@kernel
def _take_ipv4(frame: Any, at: int, nbytes: int) -> int:
    """Length of what the IP header at ``at`` carries, or -1; ``nbytes`` follow there."""
    if nbytes < IPV4_HEADER_BYTES + UDP_HEADER_BYTES or get_be(at, 1) != 0x45:
        return -1
    total = get_be(at + 2, 2)
    frag = get_be(at + 6, 2)
    if (
        total > nbytes
        or (frag & _FRAGMENT) != 0
        or get_be(at + 9, 1) != PROTOCOL_UDP
        or _ones_complement(at, IPV4_HEADER_BYTES) != 0
    ):
        return -1
    frame.tos = get_be(at + 1, 1)
    frame.ip_id = get_be(at + 4, 2)
    frame.ip_frag = frag
    frame.flow_label = 0
    frame.src_hi = 0
    frame.src_lo = (0xFFFF << 32) | get_be(at + 12, 4)
    frame.dst_hi = 0
    frame.dst_lo = (0xFFFF << 32) | get_be(at + 16, 4)
    return int(total - IPV4_HEADER_BYTES)


@kernel
def _take_ipv6(frame: Any, at: int, nbytes: int) -> int:
    """Length of what the IP header at ``at`` carries, or -1; ``nbytes`` follow there."""
    if nbytes < IPV6_HEADER_BYTES + UDP_HEADER_BYTES or get_be(at, 1) >> 4 != 6:
        return -1
    length = get_be(at + 4, 2)
    if length > nbytes - IPV6_HEADER_BYTES or get_be(at + 6, 1) != PROTOCOL_UDP:
        return -1
    first = get_be(at, 4)
    frame.tos = (first >> 20) & 0xFF
    frame.ip_id = 0
    frame.ip_frag = 0
    frame.flow_label = first & 0xFFFFF
    frame.src_hi = get_be64(at + 8)
    frame.src_lo = get_be64(at + 16)
    frame.dst_hi = get_be64(at + 24)
    frame.dst_lo = get_be64(at + 32)
    # An IPv4-mapped address in an IPv6 header would be taken for IPv4.
    mapped = is_ipv4_gid(frame.dst_hi, frame.dst_lo) or is_ipv4_gid(frame.src_hi, frame.src_lo)
    return -1 if mapped else int(length)


@kernel
def take_headers(frame: Any, address: int, nbytes: int) -> int:
    """Read the headers of ``nbytes`` at ``address`` into a descriptor; where its BTH begins.

    ``NOT_ROCE`` for anything but a whole datagram to port 4791; the descriptor is then
    undefined. ``offset`` is left as it is. What follows the datagram is Ethernet's padding.
    """
    if nbytes < ETHERNET_BYTES:
        return NOT_ROCE
    ethertype = get_be(address + 2 * MAC_BYTES, 2)
    if ethertype == ETHERTYPE_IPV4:
        length = _take_ipv4(frame, address + ETHERNET_BYTES, nbytes - ETHERNET_BYTES)
        start = _IPV4_START
    elif ethertype == ETHERTYPE_IPV6:
        length = _take_ipv6(frame, address + ETHERNET_BYTES, nbytes - ETHERNET_BYTES)
        start = _IPV6_START
    else:
        return NOT_ROCE
    at = address + start - UDP_HEADER_BYTES
    if (
        length < UDP_HEADER_BYTES
        or get_be(at + 4, 2) != length
        or get_be(at + 2, 2) != ROCE_V2_UDP_PORT
    ):
        return NOT_ROCE
    frame.src_port = get_be(at, 2)
    frame.dst_port = ROCE_V2_UDP_PORT
    frame.length = length - UDP_HEADER_BYTES
    return int(start)


@kernel
def source_mac(address: int) -> int:
    """Who sent an Ethernet frame, as a 48-bit number."""
    return get_be(address + MAC_BYTES, MAC_BYTES)
