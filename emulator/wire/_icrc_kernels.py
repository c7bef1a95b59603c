"""The invariant CRC from a frame descriptor (IBTA 1.7 section 7.8 and annex A17).

The plain twin is ``emulator.wire.icrc.icrc`` over ``emulator.wire.ip.emit_headers``.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from emulator.wire.icrc import IPV4_HEADER_BYTES, PSEUDO_LRH
from kvlane._crc_shift_kernels import moved_on
from kvlane.jit import kernel
from kvlane.rawmem import crc32, record_accessor

ENTRIES = 64
"""Kinds of frames whose share of the ICRC is kept; a power of two."""
_HEADER_WORDS = 10
UNKNOWN = -1

_BTH_BYTES = 12
_ICRC_BYTES = 4
_PAD_UNIT = 4
"""What is not a multiple of it long is padded, and the ICRC covers the pad."""
_UDP_BYTES = 8

# Records are unaligned on purpose: a frame may begin anywhere in its arena.
_BTH = np.dtype([("head", "<i4"), ("tail", "<i8")])
_IPV4 = np.dtype(
    [
        ("version_to_fragment", "<i8"),
        ("ttl_to_source", "<i8"),
        ("destination_to_ports", "<i8"),
        ("udp_length_and_checksum", "<i4"),
        ("bth_head", "<i4"),
        ("bth_tail", "<i8"),
    ]
)
_IPV6 = np.dtype(
    [
        ("version_to_hop_limit", "<i8"),
        ("source_hi", "<i8"),
        ("source_lo", "<i8"),
        ("destination_hi", "<i8"),
        ("destination_lo", "<i8"),
        ("ports_to_checksum", "<i8"),
        ("bth_head", "<i4"),
        ("bth_tail", "<i8"),
    ]
)

_ENTRY = np.dtype(
    [
        ("length", "i8"),  # 0: nothing is kept here
        ("src_hi", "i8"),
        ("src_lo", "i8"),
        ("dst_hi", "i8"),
        ("dst_lo", "i8"),
        ("ports", "i8"),
        ("ip_words", "i8"),
        ("congestion", "i8"),  # the BTH's byte 4
        ("known", "i8"),  # whether the share is
        ("share", "i8"),
    ]
)
ICRC_WORK = np.dtype(
    [
        ("headers", "i8", (_HEADER_WORDS,)),
        ("plain", "i8"),  # CRC-32 of the last frame as it lies, from the BTH on; or UNKNOWN
        ("entries", _ENTRY, (ENTRIES,)),
    ]
)
"""What ``frame_icrc`` works in: one that is zeroed, for as long as frames come."""

_IPV4_BYTES = _IPV4.itemsize
_IPV6_BYTES = _IPV6.itemsize

_bth_at = record_accessor(_BTH)
_ipv4_at = record_accessor(_IPV4)
_ipv6_at = record_accessor(_IPV6)
_entry_at = record_accessor(_ENTRY)
_work_at = record_accessor(ICRC_WORK)

_ENTRIES_AT = (_HEADER_WORDS + 1) * 8

_SEED = zlib.crc32(PSEUDO_LRH)
_CONGESTION_MASK = 0xFF
"""The BTH's byte 4 is the lowest of ``tail``."""


def _pattern(unsigned: int) -> int:
    """A 64-bit pattern as the signed number with the same bits."""
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


# Version, type of service (variant); time to live (variant), UDP, checksum (variant).
_IPV4_WORD_0 = 0x45FF_0000_0000_0000
_IPV4_WORD_1 = _pattern(0xFF11_FFFF_0000_0000)
# Version, traffic class and flow label (variant), UDP, hop limit (variant).
_IPV6_WORD_0 = 0x6FFF_FFFF_0000_11FF
_CHECKSUM = 0xFFFF
_CHECKSUM_HIGH = -0x10000
"""The checksum's ones as the upper half of a little-endian, signed 32-bit word."""


@kernel
def _network_order(value: int) -> Any:
    """Swap the bytes of a 64-bit word."""
    v = np.int64(value)
    return (
        ((v & 0xFF) << 56)
        | ((v & 0xFF00) << 40)
        | ((v & 0xFF0000) << 24)
        | ((v & 0xFF000000) << 8)
        | ((v >> 8) & 0xFF000000)
        | ((v >> 24) & 0xFF0000)
        | ((v >> 40) & 0xFF00)
        | ((v >> 56) & 0xFF)
    )


@kernel
def _put_ipv4(frame: Any, bth: Any, udp_length: int, headers: int) -> int:
    out = _ipv4_at(headers, 0)
    total = np.int64(udp_length + IPV4_HEADER_BYTES)
    out.version_to_fragment = _network_order(
        _IPV4_WORD_0 | total << 32 | frame.ip_id << 16 | frame.ip_frag
    )
    out.ttl_to_source = _network_order(_IPV4_WORD_1 | (frame.src_lo & 0xFFFFFFFF))
    out.destination_to_ports = _network_order(
        frame.dst_lo << 32 | frame.src_port << 16 | frame.dst_port
    )
    swapped_length = (udp_length & 0xFF) << 8 | udp_length >> 8
    out.udp_length_and_checksum = _CHECKSUM_HIGH | swapped_length
    out.bth_head = bth.head
    out.bth_tail = bth.tail | _CONGESTION_MASK
    return _IPV4_BYTES


@kernel
def _put_ipv6(frame: Any, bth: Any, udp_length: int, headers: int) -> int:
    out = _ipv6_at(headers, 0)
    length = np.int64(udp_length)
    out.version_to_hop_limit = _network_order(_IPV6_WORD_0 | length << 16)
    out.source_hi = _network_order(frame.src_hi)
    out.source_lo = _network_order(frame.src_lo)
    out.destination_hi = _network_order(frame.dst_hi)
    out.destination_lo = _network_order(frame.dst_lo)
    out.ports_to_checksum = _network_order(
        frame.src_port << 48 | frame.dst_port << 32 | length << 16 | _CHECKSUM
    )
    out.bth_head = bth.head
    out.bth_tail = bth.tail | _CONGESTION_MASK
    return _IPV6_BYTES


@kernel
def _whole_icrc(frame: Any, bth_address: int, length: int, headers: int) -> int:
    """The ICRC by its definition: pseudo headers, then what they do not mask."""
    bth = _bth_at(bth_address, 0)
    udp_length = length + _ICRC_BYTES + _UDP_BYTES
    if frame.dst_hi == 0 and frame.dst_lo >> 32 == 0xFFFF:
        header_bytes = _put_ipv4(frame, bth, udp_length, headers)
    else:
        header_bytes = _put_ipv6(frame, bth, udp_length, headers)
    crc = crc32(_SEED, headers, header_bytes)
    return crc32(crc, bth_address + _BTH_BYTES, length - _BTH_BYTES)


@kernel
def _is_for(entry: Any, frame: Any, ports: int, ip_words: int, congestion: int) -> bool:
    """Whether an entry, whose length fits, is for such frames."""
    return bool(
        entry.src_lo == frame.src_lo
        and entry.dst_lo == frame.dst_lo
        and entry.ports == ports
        and entry.congestion == congestion
        and entry.ip_words == ip_words
        and entry.src_hi == frame.src_hi
        and entry.dst_hi == frame.dst_hi
    )


@kernel
def frame_icrc(frame: Any, bth_address: int, length: int, work: int) -> int:
    """The ICRC of a frame, 0 to 2**32 - 1; it is stored little-endian.

    ``frame`` is a ``FRAME`` record, of which ``offset`` and ``length`` are not read;
    ``length`` counts the bytes from the BTH (12 at least) to the last pad byte, without the
    ICRC; ``work`` is the address of an ``ICRC_WORK``.

    A CRC is linear: what the pseudo headers and the masked byte add to the CRC of the bytes as
    they lie is the same for all frames of one length between the same ends. That share is kept
    from the second such frame on. So a frame costs one pass over its bytes and no store: headers
    that are written and read back at once would wait for all earlier stores, the copy of the
    last payload above all.
    """
    ports = frame.src_port << 16 | frame.dst_port
    ip_words = frame.ip_id << 16 | frame.ip_frag
    congestion = _bth_at(bth_address, 0).tail & _CONGESTION_MASK
    index = (length >> 2 ^ frame.src_lo ^ frame.dst_lo ^ ports) & (ENTRIES - 1)
    entry = _entry_at(work + _ENTRIES_AT, index)
    if entry.length != length or not _is_for(entry, frame, ports, ip_words, congestion):
        entry.length = length
        entry.src_hi, entry.src_lo = frame.src_hi, frame.src_lo
        entry.dst_hi, entry.dst_lo = frame.dst_hi, frame.dst_lo
        entry.ports, entry.ip_words, entry.congestion = ports, ip_words, congestion
        entry.known = 0
        _work_at(work, 0).plain = UNKNOWN
        return _whole_icrc(frame, bth_address, length, work)
    plain = crc32(0, bth_address, length)
    _work_at(work, 0).plain = plain
    if entry.known == 0:
        entry.share = _whole_icrc(frame, bth_address, length, work) ^ plain
        entry.known = 1
    return int(plain ^ entry.share)


@kernel
def continued_sum(crc: int, bth_address: int, header_bytes: int, length: int, work: int) -> int:
    """The CRC-32 ``crc`` of some bytes, continued over the payload of the frame whose ICRC was
    looked at last: ``length`` bytes behind its headers.

    The ICRC has gone over the payload already. What the headers in front of it added to that is
    taken away, so that the payload itself is not read again.
    """
    plain = _work_at(work, 0).plain
    if plain == UNKNOWN or length % _PAD_UNIT != 0:
        return int(crc32(crc, bth_address + header_bytes, length))
    return int(plain ^ moved_on(crc ^ crc32(0, bth_address, header_bytes), length))
