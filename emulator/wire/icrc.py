"""The invariant CRC, plain (IBTA 1.7 section 7.8 and annex A17).

It covers what no router changes on the way. Fields that may change, and the local routing
header that only InfiniBand has, are taken as all ones.
"""

from __future__ import annotations

import zlib

from emulator.wire.errors import WireError, require_bytes

PSEUDO_LRH = b"\xff" * 8

IPV4_HEADER_BYTES = 20
IPV6_HEADER_BYTES = 40

_IPV4_VARIANT = (1, 8, 10, 11)
"""Offsets in the IPv4 header: type of service, time to live, both bytes of the checksum."""
_IPV6_VARIANT = (1, 2, 3, 7)
"""Offsets in the IPv6 header: traffic class, flow label, hop limit (and half of byte 0)."""
_UDP_CHECKSUM = (6, 7)
_BTH_CONGESTION = 4


def icrc(ip_udp: bytes, bth_onwards: bytes) -> int:
    """The ICRC of a packet as a number; it is sent little-endian.

    ``ip_udp`` are the IPv4 or IPv6 header and the UDP header, whose length fields already
    count the 4 bytes of the ICRC. A GRH alone, without UDP, gives the ICRC of RoCEv1.
    ``bth_onwards`` goes from the BTH to the last pad byte.
    """
    require_bytes(ip_udp, IPV4_HEADER_BYTES, "an IP header")
    require_bytes(bth_onwards, _BTH_CONGESTION + 1, "a BTH")
    header = bytearray(ip_udp)
    version = header[0] >> 4
    if version == 4:
        ip_bytes, variant = IPV4_HEADER_BYTES, _IPV4_VARIANT
    elif version == 6:
        ip_bytes, variant = IPV6_HEADER_BYTES, _IPV6_VARIANT
        header[0] |= 0x0F
    else:
        raise WireError(f"IP version {version} has no ICRC")
    for offset in variant:
        header[offset] = 0xFF
    if len(header) > ip_bytes:
        for offset in _UDP_CHECKSUM:
            header[ip_bytes + offset] = 0xFF
    rest = bytearray(bth_onwards)
    rest[_BTH_CONGESTION] = 0xFF
    return zlib.crc32(PSEUDO_LRH + header + rest)
