"""Locations: the life of a segment and a place in it, in one int64 that is never given twice."""

from __future__ import annotations

_ORDINAL_BITS = 24
MAX_ORDINAL = (1 << _ORDINAL_BITS) - 1
MAX_INCARNATION = (1 << (63 - _ORDINAL_BITS)) - 1
NOWHERE = 0
"""No location: the first life has number 1."""


def location_of(incarnation: int, ordinal: int) -> int:
    """Pack."""
    return incarnation << _ORDINAL_BITS | ordinal


def incarnation_of(location: int) -> int:
    """Life of the segment."""
    return location >> _ORDINAL_BITS


def ordinal_of(location: int) -> int:
    """Number of the entry in it."""
    return location & MAX_ORDINAL
