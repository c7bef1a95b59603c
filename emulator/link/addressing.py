"""How GIDs and UDP ports in frames stand for the sockets that carry them.

``MappedAddressing`` tells the truth: a GID is the IPv4 address of a socket, and ports are
those of the sockets. A peer then needs GID and port.

``VirtualAddressing`` gives every socket a GID of its own, which carries address and port, so
that a GID alone reaches it, as verbs programs expect. Frames are then RoCEv2 over IPv6
between those GIDs, from a fixed source port to port 4791; the datagrams below it go between
ephemeral ports of an ordinary IPv4 network, of which neither ICRC nor captures know.
"""

from __future__ import annotations

import socket
from typing import NamedTuple, Protocol

from emulator.link._addressing_kernels import (
    MAPPED,
    NO_SOCKET,
    VIRTUAL,
    endpoint_of,
    socket_of,
)

Address = tuple[str, int]
"""IPv4 address and port of a socket."""

_PORT_BITS = 16


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

    @property
    def rule(self) -> int:
        """Its number among the rules of the kernels, which carry it out."""

    def endpoint(self, address: Address) -> Endpoint:
        """The NIC behind a socket."""

    def socket_address(self, gid_hi: int, gid_lo: int, port: int) -> Address | None:
        """Which socket a frame goes to; ``None`` when no IPv4 socket can be meant."""


class MappedAddressing:
    """GIDs are IPv4-mapped addresses, ``::ffff:a.b.c.d``, and ports are real."""

    rule = MAPPED

    def endpoint(self, address: Address) -> Endpoint:
        """The NIC behind a socket, under the socket's own address."""
        return _endpoint(self.rule, address)

    def socket_address(self, gid_hi: int, gid_lo: int, port: int) -> Address | None:
        """Address of the GID, port of the frame."""
        return _socket_address(self.rule, gid_hi, gid_lo, port)


class VirtualAddressing:
    """Every socket has a GID of its own, ``fd6b:766c:616e:0:<port>:0:<IPv4 address>``."""

    rule = VIRTUAL

    def endpoint(self, address: Address) -> Endpoint:
        """The NIC whose GID carries the socket's address."""
        return _endpoint(self.rule, address)

    def socket_address(self, gid_hi: int, gid_lo: int, port: int) -> Address | None:
        """The socket that the GID names; nothing but RoCEv2 is delivered."""
        return _socket_address(self.rule, gid_hi, gid_lo, port)


def address_of(number: int) -> Address:
    """The socket that kernels know by a number."""
    host = socket.inet_ntoa((number >> _PORT_BITS).to_bytes(4, "big"))
    return host, number & (1 << _PORT_BITS) - 1


def _endpoint(rule: int, address: Address) -> Endpoint:
    host, port = address
    number = int.from_bytes(socket.inet_aton(host), "big") << _PORT_BITS | port
    return Endpoint._make(endpoint_of(rule, number))


def _socket_address(rule: int, gid_hi: int, gid_lo: int, port: int) -> Address | None:
    number = socket_of(rule, gid_hi, gid_lo, port)
    return None if number == NO_SOCKET else address_of(number)
