"""Which link a NIC is on, and opening it with the MTU that its packets may have."""

from __future__ import annotations

from typing import NamedTuple

from emulator.link.addressing import Addressing
from emulator.link.batching import AUTO
from emulator.link.frames import Link
from emulator.link.gid import gid_ip
from emulator.link.mtu import IPV6_HEADER_BYTES, interface_mtu_bytes, largest_mtu
from emulator.link.raw import RawLink
from emulator.link.udp import UdpLink
from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu

UDP = "udp"
RAW = "raw"
PCIE = "pcie"
LINKS = (UDP, RAW)
"""Those that carry packets."""
LINK_DOC = (
    "What carries packets: 'udp' is an ordinary socket, without privilege, to other emulated "
    "NICs; 'raw' sends real RoCEv2 over an Ethernet interface, to any RoCEv2 NIC, and needs "
    "CAP_NET_RAW."
)
DEVICE_LINKS = (*LINKS, PCIE)
DEVICE_LINK_DOC = (
    f"{LINK_DOC} 'pcie' is shared memory with other processes of this host, as agent and host see "
    "each other over a DPU's PCIe; it has no packets, so none of the options below but listen and "
    "seed may be given, which mean nothing with it."
)
INTERFACE_DOC = (
    "Interface of the raw link, such as eth0; its addresses are the GIDs. One NIC an interface."
)
AUTO_MTU = 0
"""As ``mtu_bytes``: what the interface holds."""
MTU_DOC = (
    "Largest path MTU: 256, 512, 1024, 2048 or 4096; 0 takes the largest that fits the "
    "interface, or the interface of the listen address."
)
MTU_RULE = "Leave it 0, unless some link between the hosts has a smaller MTU than both ends."


class LinkPlace(NamedTuple):
    """Where a NIC is to be."""

    link: str
    interface: str
    """Of the raw link; empty on the other."""
    endpoint: tuple[str, int]
    """Address and port of the udp link; without meaning on the other."""
    mtu_bytes: int
    batching: str = AUTO
    """Of the udp link; without meaning on the other."""


def require_batching(link: str, batching: str) -> None:
    """Only the udp link has a choice; ``ConfigError`` when it is made for another."""
    if link != UDP and batching != AUTO:
        raise ConfigError(f"batching: only the udp link has it; write link: {UDP}, or remove it")


def require_interface(link: str, interface: str) -> None:
    """The raw link and an interface belong together; ``ConfigError`` when one is alone."""
    if link == RAW and not interface:
        raise ConfigError("interface: the raw link needs one; name it, such as interface: eth0")
    if link != RAW and interface:
        raise ConfigError(f"interface: only the raw link has one; write link: {RAW}, or remove it")


def require_mtu(mtu_bytes: int) -> None:
    """``ConfigError`` unless it is one of the five path MTUs or ``AUTO_MTU``."""
    if mtu_bytes == AUTO_MTU:
        return
    try:
        Mtu.from_bytes_size(mtu_bytes)
    except ValueError as error:
        raise ConfigError(f"mtu_bytes: {error}, or 0 for what the interface holds") from None


def open_link(place: LinkPlace, addressing: Addressing | None = None) -> tuple[Link, Mtu, str]:
    """The link, the port's MTU on it, and where it is in words.

    ``addressing`` is that of the udp link. ``ConfigError`` when link or MTU cannot be had.
    """
    if place.link == RAW:
        raw, mtu = _open_raw_link(place.interface, place.mtu_bytes)
        return raw, mtu, f"interface {place.interface}, {gid_ip(raw.gid)}"
    host, port = place.endpoint
    udp = UdpLink(host, port, addressing=addressing, batching=place.batching)
    where = f"UDP {host}:{udp.udp_port}" if addressing is None else f"GID {gid_ip(udp.gid)}"
    if place.mtu_bytes:
        return udp, Mtu.from_bytes_size(place.mtu_bytes), where
    try:
        return udp, largest_mtu(interface_mtu_bytes(host)), where
    except ConfigError:
        udp.close()
        raise


def _open_raw_link(interface: str, mtu_bytes: int) -> tuple[RawLink, Mtu]:
    """The link, and the RoCE MTU that is wanted; 0 wants the largest that the interface holds."""
    link = RawLink(interface)
    try:
        largest = largest_mtu(link.interface.mtu_bytes, IPV6_HEADER_BYTES)
        if mtu_bytes > largest.nbytes:
            raise ConfigError(
                f"mtu_bytes: {interface} has an MTU of {link.interface.mtu_bytes}, which holds "
                f"RoCE packets of {largest.nbytes} at most; write mtu_bytes: {largest.nbytes}, "
                f"or ip link set {interface} mtu {mtu_bytes + IPV6_HEADER_BYTES}"
            )
    except ConfigError:
        link.close()
        raise
    return link, Mtu.from_bytes_size(mtu_bytes) if mtu_bytes else largest
