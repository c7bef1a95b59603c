"""How IP addresses and ports travel in connection management (IBTA 1.7 annex A11).

The service id of a REQ or SIDR_REQ tells port space and port; the first 36 bytes of its
private data tell both ends' IP addresses and the sender's port.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import ClassVar, TypeAlias

from emulator.wire.errors import WireError, require_bits, require_bytes
from emulator.wire.layout import Bits, Octets

IpAddress: TypeAlias = IPv4Address | IPv6Address

CMA_VERSION = Bits(0, 8)
IP_VERSION = Bits(1, 4)
SOURCE_PORT = Bits(2, 16)
SOURCE = Octets(4, 16)
DESTINATION = Octets(20, 16)
HEADER_BYTES = 36

_PORT_BITS = 16


class PortSpace(IntEnum):
    """Port spaces with their own numbering of ports."""

    TCP = 0x0106
    """Connected queue pairs."""
    UDP = 0x0111
    """Datagram queue pairs."""


def service_id(space: PortSpace, port: int) -> int:
    """The service id of a port."""
    require_bits(port, _PORT_BITS, "port")
    return space << _PORT_BITS | port


def port_of_service(service: int) -> tuple[PortSpace, int]:
    """Port space and port of a service id; ``WireError`` when it is none of an IP service."""
    try:
        return PortSpace(service >> _PORT_BITS), service & (1 << _PORT_BITS) - 1
    except ValueError:
        raise WireError(f"service id {service:#x} is none of an IP service") from None


@dataclass(frozen=True, slots=True)
class IpCmHeader:
    """Addresses at the head of private data; both are of one IP version."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    source: IpAddress
    destination: IpAddress
    source_port: int = 0

    def __post_init__(self) -> None:
        require_bits(self.source_port, _PORT_BITS, "IP-CM source port")
        if self.source.version != self.destination.version:
            raise WireError("an IP-CM header has two addresses of the same IP version")

    @classmethod
    def parse(cls, data: bytes) -> IpCmHeader:
        """Read the header at the start of ``data``."""
        require_bytes(data, HEADER_BYTES, "IP-CM header")
        if CMA_VERSION.get(data) != 0:
            raise WireError(f"IP-CM version is {CMA_VERSION.get(data)}, only 0 is defined")
        version = IP_VERSION.get(data)
        source, destination = (
            _address(place.get(data), version) for place in (SOURCE, DESTINATION)
        )
        return cls(source, destination, SOURCE_PORT.get(data))

    def emit(self) -> bytes:
        """The header's 36 bytes; an IPv4 address is the last 4 bytes of its 16."""
        data = bytearray(HEADER_BYTES)
        IP_VERSION.put(data, self.source.version)
        SOURCE_PORT.put(data, self.source_port)
        SOURCE.put(data, self.source.packed.rjust(SOURCE.nbytes, b"\0"))
        DESTINATION.put(data, self.destination.packed.rjust(DESTINATION.nbytes, b"\0"))
        return bytes(data)


def _address(octets: bytes, version: int) -> IpAddress:
    if version == 4:
        return IPv4Address(octets[12:])
    if version == 6:
        return IPv6Address(octets)
    raise WireError(f"IP version {version} in an IP-CM header")
