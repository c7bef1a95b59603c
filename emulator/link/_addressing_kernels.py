"""The rules by which GIDs and UDP ports in frames stand for sockets.

A socket is one number: its IPv4 address, and the port in the lowest 16 bits.
"""

from __future__ import annotations

from emulator.link._ethernet_kernels import is_ipv4_gid
from emulator.link.frames import IPV4_MAPPED_LOW
from kvlane.jit import kernel
from kvlane.limits import ROCE_V2_UDP_PORT

MAPPED = 0
VIRTUAL = 1
NO_SOCKET = -1

_FLOW_PORTS = 0xC000
"""First of the UDP source ports that RoCEv2 senders use for flows (IBTA 1.7 annex A17)."""
_FLOW_PORTS_MASK = 0x3FFF
_VIRTUAL_HIGH = int.from_bytes(b"\xfdkvlan\x00\x00", "big", signed=True)
"""A unique local IPv6 prefix (RFC 4193) with subnet 0."""
_IPV4_MASK = 0xFFFFFFFF
_PORT_MASK = 0xFFFF
_PORT_SIGN = 0x8000


@kernel
def endpoint_of(rule: int, number: int) -> tuple[int, int, int, int]:
    """The NIC behind a socket: both halves of its GID, where it receives, where it sends from."""
    address, port = number >> 16, number & _PORT_MASK
    if rule == MAPPED:
        return 0, IPV4_MAPPED_LOW | address, port, port
    # Half a GID is signed, and here its upper end is the port.
    signed_port = port - 2 * (port & _PORT_SIGN)
    low = signed_port << 48 | address
    return _VIRTUAL_HIGH, low, ROCE_V2_UDP_PORT, _FLOW_PORTS | port & _FLOW_PORTS_MASK


@kernel
def socket_of(rule: int, gid_hi: int, gid_lo: int, port: int) -> int:
    """The socket that a frame goes to, or ``NO_SOCKET`` when no IPv4 socket can be meant."""
    if rule == MAPPED:
        if not is_ipv4_gid(gid_hi, gid_lo) or port <= 0 or port > _PORT_MASK:
            return NO_SOCKET
        return int((gid_lo & _IPV4_MASK) << 16 | port)
    named_port, middle = gid_lo >> 48 & _PORT_MASK, gid_lo >> 32 & _PORT_MASK
    if gid_hi != _VIRTUAL_HIGH or named_port == 0 or middle != 0 or port != ROCE_V2_UDP_PORT:
        return NO_SOCKET
    return int((gid_lo & _IPV4_MASK) << 16 | named_port)
