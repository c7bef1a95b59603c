"""The index out of the log: batch headers only, and payload only where it may be torn.

Sans-IO: ``scan`` is a generator that asks for byte ranges and is sent their bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpu_agent.segments.layout import (
    FIRST_BATCH,
    PAGE_BYTES,
    Batch,
    BatchPlace,
    EntryKind,
    SegmentState,
    Superblock,
    padded,
    parse_batch,
    wanted_header_bytes,
)
from dpu_agent.segments.locations import NOWHERE, incarnation_of, location_of, ordinal_of
from dpu_agent.segments.segment_table import Life, Segment, SegmentTable


class Ask(NamedTuple):
    """Whole pages of the segment."""

    offset: int
    nbytes: int


@dataclass(slots=True)
class Contents:
    """What a segment holds."""

    batches: list[Batch] = field(default_factory=list)
    end: int = FIRST_BATCH
    damaged: int = 0
    """Pages of a sealed segment where a header should have been."""
    torn: int = 0
    """Batches that were dropped: some of their payload never arrived."""


Scan = Generator[Ask, bytes, Contents]


def scan(superblock: Superblock) -> Scan:
    """Read a segment that is OPEN or SEALED."""
    contents = Contents()
    stable = min(max(superblock.end, FIRST_BATCH), superblock.segment_bytes)
    sealed = superblock.state is SegmentState.SEALED
    limit = stable if sealed else superblock.segment_bytes
    ordinal = 0
    while contents.end + PAGE_BYTES <= limit:
        before_end = contents.end < stable
        place = BatchPlace(
            superblock.log_id,
            superblock.incarnation,
            contents.end,
            ordinal,
            superblock.segment_bytes,
            0 if before_end else superblock.revision,
        )
        batch = yield from _header(place)
        if batch is not None:
            contents.batches.append(batch)
            contents.end += batch.nbytes
            ordinal = batch.first_ordinal + len(batch.entries)
        elif before_end:
            # A damaged header: those behind it are found page by page.
            contents.damaged += 1
            contents.end += PAGE_BYTES
        else:
            break
    if not sealed:
        yield from _drop_torn(contents, stable)
    return contents


def _header(place: BatchPlace) -> Generator[Ask, bytes, Batch | None]:
    first = yield Ask(place.offset, PAGE_BYTES)
    size = wanted_header_bytes(first)
    if not size or place.offset + size > place.segment_bytes:
        return None
    rest = b""
    if size > PAGE_BYTES:
        rest = yield Ask(place.offset + PAGE_BYTES, size - PAGE_BYTES)
    return parse_batch(first + rest, place)


def _drop_torn(contents: Contents, stable: int) -> Generator[Ask, bytes, None]:
    """Cut before the first batch with a wrong payload: none from there on was acknowledged."""
    stable = max([stable, *(batch.synced_through for batch in contents.batches)])
    for number, batch in enumerate(contents.batches):
        if batch.offset >= stable and not (yield from _is_whole(batch)):
            contents.torn = len(contents.batches) - number
            contents.end = batch.offset
            del contents.batches[number:]
            return


def _is_whole(batch: Batch) -> Generator[Ask, bytes, bool]:
    for entry, offset in zip(batch.entries, batch.payload_offsets, strict=True):
        length = int(entry["length"])
        if length:
            payload = yield Ask(int(offset), padded(length))
            if zlib.crc32(memoryview(payload)[:length]) != entry["checksum"]:
                return False
    return True


def load(segment: Segment, contents: Contents) -> None:
    """Give a segment its entries: blocks live, tombstones dead."""
    for batch in contents.batches:
        # Entries lost to damage keep their ordinals, or locations would be those of others.
        segment.entries.skip_to(batch.first_ordinal)
        first = segment.entries.add(batch.entries, batch.payload_offsets, Life.DEAD)
        rows = segment.entries.rows[first:]
        rows["life"][rows["kind"] == EntryKind.BLOCK] = Life.LIVE
    segment.end = contents.end


def resolve(table: SegmentTable, segments: Sequence[Segment]) -> list[int]:
    """End what is shadowed, and the older of two records of a key.

    Returns the locations of the latter, to be ended in the log as well.
    """
    _end_shadowed(table, segments)
    newest: dict[bytes, tuple[int, int]] = {}
    losers: list[int] = []
    for segment in segments:
        rows = segment.entries.rows
        for ordinal in np.flatnonzero(rows["life"] == Life.LIVE):
            here = location_of(segment.incarnation, int(ordinal))
            mine = (int(rows[ordinal]["sequence"]), here)
            key = rows[ordinal]["key"].tobytes()
            other = newest.get(key)
            newest[key] = mine if other is None else max(mine, other)
            if other is not None:
                losers.append(min(mine, other)[1])
    for location in losers:
        segment = table.in_use[incarnation_of(location)]
        segment.entries.rows[ordinal_of(location)]["life"] = Life.DEAD
    for segment in segments:
        rows = segment.entries.rows
        lengths = rows["length"][rows["life"] == Life.LIVE].astype(np.int64)
        segment.live_bytes = int((-(-lengths // PAGE_BYTES) * PAGE_BYTES).sum())
    return losers


def _end_shadowed(table: SegmentTable, segments: Sequence[Segment]) -> None:
    for segment in segments:
        shadows = segment.entries.rows["shadow"]
        for shadow in map(int, shadows[shadows != NOWHERE]):
            # A number that was lost with its segment must not be given to another.
            table.next_incarnation = max(table.next_incarnation, incarnation_of(shadow) + 1)
            target = table.in_use.get(incarnation_of(shadow))
            if target is not None:
                target.shadowed_ordinals = max(target.shadowed_ordinals, ordinal_of(shadow) + 1)
            found = table.find(shadow)
            if found is not None:
                found[1]["life"] = Life.DEAD
