"""The bytes of a segment file: two superblocks, then batches, each a header and its payloads.

    segment = superblock (page) | superblock (page) | batch | batch | ...
    batch   = header (128) | entry (96) x entry_count | zeros to a page | payload, padded | ...

Numbers are little-endian; everything begins at a multiple of ``PAGE_BYTES``. The dtypes are the
single source of the format, which docs/segment-log.md draws. Nothing here does I/O, and nothing
that is parsed is believed before its checksum is right.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from kvlane.errors import StorageFormatError
from kvlane.limits import KEY_BYTES

PAGE_BYTES = 4096
FORMAT_VERSION = 1
SUPERBLOCK_MAGIC = int.from_bytes(b"KVSG", "little")
BATCH_MAGIC = int.from_bytes(b"KVSB", "little")
LOG_ID_BYTES = 16
TAG_BYTES = 16
FIRST_BATCH = 2 * PAGE_BYTES
"""Where the first batch of a segment begins: behind both superblocks."""
MAX_ENTRIES_PER_BATCH = 500
"""With a payload and a tail each, a batch is still one vector of the system call (1024 pieces)."""


class SegmentState(IntEnum):
    """What a superblock says of its segment."""

    FREE = 0
    """Holds nothing; the file waits for its next use."""
    OPEN = 1
    """Behind ``end``, batches of this revision follow until one is not valid."""
    SEALED = 2
    """All batches before ``end`` were on stable storage when this was written."""


class EntryKind(IntEnum):
    """What an entry of a batch is."""

    BLOCK = 1
    TOMBSTONE = 2
    """Nothing but the end of the record that it shadows."""


_CHECKSUM_AT = 124
"""In a superblock and in the header of a batch: last of their 128 bytes."""

SUPERBLOCK = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "state",
            "segment_bytes",
            "log_id",
            "incarnation",
            "revision",
            "end",
            "checksum",
        ],
        "formats": ["<u4", "<u2", "u1", "<u8", "V16", "<u8", "<u8", "<u8", "<u4"],
        "offsets": [0, 4, 6, 8, 16, 32, 40, 48, _CHECKSUM_AT],
        "itemsize": 128,
    }
)
"""``revision`` is higher in the superblock that counts; all before ``end`` is stable."""

BATCH_HEADER = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "entry_count",
            "nbytes",
            "log_id",
            "incarnation",
            "offset",
            "synced_through",
            "first_ordinal",
            "revision",
            "checksum",
        ],
        "formats": ["<u4", "<u2", "<u4", "<u8", "V16", "<u8", "<u8", "<u8", "<u4", "<u8", "<u4"],
        "offsets": [0, 4, 8, 16, 24, 40, 48, 56, 64, 72, _CHECKSUM_AT],
        "itemsize": 128,
    }
)
"""``nbytes`` is the whole batch; all before ``synced_through`` was stable when it was written.
``revision`` is that of the superblock under which it was written."""

ENTRY = np.dtype(
    {
        "names": ["key", "tag", "sequence", "shadow", "length", "checksum", "kind", "encoding"],
        "formats": ["V32", "V16", "<u8", "<u8", "<u4", "<u4", "u1", "<u2"],
        "offsets": [0, 32, 48, 56, 64, 68, 72, 74],
        "itemsize": 96,
    }
)
"""``shadow`` is the location of the record that this one ends, or 0."""

assert ENTRY["key"].itemsize == KEY_BYTES  # the format is fixed, whatever the limit becomes
MAX_HEADER_BYTES = -(
    -(BATCH_HEADER.itemsize + MAX_ENTRIES_PER_BATCH * ENTRY.itemsize) // PAGE_BYTES * PAGE_BYTES
)


def padded(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def header_nbytes(entry_count: int) -> int:
    """Length of the header of a batch with its table, in whole pages."""
    return padded(BATCH_HEADER.itemsize + entry_count * ENTRY.itemsize)


@dataclass(frozen=True, slots=True)
class Superblock:
    """What a segment is and whose."""

    state: SegmentState
    segment_bytes: int
    log_id: bytes
    incarnation: int
    """Number of this life of the segment; none is given twice in a log."""
    revision: int
    end: int = 0

    def emit(self) -> bytes:
        """A page."""
        record = np.zeros(1, SUPERBLOCK)
        row = record[0]
        row["magic"], row["version"], row["state"] = SUPERBLOCK_MAGIC, FORMAT_VERSION, self.state
        row["segment_bytes"], row["log_id"] = self.segment_bytes, np.void(self.log_id)
        row["incarnation"], row["revision"] = self.incarnation, self.revision
        row["end"] = self.end
        row["checksum"] = zlib.crc32(record.tobytes()[:_CHECKSUM_AT])
        return record.tobytes().ljust(PAGE_BYTES, b"\0")

    @property
    def page(self) -> int:
        """Which of the two places it is written to: never over the one that counts."""
        return self.revision % 2 * PAGE_BYTES


def _parse_superblock(page: bytes) -> Superblock | None:
    if len(page) < SUPERBLOCK.itemsize:
        return None
    row = np.frombuffer(page, SUPERBLOCK, 1)[0]
    if row["magic"] != SUPERBLOCK_MAGIC:
        return None
    if row["version"] > FORMAT_VERSION:
        raise StorageFormatError(
            f"has format {int(row['version'])}, and this kvlane reads up to {FORMAT_VERSION}; use "
            f"a newer kvlane, or another directory"
        )
    if zlib.crc32(page[:_CHECKSUM_AT]) != row["checksum"] or row["state"] > SegmentState.SEALED:
        return None
    return Superblock(
        state=SegmentState(int(row["state"])),
        segment_bytes=int(row["segment_bytes"]),
        log_id=row["log_id"].tobytes(),
        incarnation=int(row["incarnation"]),
        revision=int(row["revision"]),
        end=int(row["end"]),
    )


def current_superblock(pages: bytes) -> Superblock | None:
    """The superblock that counts, of the first two pages of a file.

    None for a file that was made and never used, also where the first superblock is torn.
    ``StorageFormatError``, without the file's name, for any other.
    """
    halves = (pages[:PAGE_BYTES], pages[PAGE_BYTES : 2 * PAGE_BYTES])
    found = [block for block in map(_parse_superblock, halves) if block is not None]
    if found:
        return max(found, key=lambda block: block.revision)
    magic = SUPERBLOCK_MAGIC.to_bytes(4, "little")
    written = [half for half in halves if half.strip(b"\0")]
    if len(written) > 1 or any(not magic.startswith(half[:4].rstrip(b"\0")) for half in written):
        raise StorageFormatError(
            "is no segment of a kvlane log, or both its superblocks are damaged; move it away"
        )
    return None


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where a batch is expected, and so what its header must say."""

    log_id: bytes
    incarnation: int
    offset: int
    first_ordinal: int
    segment_bytes: int
    revision: int
    """At least: batches of an earlier opening, behind where that one ended, are none."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A parsed header: its entries, and where the payload of each begins in the segment."""

    offset: int
    nbytes: int
    synced_through: int
    first_ordinal: int
    entries: Any
    """Array of ENTRY."""
    payload_offsets: Any
    """int64 array; of a tombstone, where it would be."""


def payload_offsets(batch_offset: int, lengths: Any) -> Any:
    """Where payloads of these lengths begin, in a batch at ``batch_offset``."""
    pages = -(-np.asarray(lengths, np.int64) // PAGE_BYTES) * PAGE_BYTES
    before = np.cumsum(pages) - pages
    return batch_offset + header_nbytes(len(pages)) + before


def emit_header(
    place: BatchPlace, entries: Any, synced_through: int, nbytes: int | None = None
) -> bytes:
    """The header of a batch with ``entries``; ``nbytes`` is longer where it skips what was lost."""
    size = header_nbytes(len(entries))
    if nbytes is None:
        nbytes = size + sum(map(padded, map(int, entries["length"])))
    record = np.zeros(1, BATCH_HEADER)
    row = record[0]
    row["magic"], row["version"], row["entry_count"] = BATCH_MAGIC, FORMAT_VERSION, len(entries)
    row["nbytes"], row["log_id"] = nbytes, np.void(place.log_id)
    row["incarnation"], row["offset"] = place.incarnation, place.offset
    row["synced_through"], row["first_ordinal"] = synced_through, place.first_ordinal
    row["revision"] = place.revision
    table = entries.tobytes()
    body = table.ljust(size - BATCH_HEADER.itemsize, b"\0")
    row["checksum"] = _header_checksum(record.tobytes() + body)
    header: bytes = record.tobytes() + body
    return header


def _header_checksum(header: bytes) -> int:
    """Over all of a header but the checksum itself."""
    return zlib.crc32(header[BATCH_HEADER.itemsize :], zlib.crc32(header[:_CHECKSUM_AT]))


def wanted_header_bytes(page: bytes) -> int:
    """How many bytes the header that begins with ``page`` has; 0 where none begins."""
    if len(page) < PAGE_BYTES:
        return 0
    row = np.frombuffer(page, BATCH_HEADER, 1)[0]
    if row["magic"] != BATCH_MAGIC or row["version"] != FORMAT_VERSION:
        return 0
    count = int(row["entry_count"])
    return header_nbytes(count) if count <= MAX_ENTRIES_PER_BATCH else 0


def parse_batch(header: bytes, place: BatchPlace) -> Batch | None:
    """The batch whose header this is, or None: not one, damaged, or of another place or life."""
    size = wanted_header_bytes(header[:PAGE_BYTES])
    if not size or len(header) != size:
        return None
    row = np.frombuffer(header, BATCH_HEADER, 1)[0]
    if _header_checksum(header) != row["checksum"]:
        return None
    entries = np.frombuffer(header, ENTRY, int(row["entry_count"]), BATCH_HEADER.itemsize)
    nbytes = int(row["nbytes"])
    least = size + sum(map(padded, map(int, entries["length"])))
    here = row["log_id"].tobytes() == place.log_id and row["incarnation"] == place.incarnation
    ahead = int(row["first_ordinal"]) - place.first_ordinal
    # Behind damage, and where a segment was opened again, ordinals were left out.
    ordered = 0 <= ahead <= place.segment_bytes // ENTRY.itemsize
    if row["revision"] < place.revision:
        return None
    if not here or not ordered or row["offset"] != place.offset or nbytes % PAGE_BYTES:
        return None
    if nbytes < least or place.offset + nbytes > place.segment_bytes:
        return None
    return Batch(
        offset=place.offset,
        nbytes=nbytes,
        synced_through=int(row["synced_through"]),
        first_ordinal=int(row["first_ordinal"]),
        entries=entries,
        payload_offsets=payload_offsets(place.offset, entries["length"]),
    )
