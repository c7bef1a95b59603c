"""Which link a NIC is on, and opening the one that needs an interface."""

from __future__ import annotations

from emulator.link.mtu import IPV6_HEADER_BYTES, largest_mtu
from emulator.link.raw import RawLink
from kvlane.errors import ConfigError
from kvlane.verbs.enums import Mtu

UDP = "udp"
RAW = "raw"
LINKS = (UDP, RAW)
LINK_DOC = (
    "What carries packets: 'udp' is an ordinary socket, without privilege, to other emulated "
    "NICs; 'raw' sends real RoCEv2 over an Ethernet interface, to any RoCEv2 NIC, and needs "
    "CAP_NET_RAW."
)
INTERFACE_DOC = (
    "Interface of the raw link, such as eth0; its addresses are the GIDs. One NIC an interface."
)


def require_interface(link: str, interface: str) -> None:
    """The raw link and an interface belong together; ``ConfigError`` when one is alone."""
    if link == RAW and not interface:
        raise ConfigError("interface: the raw link needs one; name it, such as interface: eth0")
    if link != RAW and interface:
        raise ConfigError(f"interface: only the raw link has one; write link: {RAW}, or remove it")


def open_raw_link(interface: str, mtu_bytes: int) -> tuple[RawLink, Mtu]:
    """The link, and the RoCE MTU that is wanted; 0 wants the largest that the interface holds.

    ``ConfigError`` when link or MTU cannot be had.
    """
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
