"""Headers of atomic operations and of their response (IBTA 1.7 section 9.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from emulator.wire.errors import require_bits, require_bytes

VIRTUAL_ADDRESS = slice(0, 8)
RKEY = slice(8, 12)
SWAP_OR_ADD = slice(12, 20)
COMPARE = slice(20, 28)
HEADER_BYTES = COMPARE.stop

ORIGINAL_VALUE = slice(0, 8)
ACK_HEADER_BYTES = ORIGINAL_VALUE.stop


@dataclass(frozen=True, slots=True)
class AtomicEth:
    """Which 8 bytes to compare and swap, or to fetch and add to."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    virtual_address: int
    rkey: int
    swap_or_add: int
    compare: int = 0
    """Unused by fetch and add."""

    def __post_init__(self) -> None:
        require_bits(self.virtual_address, 64, "AtomicETH virtual address")
        require_bits(self.rkey, 32, "AtomicETH R_Key")
        require_bits(self.swap_or_add, 64, "AtomicETH swap or add operand")
        require_bits(self.compare, 64, "AtomicETH compare operand")

    @classmethod
    def parse(cls, data: bytes) -> AtomicEth:
        """Read the header at the start of ``data``."""
        require_bytes(data, HEADER_BYTES, "AtomicETH")
        return cls(
            virtual_address=int.from_bytes(data[VIRTUAL_ADDRESS], "big"),
            rkey=int.from_bytes(data[RKEY], "big"),
            swap_or_add=int.from_bytes(data[SWAP_OR_ADD], "big"),
            compare=int.from_bytes(data[COMPARE], "big"),
        )

    def emit(self) -> bytes:
        """The header's 28 bytes."""
        return (
            self.virtual_address.to_bytes(8, "big")
            + self.rkey.to_bytes(4, "big")
            + self.swap_or_add.to_bytes(8, "big")
            + self.compare.to_bytes(8, "big")
        )


@dataclass(frozen=True, slots=True)
class AtomicAckEth:
    """What the 8 bytes held before the operation."""

    NBYTES: ClassVar[int] = ACK_HEADER_BYTES

    original_value: int

    def __post_init__(self) -> None:
        require_bits(self.original_value, 64, "AtomicAckETH original value")

    @classmethod
    def parse(cls, data: bytes) -> AtomicAckEth:
        """Read the header at the start of ``data``."""
        require_bytes(data, ACK_HEADER_BYTES, "AtomicAckETH")
        return cls(int.from_bytes(data[ORIGINAL_VALUE], "big"))

    def emit(self) -> bytes:
        """The header's 8 bytes."""
        return self.original_value.to_bytes(8, "big")
