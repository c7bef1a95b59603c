"""Datagram extended transport header of UD packets (IBTA 1.7 section 9.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from emulator.wire.errors import require_bits, require_bytes

Q_KEY = slice(0, 4)
RESERVED = slice(4, 5)
SOURCE_QP = slice(5, 8)
HEADER_BYTES = SOURCE_QP.stop


@dataclass(frozen=True, slots=True)
class Deth:
    """Who sends a datagram, and the key that the receiving queue pair asks for."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    q_key: int
    source_qp: int

    def __post_init__(self) -> None:
        require_bits(self.q_key, 32, "DETH Q_Key")
        require_bits(self.source_qp, 24, "DETH source QP")

    @classmethod
    def parse(cls, data: bytes) -> Deth:
        """Read the header at the start of ``data``."""
        require_bytes(data, HEADER_BYTES, "DETH")
        return cls(int.from_bytes(data[Q_KEY], "big"), int.from_bytes(data[SOURCE_QP], "big"))

    def emit(self) -> bytes:
        """The header's 8 bytes, the reserved one 0."""
        return self.q_key.to_bytes(4, "big") + b"\0" + self.source_qp.to_bytes(3, "big")
