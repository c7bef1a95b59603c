"""Compaction: what lives of a segment is appended again, then the segment is free.

Runs in the thread that calls it and waits there; appends and reads of others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpu_agent.segments.batching import Pending
from dpu_agent.segments.direct_file import aligned_buffer
from dpu_agent.segments.lane import BATCH_BYTES, Lane
from dpu_agent.segments.layout import (
    ENTRY,
    MAX_ENTRIES_PER_BATCH,
    PAGE_BYTES,
    SegmentState,
    padded,
)
from dpu_agent.segments.locations import NOWHERE
from dpu_agent.segments.reading import Reader
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.segments.segment_table import Life, Segment, victims
from dpu_agent.segments.state import LogState, write_superblock

if TYPE_CHECKING:
    from dpu_agent.segments.tickets import Ticket


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one call did."""

    moved_bytes: int
    freed_segments: int


class Compactor:
    """One call at a time; the lock of the log is taken here, and not held while waiting."""

    def __init__(self, log: LogState, reader: Reader, lanes: Sequence[Lane]) -> None:
        """``lanes``: those of compaction, by directory."""
        self._log, self._reader, self._lanes = log, reader, lanes

    def run(self, budget_bytes: int) -> Compacted:
        """Move at most about ``budget_bytes``; free what nothing is left of."""
        moved = 0
        freed = self._free_empty()
        for victim in self._victims():
            if moved >= budget_bytes:
                break
            if self._fits(victim):
                moved += self._empty(victim, budget_bytes - moved)
        return Compacted(moved, freed + self._free_empty())

    def _victims(self) -> list[Segment]:
        with self._log.lock:
            table, config = self._log.table, self._log.config
            return [
                segment
                for segment in victims(
                    list(table.in_use.values()),
                    config.segment_bytes,
                    config.compact_below,
                    table.next_incarnation,
                )
                if not self._log.directories[segment.directory].failed
                and (segment.live_bytes or table.needed_shadows(segment))
            ]

    def _fits(self, victim: Segment) -> bool:
        """Whether all that must leave a segment has room: half of it would free nothing."""
        with self._log.lock:
            table = self._log.table
            entries = sum(1 for _ in table.live(victim)) + len(table.needed_shadows(victim))
            batches = 2 + victim.live_bytes // BATCH_BYTES + entries // MAX_ENTRIES_PER_BATCH
            headers = entries * ENTRY.itemsize + batches * PAGE_BYTES
            room = self._lanes[victim.directory].room_for_moves()
            return victim.live_bytes + padded(headers) <= room

    def _empty(self, victim: Segment, budget_bytes: int) -> int:
        """Move what lives in a segment, as far as the budget goes; bytes moved."""
        moved = 0
        refused: set[int] = set()
        while moved < budget_bytes:
            with self._log.lock:
                chosen = self._choose(victim, budget_bytes - moved, refused)
            if not chosen:
                if self._log_has_live(victim, refused):
                    return moved
                self._carry_shadows(victim)
                return moved
            step = self._move(victim, chosen, refused)
            if step < 0:
                return moved
            moved += step
        return moved

    def _log_has_live(self, victim: Segment, refused: set[int]) -> bool:
        with self._log.lock:
            return bool(refused) or any(True for _ in self._log.table.live(victim))

    def _choose(
        self, victim: Segment, budget_bytes: int, refused: set[int]
    ) -> list[tuple[int, Any]]:
        """Records for one step; copies of their entries, since lists of entries grow."""
        chosen: list[tuple[int, Any]] = []
        nbytes = 0
        for location, entry in self._log.table.live(victim):
            size = padded(int(entry["length"]))
            if location in refused:
                continue
            if chosen and nbytes + size > min(BATCH_BYTES, budget_bytes):
                break
            chosen.append((location, entry.copy()))
            nbytes += size
            if len(chosen) == MAX_ENTRIES_PER_BATCH // 2:
                break
        return chosen

    def _move(self, victim: Segment, chosen: list[tuple[int, Any]], refused: set[int]) -> int:
        """Read records and append them; bytes moved, or -1 where there is no room."""
        sizes = [padded(int(entry["length"])) for _, entry in chosen]
        buffer = aligned_buffer(sum(sizes))
        base = int(np.frombuffer(buffer, np.uint8).ctypes.data)
        places = [base + sum(sizes[:n]) for n in range(len(sizes))]
        reads = [
            Read(location, place, size)
            for (location, _), place, size in zip(chosen, places, sizes, strict=True)
        ]
        done = self._await(len(reads), lambda ticket: self._reader.start(ticket, reads))
        items: list[tuple[int, Record, int]] = []
        for (location, entry), place, status in zip(chosen, places, done.statuses, strict=True):
            if status is ItemStatus.BAD_CHECKSUM:
                # It can never be read again, so it is no reason to keep the segment.
                with self._log.lock:
                    self._log.end_record(location)
            elif status is not ItemStatus.OK:
                refused.add(location)
            else:
                record = Record(
                    entry["key"].tobytes(),
                    place,
                    int(entry["length"]),
                    int(entry["checksum"]),
                    entry["tag"].tobytes(),
                    int(entry["encoding"]),
                )
                items.append((location, record, int(entry["sequence"])))
        return self._append(victim, items, refused)

    def _append(
        self, victim: Segment, items: list[tuple[int, Record, int]], refused: set[int]
    ) -> int:
        if not items:
            return 0
        lane = self._lanes[victim.directory]

        def put(ticket: Ticket) -> None:
            for index, (location, record, sequence) in enumerate(items):
                lane.put(Pending(ticket, index, True, record, location, sequence=sequence))
            lane.pump()

        done = self._await(len(items), put)
        moved = 0
        for (location, record, _), status in zip(items, done.statuses, strict=True):
            if status is ItemStatus.OK:
                moved += padded(record.length)
            elif status is not ItemStatus.NOT_FOUND:
                refused.add(location)
        return moved if moved or ItemStatus.NOT_FOUND in done.statuses else -1

    def _carry_shadows(self, victim: Segment) -> None:
        """End again, elsewhere, what this segment ends in segments that outlive it."""
        with self._log.lock:
            shadows = self._log.table.needed_shadows(victim)
        for first in range(0, len(shadows), MAX_ENTRIES_PER_BATCH):
            part = shadows[first : first + MAX_ENTRIES_PER_BATCH]

            def put(ticket: Ticket, part: list[int] = part) -> None:
                lane = self._lanes[victim.directory]
                for index, shadow in enumerate(part):
                    lane.put(Pending(ticket, index, True, None, shadow, exact=True))
                lane.pump()

            done = self._await(len(part), put)
            with self._log.lock:
                for shadow, status in zip(part, done.statuses, strict=True):
                    if status in (ItemStatus.OK, ItemStatus.NOT_FOUND):
                        rows = victim.entries.rows
                        rows["shadow"][rows["shadow"] == shadow] = NOWHERE

    def _await(self, count: int, start: Callable[[Ticket], None]) -> Completion:
        """Start something under the lock, and wait for all of it."""
        ended: list[Completion] = []
        with self._log.lock:
            ticket = self._log.desk.open_internal(count, ended.append)
            start(ticket)
            while not ended:
                self._log.lock.wait()
        return ended[0]

    def _free_empty(self) -> int:
        """Free segments of which nothing is left, that nobody reads, and whose moves are known."""
        with self._log.lock:
            empty = [s for s in self._log.table.in_use.values() if self._is_empty(s)]
            others = [s for s in self._log.table.in_use.values() if s not in empty]
            for segment in empty:
                segment.holders += 1
        if not empty:
            return 0
        return self._free(empty, others)

    def _is_empty(self, segment: Segment) -> bool:
        table = self._log.table
        return (
            segment.state is SegmentState.SEALED
            and not (segment.writing or segment.sealing)
            and not (segment.holders or segment.unfollowed)
            and segment.commit.idle
            and not self._log.directories[segment.directory].failed
            and not (segment.entries.rows["life"] == Life.LIVE).any()
            and not table.needed_shadows(segment)
        )

    def _free(self, empty: list[Segment], others: list[Segment]) -> int:
        freed = 0
        with self._log.lock:
            ended = list(self._log.ended.items())
        # What ended their records must be durable first, and may lie in any other segment.
        stable = all(self._did(segment, lambda s: s.file.sync()) for segment in others)
        if stable:
            with self._log.lock:
                for key, location in ended:
                    if self._log.ended.get(key) == location:
                        del self._log.ended[key]
        for segment in empty:
            done = stable and self._did(segment, self._say_free)
            with self._log.lock:
                segment.holders -= 1
                if done:
                    self._log.forget_copies(segment)
                    self._log.table.retire(segment)
                    self._log.directories[segment.directory].full = False
                    freed += 1
        return freed

    def _say_free(self, segment: Segment) -> None:
        write_superblock(segment.file, self._log, segment, SegmentState.FREE)
        segment.file.sync()

    def _did(self, segment: Segment, work: Callable[[Segment], None]) -> bool:
        try:
            work(segment)
        except OSError as error:
            with self._log.lock:
                directory = self._log.directories[segment.directory]
                self._log.fail_directory(directory, error, "freeing a segment")
            return False
        return True
