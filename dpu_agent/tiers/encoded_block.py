"""The bytes of a block that is kept compressed: 16 bytes of header, then one zstd frame.

The header is the tag of the record too, so that whoever opens a log learns the length and the
checksum of each block as it will be, without reading it. Numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpu_agent.segments.layout import TAG_BYTES
from dpu_agent.segments.requests import Kept
from kvlane.errors import StorageFormatError
from kvlane.limits import MAX_BLOCK_BYTES

RAW = 0
"""Encoding of a record whose bytes are the block."""
ZSTD = 1
"""Encoding of a record whose bytes are a header and a frame; it is shorter than the block."""

ELEMENT_BYTES = (1, 2, 4)
"""Sizes of numbers by which a block may be shuffled; 1 leaves it as it is."""

_MAGIC = int.from_bytes(b"KVZB", "little")
_VERSION = 1
HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "u1"),
        ("element_bytes", "u1"),
        ("reserved", "<u2"),
        ("length", "<u4"),
        ("checksum", "<u4"),
    ]
)
HEADER_BYTES = HEADER.itemsize
assert HEADER_BYTES == TAG_BYTES


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a compressed block will be."""

    length: int
    checksum: int
    """CRC-32 of the block."""
    element_bytes: int
    """By which it was shuffled before it was compressed."""

    def emit(self) -> bytes:
        """The header's bytes."""
        row = (_MAGIC, _VERSION, self.element_bytes, 0, self.length, self.checksum)
        return np.array([row], HEADER).tobytes()

    @staticmethod
    def parse(data: bytes) -> BlockHeader:
        """``StorageFormatError`` where it is none that this version writes."""
        if len(data) != HEADER_BYTES:
            raise StorageFormatError(f"a block's header has {HEADER_BYTES} bytes, not {len(data)}")
        row = np.frombuffer(data, HEADER)[0]
        if row["magic"] != _MAGIC or row["version"] != _VERSION or row["reserved"] != 0:
            raise StorageFormatError(
                "a block is compressed in a form that this version does not know; use the "
                "version that wrote it, or empty the directories"
            )
        header = BlockHeader(int(row["length"]), int(row["checksum"]), int(row["element_bytes"]))
        if not 0 < header.length <= MAX_BLOCK_BYTES or header.element_bytes not in ELEMENT_BYTES:
            raise StorageFormatError(f"a compressed block says of itself {header}: that is none")
        return header


def as_blocks(kept: Iterable[Kept]) -> Iterator[Kept]:
    """Records of a log with the length and the checksum of the blocks that they will be.

    ``StorageFormatError`` at one that this version cannot read.
    """
    for each in kept:
        if each.encoding == RAW:
            yield each
        elif each.encoding == ZSTD:
            header = BlockHeader.parse(each.tag)
            yield replace(each, length=header.length, checksum=header.checksum)
        else:
            raise StorageFormatError(
                f"a block is kept with encoding {each.encoding}, which this version does not "
                f"know; use the version that wrote it, or empty the directories"
            )
