"""Management datagrams: 256 bytes with a header of 24 (IBTA 1.7 section 13.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from emulator.wire.errors import WireError
from emulator.wire.layout import Bits, Structure

MAD_BYTES = 256
"""Every MAD is that long, whatever its content."""
GSI_QPN = 1
"""The queue pair that all MADs but those of subnet management are sent to."""
GSI_QKEY = 0x8001_0000
"""Its well-known Q_Key (IBTA 1.7 section 10.2.5)."""

BASE_VERSION = 1
METHOD_SEND = 0x03
"""Connection management sends and is sent; it has no other method (section 13.4.5)."""


class ManagementClass(IntEnum):
    """Class of a MAD; others than the one spoken here are not listed."""

    COMMUNICATION = 0x07


@dataclass(frozen=True, slots=True)
class MadHeader(Structure):
    """The header that all classes share."""

    NBYTES: ClassVar[int] = 24
    LAYOUT: ClassVar = {
        "base_version": Bits(0, 8),
        "management_class": Bits(1, 8),
        "class_version": Bits(2, 8),
        "method": Bits(3, 8),
        "status": Bits(4, 16),
        "class_specific": Bits(6, 16),
        "transaction_id": Bits(8, 64),
        "attribute_id": Bits(16, 16),
        "attribute_modifier": Bits(20, 32),
    }

    management_class: int
    class_version: int
    attribute_id: int
    transaction_id: int = 0
    """Chosen by the sender of a request; its answers carry the same."""
    method: int = METHOD_SEND
    base_version: int = BASE_VERSION
    status: int = 0
    class_specific: int = 0
    attribute_modifier: int = 0

    def emit_with(self, content: bytes) -> bytes:
        """A whole MAD: the header, ``content``, and zeros."""
        room = MAD_BYTES - self.NBYTES
        if len(content) > room:
            raise WireError(f"a MAD has room for {room} bytes of content, not {len(content)}")
        return (self.emit() + content).ljust(MAD_BYTES, b"\0")


def parse_mad(data: bytes) -> tuple[MadHeader, bytes]:
    """Header and content of a MAD; ``WireError`` when it is not one of version 1."""
    if len(data) != MAD_BYTES:
        raise WireError(f"a MAD has {MAD_BYTES} bytes, not {len(data)}")
    header = MadHeader.parse(data)
    if header.base_version != BASE_VERSION:
        raise WireError(f"MAD base version is {header.base_version}, only 1 is defined")
    return header, data[MadHeader.NBYTES :]
