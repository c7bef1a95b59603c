"""The two 4-byte headers that end a message: immediate data and R_Key to invalidate.

Both are in IBTA 1.7 section 9.3; a packet carries at most one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from emulator.wire.errors import require_bits, require_bytes

IMMEDIATE = slice(0, 4)
IMM_HEADER_BYTES = IMMEDIATE.stop

INVALIDATE_RKEY = slice(0, 4)
IETH_HEADER_BYTES = INVALIDATE_RKEY.stop


@dataclass(frozen=True, slots=True)
class ImmDt:
    """Immediate data: 32 bits that end up in the receiver's completion."""

    NBYTES: ClassVar[int] = IMM_HEADER_BYTES

    immediate: int
    """As a number; it is sent in network order."""

    def __post_init__(self) -> None:
        require_bits(self.immediate, 32, "immediate data")

    @classmethod
    def parse(cls, data: bytes) -> ImmDt:
        """Read the header at the start of ``data``."""
        require_bytes(data, IMM_HEADER_BYTES, "ImmDt")
        return cls(int.from_bytes(data[IMMEDIATE], "big"))

    def emit(self) -> bytes:
        """The header's 4 bytes."""
        return self.immediate.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Ieth:
    """Invalidate extended transport header: the R_Key that the receiver shall invalidate."""

    NBYTES: ClassVar[int] = IETH_HEADER_BYTES

    rkey: int

    def __post_init__(self) -> None:
        require_bits(self.rkey, 32, "IETH R_Key")

    @classmethod
    def parse(cls, data: bytes) -> Ieth:
        """Read the header at the start of ``data``."""
        require_bytes(data, IETH_HEADER_BYTES, "IETH")
        return cls(int.from_bytes(data[INVALIDATE_RKEY], "big"))

    def emit(self) -> bytes:
        """The header's 4 bytes."""
        return self.rkey.to_bytes(4, "big")
