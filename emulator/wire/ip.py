"""IPv4 or IPv6 and UDP headers, from a frame descriptor and back (RFC 791, 8200, 768).

A UDP socket never shows these headers; a link that owns them, a capture, and the ICRC need
their bytes. Time to live is not in the descriptor and is sent as 64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.link.frames import FRAME
from emulator.link.gid import gid_halves, gid_of_halves, is_ipv4
from emulator.wire.errors import WireError, require_bytes
from emulator.wire.icrc import IPV4_HEADER_BYTES, IPV6_HEADER_BYTES

IPV4_TOS = slice(1, 2)
IPV4_TOTAL_LENGTH = slice(2, 4)
IPV4_IDENTIFICATION = slice(4, 6)
IPV4_FRAGMENT = slice(6, 8)
IPV4_PROTOCOL = slice(9, 10)
IPV4_CHECKSUM = slice(10, 12)
IPV4_SOURCE = slice(12, 16)
IPV4_DESTINATION = slice(16, IPV4_HEADER_BYTES)

IPV6_CLASS_AND_FLOW = slice(0, 4)
IPV6_PAYLOAD_LENGTH = slice(4, 6)
IPV6_NEXT_HEADER = slice(6, 7)
IPV6_SOURCE = slice(8, 24)
IPV6_DESTINATION = slice(24, IPV6_HEADER_BYTES)

UDP_SOURCE_PORT = slice(0, 2)
UDP_DESTINATION_PORT = slice(2, 4)
UDP_LENGTH = slice(4, 6)
UDP_CHECKSUM = slice(6, 8)
UDP_HEADER_BYTES = UDP_CHECKSUM.stop

PROTOCOL_UDP = 17
HOP_LIMIT = 64
MAX_IP_LENGTH = 0xFFFF

_IPV4_VERSION_AND_LENGTH = 0x45
_FRAGMENT_MASK = 0x3FFF
"""More-fragments flag and offset: any bit of them means that this is not a whole datagram."""
_MAPPED = b"\0" * 10 + b"\xff\xff"


def emit_headers(frame: Any, payload_bytes: int) -> bytes:
    """IP and UDP headers for a UDP payload of that length, ICRC included.

    The UDP checksum is 0, "none", over IPv4 and over IPv6, as soft-RoCE sends it
    (``prepare_udp_hdr`` of Linux' rxe_net.c): the ICRC covers more (RFC 6935 allows it).
    """
    ipv4 = is_ipv4(int(frame["dst_hi"]), int(frame["dst_lo"]))
    udp_length = UDP_HEADER_BYTES + payload_bytes
    if udp_length + (IPV4_HEADER_BYTES if ipv4 else 0) > MAX_IP_LENGTH:
        raise WireError(f"{payload_bytes} bytes do not fit one IP packet")
    ip = _emit_ipv4(frame, udp_length) if ipv4 else _emit_ipv6(frame, udp_length)
    ports = _u16(frame["src_port"]) + _u16(frame["dst_port"])
    return ip + ports + _u16(udp_length) + b"\0\0"


def emit_packet(frame: Any, payload: bytes) -> bytes:
    """The whole IP packet around a UDP payload (BTH to ICRC)."""
    return emit_headers(frame, len(payload)) + payload


def parse_packet(packet: bytes) -> tuple[Any, bytes]:
    """The descriptor (a ``FRAME`` record with offset 0) and the UDP payload of an IP packet.

    Bytes after the packet's own length are ignored, they are the padding of short Ethernet
    frames. The UDP checksum is not verified: a capture at the sender has it unfinished, and
    the ICRC covers more.
    """
    require_bytes(packet, 1, "an IP packet")
    version = packet[0] >> 4
    if version not in (4, 6):
        raise WireError(f"IP version is {version}, neither 4 nor 6")
    frame = np.zeros(1, FRAME).view(np.recarray)[0]
    udp = _parse_ipv4(packet, frame) if version == 4 else _parse_ipv6(packet, frame)
    require_bytes(udp, UDP_HEADER_BYTES, "a UDP header")
    if _number(udp[UDP_LENGTH]) != len(udp):
        raise WireError(
            f"UDP length is {_number(udp[UDP_LENGTH])}, its IP packet carries {len(udp)} bytes"
        )
    frame.src_port = _number(udp[UDP_SOURCE_PORT])
    frame.dst_port = _number(udp[UDP_DESTINATION_PORT])
    frame.length = len(udp) - UDP_HEADER_BYTES
    return frame, udp[UDP_HEADER_BYTES:]


def internet_checksum(data: bytes) -> int:
    """The ones' complement checksum of RFC 1071."""
    words = np.frombuffer(data + b"\0" * (len(data) & 1), ">u2")
    total = int(words.sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _emit_ipv4(frame: Any, udp_length: int) -> bytes:
    source = gid_of_halves(frame["src_hi"], frame["src_lo"])
    destination = gid_of_halves(frame["dst_hi"], frame["dst_lo"])
    header = (
        bytes((_IPV4_VERSION_AND_LENGTH, int(frame["tos"])))
        + _u16(IPV4_HEADER_BYTES + udp_length)
        + _u16(frame["ip_id"])
        + _u16(frame["ip_frag"])
        + bytes((HOP_LIMIT, PROTOCOL_UDP, 0, 0))
        + source[-4:]
        + destination[-4:]
    )
    checksum = _u16(internet_checksum(header))
    return header[: IPV4_CHECKSUM.start] + checksum + header[IPV4_CHECKSUM.stop :]


def _emit_ipv6(frame: Any, udp_length: int) -> bytes:
    first = 6 << 28 | int(frame["tos"]) << 20 | int(frame["flow_label"])
    return (
        first.to_bytes(4, "big")
        + _u16(udp_length)
        + bytes((PROTOCOL_UDP, HOP_LIMIT))
        + gid_of_halves(frame["src_hi"], frame["src_lo"])
        + gid_of_halves(frame["dst_hi"], frame["dst_lo"])
    )


def _parse_ipv4(packet: bytes, frame: Any) -> bytes:
    require_bytes(packet, IPV4_HEADER_BYTES, "an IPv4 header")
    if packet[0] != _IPV4_VERSION_AND_LENGTH:
        raise WireError("IPv4 options are not taken: the ICRC has no rule for them")
    if packet[IPV4_PROTOCOL][0] != PROTOCOL_UDP:
        raise WireError(f"IP protocol is {packet[IPV4_PROTOCOL][0]}, not UDP")
    if internet_checksum(packet[:IPV4_HEADER_BYTES]):
        raise WireError("IPv4 header checksum is wrong")
    frame.ip_frag = _number(packet[IPV4_FRAGMENT])
    if frame.ip_frag & _FRAGMENT_MASK:
        raise WireError("an IP fragment is not a whole datagram")
    total = _number(packet[IPV4_TOTAL_LENGTH])
    require_bytes(packet, total, "an IPv4 packet")
    frame.tos = packet[IPV4_TOS][0]
    frame.ip_id = _number(packet[IPV4_IDENTIFICATION])
    frame.src_hi, frame.src_lo = gid_halves(_MAPPED + packet[IPV4_SOURCE])
    frame.dst_hi, frame.dst_lo = gid_halves(_MAPPED + packet[IPV4_DESTINATION])
    return packet[IPV4_HEADER_BYTES:total]


def _parse_ipv6(packet: bytes, frame: Any) -> bytes:
    require_bytes(packet, IPV6_HEADER_BYTES, "an IPv6 header")
    if packet[IPV6_NEXT_HEADER][0] != PROTOCOL_UDP:
        raise WireError(f"IPv6 next header is {packet[IPV6_NEXT_HEADER][0]}, not UDP")
    end = IPV6_HEADER_BYTES + _number(packet[IPV6_PAYLOAD_LENGTH])
    require_bytes(packet, end, "an IPv6 packet")
    first = _number(packet[IPV6_CLASS_AND_FLOW])
    frame.tos = first >> 20 & 0xFF
    frame.flow_label = first & 0xFFFFF
    frame.src_hi, frame.src_lo = gid_halves(packet[IPV6_SOURCE])
    frame.dst_hi, frame.dst_lo = gid_halves(packet[IPV6_DESTINATION])
    if is_ipv4(frame.dst_hi, frame.dst_lo):
        raise WireError("an IPv4-mapped address in an IPv6 header would be taken for IPv4")
    return packet[IPV6_HEADER_BYTES:end]


def _number(field: bytes) -> int:
    return int.from_bytes(field, "big")


def _u16(value: Any) -> bytes:
    return int(value).to_bytes(2, "big")
