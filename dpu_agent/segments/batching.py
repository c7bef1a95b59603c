"""From records that wait to one write: header, payloads and the rests of their last pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpu_agent.segments.direct_file import aligned_buffer, memory_at
from dpu_agent.segments.layout import (
    ENTRY,
    PAGE_BYTES,
    BatchPlace,
    EntryKind,
    emit_header,
    header_nbytes,
    padded,
)
from dpu_agent.segments.locations import NOWHERE
from dpu_agent.segments.requests import Record
from dpu_agent.segments.tickets import Ticket
from kvlane.rawmem import copy


@dataclass(eq=False, slots=True)
class Pending:
    """A block, or the end of one, on its way into the log."""

    ticket: Ticket
    index: int
    """Of the item in its ticket."""
    durable: bool
    record: Record | None = None
    """None for a tombstone."""
    ends: int = NOWHERE
    """Tombstone: what it ends. Copy: its source."""
    exact: bool = False
    """Tombstone: ends that one record, and no copy of it."""
    sequence: int = 0
    """Of a copy: that of its source."""

    @property
    def nbytes(self) -> int:
        """Pages of payload."""
        return 0 if self.record is None else padded(self.record.length)


@dataclass(frozen=True, slots=True)
class Placed:
    """A pending item and the entries that it became: its own, then tombstones that go with it."""

    item: Pending
    shadows: tuple[int, ...]

    @property
    def entry_count(self) -> int:
        """A block has an entry even if it ends nothing."""
        block = self.item.record is not None
        return max(len(self.shadows), 1) if block else len(self.shadows)


def batch_nbytes(placed: Sequence[Placed]) -> int:
    """Length of a batch."""
    count = sum(each.entry_count for each in placed)
    return header_nbytes(count) + sum(each.item.nbytes for each in placed)


def entries_of(placed: Sequence[Placed], next_sequence: int) -> Any:
    """The table of a batch, in the order of its items."""
    entries = np.zeros(sum(each.entry_count for each in placed), ENTRY)
    at = 0
    for each in placed:
        record = each.item.record
        for number in range(each.entry_count):
            row = entries[at]
            row["shadow"] = each.shadows[number] if each.shadows else NOWHERE
            row["sequence"] = each.item.sequence or next_sequence + at
            row["kind"] = EntryKind.TOMBSTONE
            if record is not None and number == 0:
                row["kind"], row["key"] = EntryKind.BLOCK, np.void(record.key)
                row["tag"], row["length"] = np.void(record.tag), record.length
                row["checksum"], row["encoding"] = record.checksum, record.encoding
            at += 1
    return entries


def pieces_of(
    placed: Sequence[Placed], place: BatchPlace, entries: Any, synced_through: int
) -> list[memoryview]:
    """What one vectored write takes: page-aligned, whole pages; payload is copied only where it
    is not so."""
    header = emit_header(place, entries, synced_through)
    records = [each.item.record for each in placed if each.item.record is not None]
    rests = aligned_buffer(len(header) + PAGE_BYTES * len(records))
    rests[: len(header)] = header
    pieces, at = [rests[: len(header)]], len(header)
    for record in records:
        if record.address % PAGE_BYTES:
            pieces.append(_bounced(record))
            continue
        whole = record.length - record.length % PAGE_BYTES
        if whole:
            pieces.append(memory_at(record.address, whole))
        if whole < record.length:
            rest = memory_at(record.address + whole, record.length - whole)
            rests[at : at + len(rest)] = rest
            pieces.append(rests[at : at + PAGE_BYTES])
        at += PAGE_BYTES
    return pieces


def _bounced(record: Record) -> memoryview:
    """A copy of the payload that is aligned."""
    buffer = aligned_buffer(padded(record.length))
    copy(np.frombuffer(buffer, np.uint8).ctypes.data, record.address, record.length)
    return buffer
