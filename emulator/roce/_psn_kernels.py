"""Packet sequence numbers: 24 bits, compared by halves (IBTA 1.7 section 9.7.1)."""

from __future__ import annotations

from kvlane.jit import kernel

PSN_MASK = 0xFFFFFF
_HALF = 0x800000


@kernel
def psn_add(psn: int, count: int) -> int:
    """The PSN ``count`` packets later."""
    return (psn + count) & PSN_MASK


@kernel
def psn_diff(a: int, b: int) -> int:
    """How many packets ``a`` is after ``b``: -2^23 to 2^23 - 1, negative when before."""
    return ((a - b + _HALF) & PSN_MASK) - _HALF


@kernel
def psn_span(end: int, start: int) -> int:
    """How many packets lie from ``start`` to before ``end``, which is not before it."""
    return (end - start) & PSN_MASK


@kernel
def packets_of(length: int, mtu: int) -> int:
    """Packets of a message; an empty one takes one (IBTA 1.7 section 9.7.2)."""
    if length == 0:
        return 1
    return (length + mtu - 1) // mtu
