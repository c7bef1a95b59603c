"""Questions to the kernel about interfaces, addresses, routes and neighbours (rtnetlink(7)).

Only reading, so no privilege is needed. The kernel answers before ``send`` returns, so a
question costs microseconds and nothing here waits for the network.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

IpAddress = IPv4Address | IPv6Address

_HEADER = struct.Struct("@IHHII")
"""``nlmsghdr``: length, type, flags, sequence, port."""
_ATTRIBUTE = struct.Struct("@HH")
_ERROR = struct.Struct("@i")
_LINK = struct.Struct("@BxHiII")
"""``ifinfomsg``: family, hardware type, index, flags, change."""
_ADDRESS = struct.Struct("@BBBBI")
"""``ifaddrmsg``: family, prefix, flags, scope, index."""
_ROUTE = struct.Struct("@BBBBBBBBI")
"""``rtmsg``: family, destination and source bits, tos, table, protocol, scope, type, flags."""
_NEIGHBOUR = struct.Struct("@B3xiHBB")
"""``ndmsg``: family, index, state, flags, type."""
_NUMBER = struct.Struct("@I")

_ANSWER_BYTES = 1 << 16
_TIMEOUT_S = 1.0
_REQUEST = 0x1
_DUMP = 0x300
_TYPE_MASK = 0x3FFF


class _Kind(IntEnum):
    """Types of messages (linux/netlink.h, linux/rtnetlink.h)."""

    ERROR = 2
    DONE = 3
    NEW_LINK = 16
    GET_LINK = 18
    NEW_ADDRESS = 20
    GET_ADDRESS = 22
    NEW_ROUTE = 24
    GET_ROUTE = 26
    NEW_NEIGHBOUR = 28
    GET_NEIGHBOUR = 30


class _Attribute(IntEnum):
    """Attributes, whose numbers belong to the type of message that they are in."""

    LINK_ADDRESS = 1
    LINK_MTU = 4
    IFA_ADDRESS = 1
    IFA_LOCAL = 2
    IFA_FLAGS = 8
    ROUTE_DESTINATION = 1
    ROUTE_INTERFACE = 4
    ROUTE_GATEWAY = 5
    ROUTE_VIA = 18
    NEIGHBOUR_DESTINATION = 1
    NEIGHBOUR_MAC = 2


class AddressFlag(IntFlag):
    """What the kernel says about an address (linux/if_addr.h)."""

    TEMPORARY = 0x01
    DAD_FAILED = 0x08
    TENTATIVE = 0x40


class NeighbourState(IntFlag):
    """What the kernel knows of a neighbour (linux/neighbour.h)."""

    INCOMPLETE = 0x01
    REACHABLE = 0x02
    STALE = 0x04
    DELAY = 0x08
    PROBE = 0x10
    FAILED = 0x20
    NO_ARP = 0x40
    PERMANENT = 0x80


_CONFIRMED = NeighbourState.REACHABLE | NeighbourState.NO_ARP | NeighbourState.PERMANENT
_USABLE = _CONFIRMED | NeighbourState.STALE | NeighbourState.DELAY | NeighbourState.PROBE


class LinkFacts(NamedTuple):
    """An interface."""

    hardware_type: int
    flags: int
    mac: bytes
    mtu_bytes: int


class AddressFacts(NamedTuple):
    """An address of an interface."""

    ip: IpAddress
    flags: AddressFlag


class Neighbour(NamedTuple):
    """A neighbour whose MAC the kernel knows, though it may be an old one."""

    mac: bytes
    state: NeighbourState

    @property
    def is_confirmed(self) -> bool:
        """The kernel holds it for right."""
        return bool(self.state & _CONFIRMED)

    @property
    def is_stale(self) -> bool:
        """It is old, and the kernel does nothing about that until it sends there itself."""
        return bool(self.state & NeighbourState.STALE)


class Netlink:
    """One socket for questions. Not thread-safe. ``OSError`` is the kernel's refusal."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def link(self, index: int) -> LinkFacts:
        """An interface by its index."""
        request = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0)
        (answer,) = self._ask(_Kind.GET_LINK, 0, request, _Kind.NEW_LINK)
        _, hardware_type, _, flags, _ = _LINK.unpack_from(answer)
        attributes = _attributes(answer[_LINK.size :])
        mtu_bytes = _NUMBER.unpack(attributes[_Attribute.LINK_MTU])[0]
        mac = attributes.get(_Attribute.LINK_ADDRESS, b"")
        return LinkFacts(hardware_type, flags, mac, mtu_bytes)

    def addresses(self, index: int) -> list[AddressFacts]:
        """The addresses of an interface, in the kernel's order."""
        request = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        found: list[AddressFacts] = []
        for answer in self._ask(_Kind.GET_ADDRESS, _DUMP, request, _Kind.NEW_ADDRESS):
            _, _, flags, _, of_interface = _ADDRESS.unpack_from(answer)
            if of_interface != index:
                continue
            attributes = _attributes(answer[_ADDRESS.size :])
            # On point-to-point interfaces ADDRESS is the peer's and LOCAL is ours.
            packed = attributes.get(_Attribute.IFA_LOCAL) or attributes[_Attribute.IFA_ADDRESS]
            if _Attribute.IFA_FLAGS in attributes:
                flags = _NUMBER.unpack(attributes[_Attribute.IFA_FLAGS])[0]
            found.append(AddressFacts(ip_address(packed), AddressFlag(flags)))
        return found

    def next_hop(self, destination: IpAddress, index: int) -> IpAddress:
        """Whose MAC packets to ``destination`` get on an interface."""
        family, bits = _family(destination), destination.max_prefixlen
        request = _ROUTE.pack(family, bits, 0, 0, 0, 0, 0, 0, 0)
        request += _attribute(_Attribute.ROUTE_DESTINATION, destination.packed)
        request += _attribute(_Attribute.ROUTE_INTERFACE, _NUMBER.pack(index))
        (answer,) = self._ask(_Kind.GET_ROUTE, 0, request, _Kind.NEW_ROUTE)
        attributes = _attributes(answer[_ROUTE.size :])
        if _Attribute.ROUTE_GATEWAY in attributes:
            return ip_address(attributes[_Attribute.ROUTE_GATEWAY])
        if _Attribute.ROUTE_VIA in attributes:  # an IPv6 gateway of an IPv4 route
            return ip_address(attributes[_Attribute.ROUTE_VIA][2:])
        return destination

    def neighbour(self, hop: IpAddress, index: int) -> Neighbour | None:
        """A neighbour; ``None`` while the kernel does not know its MAC."""
        request = _NEIGHBOUR.pack(_family(hop), index, 0, 0, 0)
        request += _attribute(_Attribute.NEIGHBOUR_DESTINATION, hop.packed)
        try:
            (answer,) = self._ask(_Kind.GET_NEIGHBOUR, 0, request, _Kind.NEW_NEIGHBOUR)
        except FileNotFoundError:
            return None
        state = NeighbourState(_NEIGHBOUR.unpack_from(answer)[2])
        mac = _attributes(answer[_NEIGHBOUR.size :]).get(_Attribute.NEIGHBOUR_MAC)
        return Neighbour(mac, state) if mac is not None and state & _USABLE else None

    def _ask(self, kind: _Kind, flags: int, body: bytes, wanted: _Kind) -> list[bytes]:
        """Send one request and return the bodies of its answers."""
        self._sequence += 1
        length = _HEADER.size + len(body)
        header = _HEADER.pack(length, kind, _REQUEST | flags, self._sequence, 0)
        self._socket.send(header + body)
        answers: list[bytes] = []
        while True:
            for answer_kind, sequence, answer in _messages(self._socket.recv(_ANSWER_BYTES)):
                if sequence != self._sequence:
                    continue  # of a question that was given up
                if answer_kind == _Kind.DONE:
                    return answers
                if answer_kind == _Kind.ERROR:
                    code = -_ERROR.unpack_from(answer)[0]
                    raise OSError(code, os.strerror(code))
                if answer_kind == wanted:
                    answers.append(answer)
                    if not flags & _DUMP:
                        return answers


def _family(address: IpAddress) -> int:
    return int(socket.AF_INET if address.version == 4 else socket.AF_INET6)


def _aligned(length: int) -> int:
    return length + 3 & ~3


def _attribute(kind: _Attribute, data: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(data)
    return (_ATTRIBUTE.pack(length, kind) + data).ljust(_aligned(length), b"\0")


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, sequence number and body of each message of a datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        yield kind, sequence, data[at + _HEADER.size : at + length]
        at += _aligned(max(length, _HEADER.size))


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)
    return found
