"""How GIDs and UDP ports in frames stand for the sockets that carry them.

``MappedAddressing`` tells the truth: a GID is the IPv4 address of a socket, and ports are
those of the sockets. A peer then needs GID and port.

``VirtualAddressing`` gives every socket a GID of its own, which carries address and port, so
that a GID alone reaches it, as verbs programs expect. Frames are then RoCEv2 over IPv6
between those GIDs, from a fixed source port to port 4791; the datagrams below it go between
ephemeral ports of an ordinary IPv4 network, of which neither ICRC nor captures know.
"""

from __future__ import annotations

import functools
import socket
from typing import NamedTuple, Protocol

from emulator.link.frames import IPV4_MAPPED_LOW
from emulator.link.gid import is_ipv4
from kvlane.limits import ROCE_V2_UDP_PORT

Address = tuple[str, int]
"""IPv4 address and port of a socket."""

_FLOW_PORTS = 0xC000
"""First of the UDP source ports that RoCEv2 senders use for flows (IBTA 1.7 annex A17)."""
_FLOW_PORTS_MASK = 0x3FFF
_VIRTUAL_HIGH = int.from_bytes(b"\xfdkvlan\x00\x00", "big", signed=True)
"""A unique local IPv6 prefix (RFC 4193) with subnet 0."""
_IPV4_MASK = 0xFFFFFFFF


class Endpoint(NamedTuple):
    """A NIC as frames name it."""

    gid_hi: int
    gid_lo: int
    udp_port: int
    """Where it receives."""
    source_port: int
    """Where all its frames come from: a socket has one port, whatever the flow."""


class Addressing(Protocol):
    """The rule by which a link translates between sockets and the addresses in frames."""

    def endpoint(self, address: Address) -> Endpoint:
        """The NIC behind a socket."""

    def socket_address(self, gid_hi: int, gid_lo: int, port: int) -> Address | None:
        """Which socket a frame goes to; ``None`` when no IPv4 socket can be meant."""


class MappedAddressing:
    """GIDs are IPv4-mapped addresses, ``::ffff:a.b.c.d``, and ports are real."""

    def endpoint(self, address: Address) -> Endpoint:
        """The NIC behind a socket, under the socket's own address."""
        return _mapped_endpoint(address)

    def socket_address(self, gid_hi: int, gid_lo: int, port: int) -> Address | None:
        """Address of the GID, port of the frame."""
        return _mapped_socket(gid_hi, gid_lo, port)


class VirtualAddressing:
    """Every socket has a GID of its own, ``fd6b:766c:616e:0:<port>:0:<IPv4 address>``."""

    def endpoint(self, address: Address) -> Endpoint:
        """The NIC whose GID carries the socket's address."""
        return _virtual_endpoint(address)

    def socket_address(self, gid_hi: int, gid_lo: int, port: int) -> Address | None:
        """The socket that the GID names; nothing but RoCEv2 is delivered."""
        return _virtual_socket(gid_hi, gid_lo) if port == ROCE_V2_UDP_PORT else None


@functools.lru_cache(maxsize=4096)
def _mapped_endpoint(address: Address) -> Endpoint:
    low = IPV4_MAPPED_LOW | _ipv4_number(address[0])
    return Endpoint(0, low, address[1], address[1])


@functools.lru_cache(maxsize=4096)
def _mapped_socket(gid_hi: int, gid_lo: int, port: int) -> Address | None:
    if not is_ipv4(gid_hi, gid_lo) or not 0 < port <= 0xFFFF:
        return None
    return socket.inet_ntoa((gid_lo & _IPV4_MASK).to_bytes(4, "big")), port


@functools.lru_cache(maxsize=4096)
def _virtual_endpoint(address: Address) -> Endpoint:
    host, port = address
    # Through bytes, so that the number is signed like every half of a GID.
    low = port.to_bytes(2, "big") + bytes(2) + _ipv4_number(host).to_bytes(4, "big")
    return Endpoint(
        _VIRTUAL_HIGH,
        int.from_bytes(low, "big", signed=True),
        ROCE_V2_UDP_PORT,
        _FLOW_PORTS | port & _FLOW_PORTS_MASK,
    )


@functools.lru_cache(maxsize=4096)
def _virtual_socket(gid_hi: int, gid_lo: int) -> Address | None:
    port, middle = gid_lo >> 48 & 0xFFFF, gid_lo >> 32 & 0xFFFF
    if gid_hi != _VIRTUAL_HIGH or not port or middle:
        return None
    return socket.inet_ntoa((gid_lo & _IPV4_MASK).to_bytes(4, "big")), port


def _ipv4_number(host: str) -> int:
    return int.from_bytes(socket.inet_aton(host), "big")
