"""GIDs: 16 bytes as people and sockets know them, two signed numbers as kernels do.

An IPv4 address is the GID ``::ffff:a.b.c.d`` (IBTA 1.7 annex A17), an IPv6 address is its own.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from emulator.link.frames import IPV4_MAPPED_LOW

GID_BYTES = 16


def ipv4_gid(address: IPv4Address) -> bytes:
    """The GID of an IPv4 address."""
    return b"\0" * 10 + b"\xff\xff" + address.packed


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
