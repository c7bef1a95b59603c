"""The one error of the wire formats: something is no such header."""

from __future__ import annotations

from kvlane.errors import ProtocolError


class WireError(ProtocolError):
    """Bytes, or the fields given for a value, that no valid packet can have."""


def require_bytes(data: bytes, nbytes: int, what: str) -> None:
    """Raise ``WireError`` when ``data`` is shorter than the ``nbytes`` that ``what`` takes."""
    if len(data) < nbytes:
        raise WireError(f"{what} takes {nbytes} bytes, there are {len(data)}")


def require_bits(value: int, bits: int, what: str) -> None:
    """Raise ``WireError`` unless ``value`` is an unsigned number of at most ``bits`` bits."""
    if not 0 <= value < 1 << bits:
        raise WireError(f"{what} is {value:#x}, it has {bits} bits on the wire")
