"""The Ethernet interface that a raw link uses: what it needs to have, and its GIDs."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass

from emulator.link.gid import ip_gid
from emulator.link.netlink import AddressFlag, IpAddress, LinkFacts, Netlink
from kvlane.errors import ConfigError

_ETHERNET = 1
"""ARPHRD_ETHER of linux/if_arp.h."""
_UP = 0x1
_UNUSABLE = AddressFlag.TENTATIVE | AddressFlag.DAD_FAILED

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interface:
    """An Ethernet interface that is up and has an address."""

    name: str
    index: int
    mac: bytes
    mtu_bytes: int
    addresses: tuple[IpAddress, ...]
    """IPv4 first, then IPv6, link-local before others."""

    @property
    def gids(self) -> tuple[bytes, ...]:
        """The GIDs of its addresses, in the same order."""
        return tuple(ip_gid(address) for address in self.addresses)


def find_interface(name: str, netlink: Netlink) -> Interface:
    """The interface of that name; ``ConfigError`` says what it lacks."""
    if not name:
        raise ConfigError("raw link: name the interface, such as interface: eth0")
    try:
        index = socket.if_nametoindex(name)
        facts = netlink.link(index)
    except OSError:
        known = ", ".join(sorted(known for _, known in socket.if_nameindex()))
        raise ConfigError(f"raw link: there is no interface {name!r}; there are {known}") from None
    _require_ethernet(name, facts)
    addresses = _usable_addresses(name, index, netlink)
    if not addresses:
        raise ConfigError(
            f"raw link: interface {name} has no address, and so no GID; give it one: "
            f"ip address add 192.0.2.1/24 dev {name}"
        )
    return Interface(name, index, facts.mac, facts.mtu_bytes, addresses)


def _require_ethernet(name: str, facts: LinkFacts) -> None:
    if facts.hardware_type != _ETHERNET:
        raise ConfigError(
            f"raw link: interface {name} is not Ethernet; take one that is, or the udp link"
        )
    if not facts.flags & _UP:
        raise ConfigError(f"raw link: interface {name} is down; ip link set {name} up")


def _usable_addresses(name: str, index: int, netlink: Netlink) -> tuple[IpAddress, ...]:
    """Addresses that may be used, in the order of the GID table.

    Index 0 is what peers are told by default, so it is IPv4 if there is any.
    """
    usable: list[IpAddress] = []
    for address in netlink.addresses(index):
        if address.flags & _UNUSABLE:
            _log.warning(
                "%s of %s is no GID yet: the kernel still looks for a duplicate of it",
                address.ip,
                name,
            )
        elif not address.flags & AddressFlag.TEMPORARY or address.ip.version == 4:
            usable.append(address.ip)
    usable.sort(key=lambda ip: (ip.version, not ip.is_link_local if ip.version == 6 else 0))
    return tuple(usable)
