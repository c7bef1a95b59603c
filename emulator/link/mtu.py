"""The largest RoCE MTU whose packets fit the interface that an address belongs to.

The UDP link forbids fragmentation, as RoCEv2 does, so a packet that is too long for the
interface never leaves the host.
"""

from __future__ import annotations

import socket

from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu

HEADER_BYTES = 20 + 8 + 12 + 16 + 4 + 4
"""What a full packet has beside its payload at most: IPv4, UDP, BTH, RETH, immediate data and
ICRC (IBTA 1.7 sections 9.2 to 9.3 and annex A17)."""
IPV6_HEADER_BYTES = HEADER_BYTES + 20
"""The same over IPv6."""

# Of linux/in.h; the socket module lacks it.
_IP_MTU = 14
_ALL_HOSTS = ("224.0.0.1", 9)


def largest_mtu(interface_bytes: int, header_bytes: int = HEADER_BYTES) -> Mtu:
    """The largest that fits an interface of this MTU; ``ConfigError`` when none does."""
    fitting = [mtu for mtu in Mtu if mtu.nbytes + header_bytes <= interface_bytes]
    if not fitting:
        raise ConfigError(
            f"an interface MTU of {interface_bytes} holds no RoCE packet; raise it to at least "
            f"{min(Mtu).nbytes + header_bytes}"
        )
    return max(fitting)


def interface_mtu_bytes(host: str) -> int:
    """MTU of the interface that has the IPv4 address ``host``; ``ConfigError`` when none has.

    The kernel tells the MTU of a route, and a route to a group goes through the interface
    that was chosen for it. Nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
            probe.connect(_ALL_HOSTS)
            return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
        except OSError as error:
            raise ConfigError(
                f"mtu_bytes: the MTU of the interface with {host} cannot be found "
                f"({error.strerror}); write the path MTU, such as 1024"
            ) from error
