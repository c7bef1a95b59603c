"""Base transport header, the first 12 bytes of every packet (IBTA 1.7 section 9.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from emulator.wire.errors import WireError, require_bits, require_bytes

OPCODE = slice(0, 1)
FLAGS = slice(1, 2)
PKEY = slice(2, 4)
CONGESTION = slice(4, 5)
DEST_QP = slice(5, 8)
ACK_REQUEST = slice(8, 9)
PSN = slice(9, 12)
HEADER_BYTES = PSN.stop

SOLICITED_BIT = 0x80
"""In FLAGS; the pad count is bits 5 and 4, the transport version bits 3 to 0."""
MIGREQ_BIT = 0x40
FECN_BIT = 0x80
"""In CONGESTION, whose other bits are reserved and, like the two, outside the ICRC."""
BECN_BIT = 0x40
ACK_REQUEST_BIT = 0x80

DEFAULT_PKEY = 0xFFFF
PSN_BITS = 24
QPN_BITS = 24


@dataclass(frozen=True, slots=True)
class Bth:
    """The base transport header; the transport version is always 0."""

    NBYTES: ClassVar[int] = HEADER_BYTES

    opcode: int
    """8 bits; any number, also one that ``Opcode`` does not know."""
    dest_qp: int
    psn: int
    pad_count: int = 0
    """Zero bytes, 0 to 3, between payload and ICRC."""
    ack_request: bool = False
    solicited: bool = False
    migreq: bool = True
    """Set means "migrated", the state of a path that never migrates; receivers take both."""
    pkey: int = DEFAULT_PKEY
    fecn: bool = False
    becn: bool = False

    def __post_init__(self) -> None:
        require_bits(self.opcode, 8, "BTH opcode")
        require_bits(self.pad_count, 2, "BTH pad count")
        require_bits(self.pkey, 16, "BTH P_Key")
        require_bits(self.dest_qp, QPN_BITS, "BTH destination QP")
        require_bits(self.psn, PSN_BITS, "BTH PSN")

    @classmethod
    def parse(cls, data: bytes) -> Bth:
        """Read the header at the start of ``data``."""
        require_bytes(data, HEADER_BYTES, "BTH")
        flags, congestion = data[FLAGS][0], data[CONGESTION][0]
        version = flags & 0x0F
        if version:
            raise WireError(f"BTH transport version is {version}, only 0 is defined")
        return cls(
            opcode=data[OPCODE][0],
            dest_qp=int.from_bytes(data[DEST_QP], "big"),
            psn=int.from_bytes(data[PSN], "big"),
            pad_count=flags >> 4 & 3,
            ack_request=bool(data[ACK_REQUEST][0] & ACK_REQUEST_BIT),
            solicited=bool(flags & SOLICITED_BIT),
            migreq=bool(flags & MIGREQ_BIT),
            pkey=int.from_bytes(data[PKEY], "big"),
            fecn=bool(congestion & FECN_BIT),
            becn=bool(congestion & BECN_BIT),
        )

    def emit(self) -> bytes:
        """The header's 12 bytes, reserved bits 0."""
        flags = self.solicited * SOLICITED_BIT | self.migreq * MIGREQ_BIT | self.pad_count << 4
        congestion = self.fecn * FECN_BIT | self.becn * BECN_BIT
        return (
            bytes((self.opcode, flags))
            + self.pkey.to_bytes(2, "big")
            + bytes((congestion,))
            + self.dest_qp.to_bytes(3, "big")
            + bytes((self.ack_request * ACK_REQUEST_BIT,))
            + self.psn.to_bytes(3, "big")
        )
