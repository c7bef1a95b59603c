"""ACK extended transport header: how a request fared (IBTA 1.7 sections 9.3 and 9.7.5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from emulator.wire.errors import require_bits, require_bytes

SYNDROME = slice(0, 1)
MSN = slice(1, 4)
HEADER_BYTES = MSN.stop

SYNDROME_VALUE_BITS = 5
UNLIMITED_CREDITS = 0x1F
"""Credit count of a responder without end-to-end flow control (IBTA 1.7 section 9.7.7)."""


class SyndromeClass(IntEnum):
    """Bits 6 and 5 of the syndrome; bit 7 is reserved (IBTA 1.7 section 9.7.5)."""

    ACK = 0
    RNR_NAK = 1
    RESERVED = 2
    NAK = 3


class NakCode(IntEnum):
    """Bits 4 to 0 of a NAK's syndrome (IBTA 1.7 section 9.7.5)."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3
    INVALID_RD_REQUEST = 4


RNR_TIMER_NS: tuple[int, ...] = tuple(
    10_000 * multiple
    for multiple in (
        *(65_536, 1, 2, 3, 4, 6, 8, 12),
        *(16, 24, 32, 48, 64, 96, 128, 192),
        *(256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072),
        *(4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152),
    )
)
"""RNR NAK timer code -> how long the requester waits, ns (IBTA 1.7 section 9.7.5).

The wait is a multiple of 10 us. Code 0 is the longest, 655.36 ms, and code 25 is 61.44 ms:
soft-RoCE has 61.41 there by a slip, so a peer may come back a little early.
"""


@dataclass(frozen=True, slots=True)
class Aeth:
    """Syndrome and message sequence number of a response."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    syndrome: int
    """8 bits: a ``SyndromeClass`` and 5 bits whose meaning depends on it."""
    msn: int
    """Messages that the responder has completed, modulo 2**24."""

    def __post_init__(self) -> None:
        require_bits(self.syndrome, 8, "AETH syndrome")
        require_bits(self.msn, 24, "AETH MSN")

    @classmethod
    def ack(cls, msn: int, credit_count: int = UNLIMITED_CREDITS) -> Aeth:
        """A positive acknowledgment."""
        return cls(_syndrome(SyndromeClass.ACK, credit_count), msn)

    @classmethod
    def rnr_nak(cls, msn: int, timer_code: int) -> Aeth:
        """Receiver not ready: come back after ``RNR_TIMER_NS[timer_code]``."""
        return cls(_syndrome(SyndromeClass.RNR_NAK, timer_code), msn)

    @classmethod
    def nak(cls, msn: int, code: NakCode) -> Aeth:
        """A negative acknowledgment."""
        return cls(_syndrome(SyndromeClass.NAK, code), msn)

    @property
    def syndrome_class(self) -> SyndromeClass:
        """What kind of answer this is; the reserved bit 7 does not count."""
        return SyndromeClass(self.syndrome >> SYNDROME_VALUE_BITS & 3)

    @property
    def syndrome_value(self) -> int:
        """Credit count, RNR timer code or ``NakCode``, by the class."""
        return self.syndrome & 0x1F

    @classmethod
    def parse(cls, data: bytes) -> Aeth:
        """Read the header at the start of ``data``."""
        require_bytes(data, HEADER_BYTES, "AETH")
        return cls(data[SYNDROME][0], int.from_bytes(data[MSN], "big"))

    def emit(self) -> bytes:
        """The header's 4 bytes."""
        return bytes((self.syndrome,)) + self.msn.to_bytes(3, "big")


def _syndrome(kind: SyndromeClass, value: int) -> int:
    require_bits(value, SYNDROME_VALUE_BITS, f"AETH {kind.name} value")
    return kind << SYNDROME_VALUE_BITS | value
