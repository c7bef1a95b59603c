"""Amounts as people write them."""

from __future__ import annotations

_BYTES = (("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))
_THOUSANDS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def bytes_text(size: float) -> str:
    """Such as 4.0 GiB."""
    for name, shift in _BYTES:
        if size >= 1 << shift:
            return f"{size / (1 << shift):,.1f} {name}"
    return f"{size:,.0f} B"


def amount_text(value: float, unit: str) -> str:
    """With a decimal prefix, such as 1.2 TB."""
    for factor, prefix in _THOUSANDS:
        if abs(value) >= factor:
            return f"{value / factor:,.1f} {prefix}{unit}"
    return f"{value:,.1f} {unit}"


def share_text(share: float) -> str:
    """A percentage."""
    return f"{share:.2%}"


def ms_text(milliseconds: float | None) -> str:
    """A time in the unit that suits it."""
    if milliseconds is None:
        return "-"
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:,.2f} s"
    return f"{milliseconds:,.2f} ms" if milliseconds >= 1 else f"{milliseconds * 1000:,.0f} us"
