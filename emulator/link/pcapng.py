"""The blocks of a pcapng file (draft-ietf-opsawg-pcapng), as far as a capture needs them."""

from __future__ import annotations

import struct
from enum import IntEnum

LINKTYPE_RAW = 101
"""Packets begin with an IPv4 or IPv6 header."""

_SECTION_HEADER = 0x0A0D0D0A
_INTERFACE_DESCRIPTION = 1
_ENHANCED_PACKET = 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_UNKNOWN_LENGTH = -1

_OPTION_END = 0
_OPTION_COMMENT = 1
_SHB_APPLICATION = 4
_IDB_NAME = 2
_IDB_TIME_RESOLUTION = 9
_EPB_FLAGS = 2
_NANOSECONDS = b"\x09"
"""Timestamps count 10**-9 s."""


class PacketDirection(IntEnum):
    """Bits 1 and 0 of a packet's flags."""

    INBOUND = 1
    OUTBOUND = 2


def section_header(application: str) -> bytes:
    """The start of a file."""
    body = struct.pack("<IHHq", _BYTE_ORDER_MAGIC, 1, 0, _UNKNOWN_LENGTH)
    return _block(_SECTION_HEADER, body, [(_SHB_APPLICATION, application.encode())])


def interface_description(name: str) -> bytes:
    """The interface that all packets of the file belong to; it cuts nothing off."""
    body = struct.pack("<HHI", LINKTYPE_RAW, 0, 0)
    options = [(_IDB_NAME, name.encode()), (_IDB_TIME_RESOLUTION, _NANOSECONDS)]
    return _block(_INTERFACE_DESCRIPTION, body, options)


def enhanced_packet(
    packet: bytes, at_ns: int, direction: PacketDirection, comment: str = ""
) -> bytes:
    """One packet, from its IP header on."""
    head = struct.pack(
        "<IIIII", 0, at_ns >> 32 & 0xFFFFFFFF, at_ns & 0xFFFFFFFF, len(packet), len(packet)
    )
    options = [(_EPB_FLAGS, struct.pack("<I", direction))]
    if comment:
        options.append((_OPTION_COMMENT, comment.encode()))
    return _block(_ENHANCED_PACKET, head + _padded(packet), options)


def _block(kind: int, body: bytes, options: list[tuple[int, bytes]]) -> bytes:
    """A block around a body that is a multiple of 4 bytes long."""
    for code, value in options:
        body += struct.pack("<HH", code, len(value)) + _padded(value)
    body += struct.pack("<HH", _OPTION_END, 0)
    total = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + total + body + total


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) & 3)
