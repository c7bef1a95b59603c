"""GIDs: 16 bytes as people and sockets know them, two signed numbers as kernels do.

An IPv4 address is the GID ``::ffff:a.b.c.d`` (IBTA 1.7 annex A17), an IPv6 address is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from emulator.link.frames import IPV4_MAPPED_LOW

GID_BYTES = 16


def ipv4_gid(address: IPv4Address) -> bytes:
    """The GID of an IPv4 address."""
    return b"\0" * 10 + b"\xff\xff" + address.packed


def ip_gid(address: IPv4Address | IPv6Address) -> bytes:
    """The GID of an address."""
    return ipv4_gid(address) if isinstance(address, IPv4Address) else address.packed


def gid_ip(gid: bytes) -> IPv4Address | IPv6Address:
    """The address that a GID stands for."""
    address = IPv6Address(gid)
    return address.ipv4_mapped or address


def gid_halves(gid: bytes) -> tuple[int, int]:
    """The upper and the lower 8 bytes of a GID, each as a signed 64-bit number."""
    if len(gid) != GID_BYTES:
        raise ValueError(f"a GID has {GID_BYTES} bytes, not {len(gid)}")
    return (
        int.from_bytes(gid[:8], "big", signed=True),
        int.from_bytes(gid[8:], "big", signed=True),
    )


def gid_of_halves(hi: int, lo: int) -> bytes:
    """The GID of two signed 64-bit halves."""
    return int(hi).to_bytes(8, "big", signed=True) + int(lo).to_bytes(8, "big", signed=True)


def is_ipv4(hi: int, lo: int) -> bool:
    """True when the halves are those of an IPv4 address."""
    return hi == 0 and lo >> 32 == IPV4_MAPPED_LOW >> 32


def source_index(gids: Sequence[bytes], destination: bytes) -> int:
    """Which of a port's GIDs to send from: itself, else the first of the same kind, else 0.

    Kinds are IPv4, link-local IPv6 and other IPv6; the latter two do for each other.
    """
    if destination in gids:
        return gids.index(destination)
    kinds = [_kind(gid) for gid in gids]
    version, is_local = wanted = _kind(destination)
    for kind in (wanted, (version, not is_local)):
        if kind in kinds:
            return kinds.index(kind)
    return 0


def _kind(gid: bytes) -> tuple[int, bool]:
    """IP version, and whether it is link-local IPv6."""
    address = gid_ip(gid)
    return address.version, address.version == 6 and address.is_link_local
