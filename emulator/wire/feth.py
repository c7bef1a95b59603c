"""FLUSH extended transport header: how far and over what a FLUSH reaches (IBTA 1.7 annex A19)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import ClassVar

from emulator.wire.errors import require_bits, require_bytes

HEADER_BYTES = 4
PLACEMENT_BITS = 4
PLACEMENT_MASK = (1 << PLACEMENT_BITS) - 1
LEVEL_SHIFT = PLACEMENT_BITS
LEVEL_BITS = 2
_LEVEL_MASK = (1 << LEVEL_BITS) - 1


class Placement(IntFlag):
    """Bits 3 to 0: where earlier data must have got to."""

    GLOBAL = 1
    """Where everybody who can reach the memory sees it."""
    PERSISTENT = 2
    """Where a loss of power does not reach it."""


class Selectivity(IntEnum):
    """Bits 5 and 4: what the FLUSH covers."""

    RANGE = 0
    REGION = 1
    """All of the region that the key names; address and length mean nothing."""


@dataclass(frozen=True, slots=True)
class Feth:
    """Placement type and selectivity level, reserved values included; other bits are 0."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    placement: int
    """A combination of ``Placement``."""
    selectivity: int = Selectivity.RANGE

    def __post_init__(self) -> None:
        require_bits(self.placement, PLACEMENT_BITS, "FETH placement type")
        require_bits(self.selectivity, LEVEL_BITS, "FETH selectivity level")

    @property
    def word(self) -> int:
        """The header as a number."""
        return self.placement | self.selectivity << LEVEL_SHIFT

    @classmethod
    def parse(cls, data: bytes) -> Feth:
        """Read the header at the start of ``data``; its reserved bits are ignored."""
        require_bytes(data, HEADER_BYTES, "FETH")
        word = int.from_bytes(data[:HEADER_BYTES], "big")
        return cls(word & PLACEMENT_MASK, word >> LEVEL_SHIFT & _LEVEL_MASK)

    def emit(self) -> bytes:
        """The header's 4 bytes."""
        return self.word.to_bytes(HEADER_BYTES, "big")
