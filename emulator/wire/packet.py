"""A whole RoCEv2 packet: what a UDP datagram to port 4791 carries.

The order is BTH, extension headers, payload, pad to a multiple of 4 bytes, ICRC (IBTA 1.7
chapter 9 and annex A17).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from emulator.wire.bth import Bth
from emulator.wire.errors import WireError, require_bits, require_bytes
from emulator.wire.opcode import ExtensionHeader, Opcode, OpcodeTraits

ICRC_BYTES = 4
MIN_PACKET_BYTES = Bth.NBYTES + ICRC_BYTES

_H = TypeVar("_H", bound=ExtensionHeader)


def pad_count(payload_bytes: int) -> int:
    """Zero bytes that bring a payload to a multiple of 4."""
    return -payload_bytes & 3


@dataclass(frozen=True, slots=True)
class RocePacket:
    """BTH, the extension headers that its opcode asks for, and the payload without pad."""

    bth: Bth
    extensions: tuple[ExtensionHeader, ...] = ()
    payload: bytes = b""

    def __post_init__(self) -> None:
        traits = _traits(self.bth.opcode)
        kinds = tuple(type(header) for header in self.extensions)
        if kinds != traits.extensions:
            raise WireError(
                f"{Opcode(self.bth.opcode).name} takes the headers {_names(traits.extensions)}, "
                f"not {_names(kinds)}"
            )
        if self.payload and not traits.has_payload:
            raise WireError(f"{Opcode(self.bth.opcode).name} carries no payload")
        if self.bth.pad_count != pad_count(len(self.payload)):
            raise WireError(
                f"pad count {self.bth.pad_count} does not fit a payload of {len(self.payload)} "
                f"bytes; it must be {pad_count(len(self.payload))}"
            )

    def extension(self, kind: type[_H]) -> _H:
        """The header of that kind; ``WireError`` when this packet has none."""
        for header in self.extensions:
            if isinstance(header, kind):
                return header
        raise WireError(f"{Opcode(self.bth.opcode).name} carries no {kind.__name__}")

    @classmethod
    def parse(cls, data: bytes) -> tuple[RocePacket, int]:
        """Read all of ``data``, BTH to ICRC; return the packet and its unchecked ICRC."""
        require_bytes(data, MIN_PACKET_BYTES, "a RoCEv2 packet")
        if len(data) % 4:
            raise WireError(f"a RoCEv2 packet is a multiple of 4 bytes long, not {len(data)}")
        bth = Bth.parse(data)
        body = data[:-ICRC_BYTES]
        offset = Bth.NBYTES
        extensions = []
        for kind in _traits(bth.opcode).extensions:
            extensions.append(kind.parse(body[offset:]))
            offset += kind.NBYTES
        # A pad count larger than what is left would give a payload of negative length.
        require_bytes(body, offset + bth.pad_count, "headers and pad")
        payload = body[offset : len(body) - bth.pad_count]
        icrc = int.from_bytes(data[-ICRC_BYTES:], "little")
        return cls(bth, tuple(extensions), payload), icrc

    def emit(self) -> bytes:
        """The packet from BTH to pad; its ICRC depends on the IP headers (``emit_icrc``)."""
        headers = b"".join(header.emit() for header in self.extensions)
        return self.bth.emit() + headers + self.payload + bytes(self.bth.pad_count)


def emit_icrc(icrc: int) -> bytes:
    """The last 4 bytes of a packet: little-endian, unlike every other field."""
    require_bits(icrc, 32, "ICRC")
    return icrc.to_bytes(ICRC_BYTES, "little")


def _traits(opcode: int) -> OpcodeTraits:
    try:
        return Opcode(opcode).traits
    except ValueError:
        raise WireError(f"opcode {opcode:#04x} is not spoken here") from None


def _names(kinds: tuple[type[ExtensionHeader], ...]) -> str:
    return " + ".join(kind.__name__ for kind in kinds) or "none"
