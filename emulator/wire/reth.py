"""RDMA extended transport header: which remote memory (IBTA 1.7 section 9.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from emulator.wire.errors import WireError, require_bits, require_bytes

VIRTUAL_ADDRESS = slice(0, 8)
RKEY = slice(8, 12)
DMA_LENGTH = slice(12, 16)
HEADER_BYTES = DMA_LENGTH.stop

MAX_DMA_LENGTH = 1 << 31
"""The longest message (IBTA 1.7 section 9.3)."""


@dataclass(frozen=True, slots=True)
class Reth:
    """Where an RDMA WRITE or READ begins and how long the whole message is."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    virtual_address: int
    rkey: int
    dma_length: int
    """Bytes of the message, 0 to 2**31."""

    def __post_init__(self) -> None:
        require_bits(self.virtual_address, 64, "RETH virtual address")
        require_bits(self.rkey, 32, "RETH R_Key")
        if not 0 <= self.dma_length <= MAX_DMA_LENGTH:
            raise WireError(f"RETH DMA length is {self.dma_length}, at most {MAX_DMA_LENGTH}")

    @classmethod
    def parse(cls, data: bytes) -> Reth:
        """Read the header at the start of ``data``."""
        require_bytes(data, HEADER_BYTES, "RETH")
        return cls(
            virtual_address=int.from_bytes(data[VIRTUAL_ADDRESS], "big"),
            rkey=int.from_bytes(data[RKEY], "big"),
            dma_length=int.from_bytes(data[DMA_LENGTH], "big"),
        )

    def emit(self) -> bytes:
        """The header's 16 bytes."""
        return (
            self.virtual_address.to_bytes(8, "big")
            + self.rkey.to_bytes(4, "big")
            + self.dma_length.to_bytes(4, "big")
        )
