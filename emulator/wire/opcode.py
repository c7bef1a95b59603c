"""Opcodes and what each of them implies for its packet (IBTA 1.7 section 9.2).

The upper 3 bits name the transport service, the lower 5 the operation. FLUSH and ATOMIC WRITE
are the memory placement extensions (IBTA 1.7 annex A19). RD's operations are not spoken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import ClassVar, Protocol

from emulator.wire.aeth import Aeth
from emulator.wire.atomic_eth import AtomicAckEth, AtomicEth
from emulator.wire.deth import Deth
from emulator.wire.feth import Feth
from emulator.wire.imm import Ieth, ImmDt
from emulator.wire.reth import Reth

OPERATION_MASK = 0x1F


class Transport(IntEnum):
    """Transport service: the opcode without its operation."""

    RC = 0x00
    UC = 0x20
    UD = 0x60


class Opcode(IntEnum):
    """The BTH's first byte."""

    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_WITH_IMMEDIATE = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_WITH_IMMEDIATE = 0x05
    RC_RDMA_WRITE_FIRST = 0x06
    RC_RDMA_WRITE_MIDDLE = 0x07
    RC_RDMA_WRITE_LAST = 0x08
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RC_RDMA_WRITE_ONLY = 0x0A
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RC_RDMA_READ_REQUEST = 0x0C
    RC_RDMA_READ_RESPONSE_FIRST = 0x0D
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RC_RDMA_READ_RESPONSE_LAST = 0x0F
    RC_RDMA_READ_RESPONSE_ONLY = 0x10
    RC_ACKNOWLEDGE = 0x11
    RC_ATOMIC_ACKNOWLEDGE = 0x12
    RC_COMPARE_SWAP = 0x13
    RC_FETCH_ADD = 0x14
    RC_SEND_LAST_WITH_INVALIDATE = 0x16
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17
    RC_FLUSH = 0x1C
    RC_ATOMIC_WRITE = 0x1D

    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_WITH_IMMEDIATE = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_WITH_IMMEDIATE = 0x25
    UC_RDMA_WRITE_FIRST = 0x26
    UC_RDMA_WRITE_MIDDLE = 0x27
    UC_RDMA_WRITE_LAST = 0x28
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29
    UC_RDMA_WRITE_ONLY = 0x2A
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2B

    UD_SEND_ONLY = 0x64
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65

    CNP = 0x81
    """RoCEv2 congestion notification (IBTA 1.7 annex A17)."""

    @property
    def traits(self) -> OpcodeTraits:
        """What this opcode implies."""
        return TRAITS[self]


class Position(Enum):
    """Place of a packet in its message."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    ONLY = "only"


class ExtensionHeader(Protocol):
    """What every header after the BTH offers."""

    NBYTES: ClassVar[int]

    @classmethod
    def parse(cls, data: bytes) -> ExtensionHeader:
        """Read the header at the start of ``data``."""

    def emit(self) -> bytes:
        """Exactly ``NBYTES`` bytes."""


@dataclass(frozen=True, slots=True)
class OpcodeTraits:
    """What follows a BTH with some opcode, and which way it travels."""

    position: Position
    extensions: tuple[type[ExtensionHeader], ...] = ()
    """The headers after the BTH, in their order."""
    has_payload: bool = True
    is_response: bool = False

    @property
    def is_request(self) -> bool:
        """True for what a requester sends."""
        return not self.is_response

    @property
    def is_first(self) -> bool:
        """True for the first of several packets."""
        return self.position is Position.FIRST

    @property
    def is_middle(self) -> bool:
        """True between first and last."""
        return self.position is Position.MIDDLE

    @property
    def is_last(self) -> bool:
        """True for the last of several packets."""
        return self.position is Position.LAST

    @property
    def is_only(self) -> bool:
        """True for a message of one packet."""
        return self.position is Position.ONLY


_OPERATIONS: dict[int, OpcodeTraits] = {
    0x00: OpcodeTraits(Position.FIRST),
    0x01: OpcodeTraits(Position.MIDDLE),
    0x02: OpcodeTraits(Position.LAST),
    0x03: OpcodeTraits(Position.LAST, (ImmDt,)),
    0x04: OpcodeTraits(Position.ONLY),
    0x05: OpcodeTraits(Position.ONLY, (ImmDt,)),
    0x06: OpcodeTraits(Position.FIRST, (Reth,)),
    0x07: OpcodeTraits(Position.MIDDLE),
    0x08: OpcodeTraits(Position.LAST),
    0x09: OpcodeTraits(Position.LAST, (ImmDt,)),
    0x0A: OpcodeTraits(Position.ONLY, (Reth,)),
    0x0B: OpcodeTraits(Position.ONLY, (Reth, ImmDt)),
    0x0C: OpcodeTraits(Position.ONLY, (Reth,), has_payload=False),
    0x0D: OpcodeTraits(Position.FIRST, (Aeth,), is_response=True),
    0x0E: OpcodeTraits(Position.MIDDLE, is_response=True),
    0x0F: OpcodeTraits(Position.LAST, (Aeth,), is_response=True),
    0x10: OpcodeTraits(Position.ONLY, (Aeth,), is_response=True),
    0x11: OpcodeTraits(Position.ONLY, (Aeth,), has_payload=False, is_response=True),
    0x12: OpcodeTraits(Position.ONLY, (Aeth, AtomicAckEth), has_payload=False, is_response=True),
    0x13: OpcodeTraits(Position.ONLY, (AtomicEth,), has_payload=False),
    0x14: OpcodeTraits(Position.ONLY, (AtomicEth,), has_payload=False),
    0x16: OpcodeTraits(Position.LAST, (Ieth,)),
    0x17: OpcodeTraits(Position.ONLY, (Ieth,)),
    0x1C: OpcodeTraits(Position.ONLY, (Feth, Reth), has_payload=False),
    0x1D: OpcodeTraits(Position.ONLY, (Reth,)),
}

_CNP = OpcodeTraits(Position.ONLY)
"""Its payload is 16 reserved bytes. It stands outside requests, responses and PSNs."""


def _traits(opcode: Opcode) -> OpcodeTraits:
    if opcode is Opcode.CNP:
        return _CNP
    operation = _OPERATIONS[opcode & OPERATION_MASK]
    if opcode & ~OPERATION_MASK == Transport.UD:
        return OpcodeTraits(operation.position, (Deth, *operation.extensions))
    return operation


TRAITS: Mapping[Opcode, OpcodeTraits] = MappingProxyType({op: _traits(op) for op in Opcode})
"""Opcode -> its traits, total over ``Opcode``."""
