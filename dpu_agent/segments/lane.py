"""One end of the log that is written to: what waits, the open segment, its writes and syncs.

A directory has two, one for callers and one for compaction, so that what is moved lies apart from
what is new, and room for it is kept back. All methods run under the lock of the log; what blocks
is handed to threads, which take the lock again to report.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpu_agent.segments.batching import Pending, Placed, batch_nbytes, entries_of, pieces_of
from dpu_agent.segments.direct_file import aligned_buffer
from dpu_agent.segments.layout import (
    ENTRY,
    MAX_ENTRIES_PER_BATCH,
    PAGE_BYTES,
    BatchPlace,
    SegmentState,
    emit_header,
    header_nbytes,
    payload_offsets,
)
from dpu_agent.segments.locations import MAX_ORDINAL, location_of
from dpu_agent.segments.requests import ItemStatus
from dpu_agent.segments.segment_table import FreeSegment, Life, Segment
from dpu_agent.segments.state import Directory, LogState, write_superblock

BATCH_BYTES = 4 << 20
"""A batch takes no more once it has so many: longer writes are no faster, and wait longer."""
RESERVED_SEGMENTS = 1
"""Free segments that only compaction takes: without one it could not begin."""


@dataclass(eq=False, slots=True)
class _Write:
    """A batch under way."""

    segment: Segment
    place: BatchPlace
    placed: Sequence[Placed]
    pieces: list[memoryview]
    nbytes: int
    entry_count: int
    durable: bool


class Lane:
    """Appends to one directory."""

    def __init__(
        self,
        log: LogState,
        directory: Directory,
        kick: Callable[[], None],
        overflow: Lane | None = None,
    ) -> None:
        """``overflow``: that of compaction, for one of callers."""
        self._log, self._directory, self._overflow = log, directory, overflow
        self._reserved = overflow is None
        self._kick = kick
        self.waiting: deque[Pending] = deque()
        self.waiting_bytes = 0
        self.in_flight = 0
        self.segment: Segment | None = None
        self._opening = False

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is being written or opened."""
        return not self.waiting and not self.in_flight and not self._opening

    @property
    def takes_more(self) -> bool:
        """Whether it has, or can have, an open segment."""
        if self._directory.failed:
            return False
        return self.segment is not None or self._opening or self._next_free() is not None

    def resume(self, segment: Segment) -> None:
        """Go on in a segment that recovery has found open."""
        self.segment = segment

    def put(self, item: Pending) -> None:
        """Wait for a batch."""
        self.waiting.append(item)
        self.waiting_bytes += item.nbytes

    def pump(self) -> None:
        """Start what can be started."""
        while self.waiting and self.in_flight < self._log.config.write_depth:
            if self.segment is None:
                self._open()
                return
            placed = self._take(self._log.config.segment_bytes - self.segment.commit.given)
            if placed:
                self._write(self.segment, placed)
            elif self._is_full(self.segment):
                self.seal()
            else:
                return

    def seal(self) -> None:
        """The open segment takes no more."""
        segment, self.segment = self.segment, None
        if segment is not None:
            self._seal_when_idle(segment)

    def leave(self) -> None:
        """Say where the open segment ends, and leave it open for whoever opens the log next."""
        segment, self.segment = self.segment, None
        if segment is not None:
            self._say_end(segment, SegmentState.OPEN)

    def room_for_moves(self) -> int:
        """Bytes that compaction can write without a segment becoming free."""
        config = self._log.config
        if self._opening or self._next_free() is not None:
            return config.segment_bytes
        return config.segment_bytes - self.segment.commit.given if self.segment else 0

    def _is_full(self, segment: Segment) -> bool:
        """Whether what waits, and does not wait for another write, has no room."""
        room = self._log.config.segment_bytes - segment.commit.given
        first = next((item for item in self.waiting if not self._must_wait(item)), None)
        if first is None:
            return False
        crowded = len(segment.entries) + MAX_ENTRIES_PER_BATCH > MAX_ORDINAL
        return crowded or batch_nbytes([Placed(first, self._shadows(first))]) > room

    def _must_wait(self, item: Pending) -> bool:
        """An append of a key waits for the one before it, so that it knows what it ends; a copy
        for a tombstone that does not know of it."""
        if item.record is None:
            return False
        return item.record.key in self._log.writing or item.ends in self._log.ending

    def _shadows(self, item: Pending) -> tuple[int, ...]:
        """What an item ends: physical records, so that recovery needs no order of time."""
        log = self._log
        if item.exact or (item.ends and item.record is not None):
            chain = [item.ends]
        elif item.ends:
            chain = log.chain_of(item.ends)
        else:
            key = b"" if item.record is None else item.record.key
            before = log.index.get(key) or log.ended.get(key)
            chain = log.chain_of(before) if before else []
        return tuple(place for place in self._with_older(chain) if log.table.is_needed(place))

    def _with_older(self, chain: list[int]) -> list[int]:
        """Records, and those that they ended, where that is not durable yet: a crash may take a
        record that is ended here, and must not bring back the one before it."""
        found = list(chain)
        for place in found:
            known = self._log.table.find(place)
            if known is None or self._log.config.sync != "group":
                continue
            segment, entry = known
            older = int(entry["shadow"])
            is_durable = int(entry["page"]) * PAGE_BYTES < segment.commit.synced_through
            if older and not is_durable and older not in found:
                found.append(older)
        return found

    def _take(self, room: int) -> list[Placed]:
        """Items for the next batch, in their order but for those that must wait."""
        placed: list[Placed] = []
        entries = payload = 0
        left: deque[Pending] = deque()
        segment = self.segment
        if segment is None or len(segment.entries) + MAX_ENTRIES_PER_BATCH > MAX_ORDINAL:
            return placed
        kept = self._kept_for_moves()
        while self.waiting:
            item = self.waiting.popleft()
            if self._must_wait(item):
                left.append(item)
                continue
            verdict = self._verdict(item, room - header_nbytes(entries) - payload, kept)
            if verdict is not ItemStatus.OK:
                self.waiting_bytes -= item.nbytes
                item.ticket.finish(item.index, verdict)
                continue
            each = Placed(item, self._shadows(item))
            entries += each.entry_count
            payload += item.nbytes
            crowded = placed and (payload > BATCH_BYTES or entries > MAX_ENTRIES_PER_BATCH)
            if crowded or header_nbytes(entries) + payload > room:
                self.waiting.appendleft(item)
                break
            placed.append(each)
            if item.record is not None:
                self._log.writing.add(item.record.key)
                if item.ends:
                    # At once: a tombstone of its source in this same batch must end it too.
                    ordinal = len(segment.entries) + entries - each.entry_count
                    self._log.copies[item.ends] = location_of(segment.incarnation, ordinal)
            elif not item.exact:
                self._log.ending.update(each.shadows)
        self.waiting.extendleft(reversed(left))
        return placed

    def _kept_for_moves(self) -> float:
        """Bytes that tombstones of callers must leave: in the last segment there must stay room to
        empty another, or none is ever free again. 0 in any other."""
        if not self._reserved or self._next_free() is not None:
            return 0
        config = self._log.config
        return (1 + config.compact_below) / 2 * config.segment_bytes

    def _verdict(self, item: Pending, room: int, kept: float) -> ItemStatus:
        """Why an item is not written, if it is not."""
        if self._is_void(item):
            return ItemStatus.NOT_FOUND
        if kept and room < kept and item.record is None and not item.exact:
            return ItemStatus.NO_SPACE
        return ItemStatus.OK

    def _is_void(self, item: Pending) -> bool:
        """A copy whose source has ended, or a tombstone for what is gone."""
        if not item.ends:
            return False
        life = self._log.table.life(item.ends)
        if item.record is not None:
            return life is not Life.LIVE
        return not self._log.table.is_needed(item.ends)

    def _write(self, segment: Segment, placed: list[Placed]) -> None:
        log = self._log
        entries = entries_of(placed, log.next_sequence)
        log.next_sequence += len(entries)
        nbytes = batch_nbytes(placed)
        synced = segment.commit.synced_through
        place = BatchPlace(
            log.log_id,
            segment.incarnation,
            segment.commit.begin(nbytes),
            len(segment.entries),
            log.config.segment_bytes,
            segment.revision,
        )
        offsets = payload_offsets(place.offset, entries["length"])
        segment.entries.add(entries, offsets, Life.WRITING)
        segment.writing += len(entries)
        self.waiting_bytes -= sum(each.item.nbytes for each in placed)
        durable = any(each.item.durable for each in placed) and log.config.sync == "group"
        write = _Write(segment, place, placed, [], nbytes, len(entries), durable)
        self.in_flight += 1
        self._directory.writes.submit(lambda: self._run_write(write, entries, synced))

    def _run_write(self, write: _Write, entries: Any, synced: int) -> None:
        """In a thread of the queue."""
        failure: OSError | None = None
        skipped = False
        try:
            pieces = pieces_of(write.placed, write.place, entries, synced)
            write.segment.file.write(pieces, write.place.offset)
        except OSError as error:
            failure = error
            skipped = self._skip(write, synced)
        with self._log.lock:
            self.in_flight -= 1
            if failure is None:
                self._written(write)
            else:
                self._not_written(write, failure, skipped=skipped)
            self._kick()

    def _skip(self, write: _Write, synced: int) -> bool:
        """Put an empty batch where one could not be written, so that recovery gets past it."""
        empty = np.zeros(0, ENTRY)
        header = emit_header(write.place, empty, synced, write.nbytes)
        page = aligned_buffer(len(header))
        page[:] = header
        try:
            write.segment.file.write([page], write.place.offset)
        except OSError:
            return False
        return True

    def _written(self, write: _Write) -> None:
        segment, log = write.segment, self._log
        segment.writing -= write.entry_count
        log.counters.written_bytes += write.nbytes
        if segment.commit.broken:
            segment.commit.drop(write.place.offset)
            self._finish(write, ItemStatus.IO_ERROR)
            self._seal_when_idle(segment)
            return
        segment.commit.wrote(write.place.offset, write if write.durable else None)
        if not write.durable:
            self._finish(write, ItemStatus.OK)
        self._sync(segment)
        self._seal_when_idle(segment)

    def _not_written(self, write: _Write, error: OSError, *, skipped: bool) -> None:
        segment = write.segment
        segment.writing -= write.entry_count
        full = error.errno == errno.ENOSPC
        if not full:
            self._log.fail_directory(self._directory, error, "a write")
        self._finish(write, ItemStatus.NO_SPACE if full else ItemStatus.IO_ERROR)
        if skipped and not segment.commit.broken:
            segment.commit.wrote(write.place.offset, None)
        else:
            segment.commit.drop(write.place.offset)
            self._break(segment)
        if self.segment is segment:
            self.segment = None
        self._sync(segment)
        self._seal_when_idle(segment)

    def _break(self, segment: Segment) -> None:
        for lost in segment.commit.fail():
            self._finish(lost, ItemStatus.IO_ERROR)

    def _sync(self, segment: Segment) -> None:
        mark = segment.commit.sync_wanted()
        if mark is not None:
            self._directory.upkeep.submit(lambda: self._run_sync(segment, mark))

    def _run_sync(self, segment: Segment, mark: int) -> None:
        """In a thread of the queue."""
        failure: OSError | None = None
        try:
            segment.file.sync()
        except OSError as error:
            failure = error
        with self._log.lock:
            if failure is None:
                for write in segment.commit.synced(mark):
                    self._finish(write, ItemStatus.OK)
                self._sync(segment)
            else:
                self._log.fail_directory(self._directory, failure, "a sync")
                for write in segment.commit.sync_failed():
                    self._finish(write, ItemStatus.IO_ERROR)
                if self.segment is segment:
                    self.segment = None
            self._seal_when_idle(segment)
            self._kick()

    def _finish(self, write: _Write, status: ItemStatus) -> None:
        """Tell all items of a batch how they ended, and let the index follow."""
        at = write.place.first_ordinal
        good = status is ItemStatus.OK
        for each in write.placed:
            here = location_of(write.segment.incarnation, at)
            for number in range(at, at + each.entry_count):
                row = write.segment.entries.rows[number]
                row["life"] = Life.DEAD
                row["shadow"] = row["shadow"] if good else 0
            self._settle(each, here, good=good, durable=write.durable)
            at += each.entry_count
            length = 0 if each.item.record is None else each.item.record.length
            each.item.ticket.finish(each.item.index, status, here if length and good else 0, length)

    def _settle(self, each: Placed, here: int, *, good: bool, durable: bool) -> None:
        log, item, record = self._log, each.item, each.item.record
        if record is None:
            if not item.exact:
                log.ending -= Counter(each.shadows)
                found = log.table.find(item.ends)
                if good and found is not None:
                    if not durable:
                        log.ended[found[1]["key"].tobytes()] = log.chain_of(item.ends)[-1]
                    log.end_record(item.ends)
            return
        log.writing.discard(record.key)
        if not good:
            log.copies.pop(item.ends, None)
        elif item.ends:
            log.move_record(item.ends, here)
            log.counters.compacted_bytes += item.nbytes
        else:
            if record.key in log.index:
                log.end_record(log.index[record.key])
            log.table.set_life(here, Life.LIVE)
            log.index[record.key] = here
            log.ended.pop(record.key, None)
            log.counters.user_bytes += record.length

    def _next_free(self) -> FreeSegment | None:
        """A free segment that this lane may take; a new file if there may be one more."""
        directory, table = self._directory, self._log.table
        free = table.free[directory.number]
        used = {s.number for s in table.in_use.values() if s.directory == directory.number}
        used |= directory.claimed
        most = self._log.config.segments_per_directory
        may_grow = 0 if directory.full else max(most - len(free) - len(used), 0)
        if len(free) + may_grow <= (0 if self._reserved else RESERVED_SEGMENTS):
            return None
        # The last file stays where one may be made: that may fail, and room must be kept then.
        if free and (self._reserved or len(free) > RESERVED_SEGMENTS or not may_grow):
            return free[-1]
        taken = used | {segment.number for segment in free}
        return FreeSegment(next(n for n in range(len(taken) + 1) if n not in taken))

    def _open(self) -> None:
        if self._opening:
            return
        failed = self._directory.failed
        free = None if failed else self._next_free()
        if free is None:
            self._refuse(ItemStatus.IO_ERROR if failed else ItemStatus.NO_SPACE)
            return
        table = self._log.table
        if free.file is not None:
            table.free[self._directory.number].remove(free)
        self._opening = True
        self._directory.claimed.add(free.number)
        incarnation, table.next_incarnation = table.next_incarnation, table.next_incarnation + 1
        self._directory.upkeep.submit(lambda: self._run_open(free, incarnation))

    def _run_open(self, free: FreeSegment, incarnation: int) -> None:
        """In a thread of the queue."""
        failure: OSError | None = None
        segment: Segment | None = None
        directory = self._directory
        try:
            file = free.file or directory.volume.create_segment(
                free.number, self._log.config.segment_bytes
            )
            segment = Segment(directory.number, free.number, incarnation, free.revision, file)
            write_superblock(file, self._log, segment, SegmentState.OPEN)
        except OSError as error:
            failure = error
        with self._log.lock:
            self._opening = False
            directory.claimed.discard(free.number)
            if segment is not None:
                self._log.table.add(segment)
            if failure is None:
                self.segment = segment
            else:
                self._not_opened(segment, failure)
            self._kick()

    def _not_opened(self, segment: Segment | None, error: OSError) -> None:
        if segment is not None:
            self._log.table.retire(segment)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._directory.full = True
        else:
            self._log.fail_directory(self._directory, error, "opening a segment")

    def _refuse(self, status: ItemStatus) -> None:
        """Nothing that waits can be written; tombstones may take the room that is kept back."""
        waiting, self.waiting = self.waiting, deque()
        self.waiting_bytes = 0
        for item in waiting:
            if item.record is None and self._overflow is not None:
                self._overflow.put(item)
            else:
                item.ticket.finish(item.index, status)

    def _seal_when_idle(self, segment: Segment) -> None:
        """Once nothing of it is under way, say where it ends."""
        if self.segment is segment or segment.state is not SegmentState.OPEN:
            return
        if segment.writing or not segment.commit.idle:
            return
        self._say_end(segment, SegmentState.SEALED)

    def _say_end(self, segment: Segment, state: SegmentState) -> None:
        segment.state = state
        segment.end = segment.commit.written_through
        segment.sealing = True
        self._directory.upkeep.submit(lambda: self._run_say_end(segment))

    def _run_say_end(self, segment: Segment) -> None:
        """In a thread of the queue."""
        failure: OSError | None = None
        try:
            segment.file.sync()
            write_superblock(segment.file, self._log, segment, segment.state, segment.end)
        except OSError as error:
            failure = error
        with self._log.lock:
            segment.sealing = False
            if failure is None:
                segment.commit.synced_through = segment.end
            if failure is not None:
                self._log.fail_directory(self._directory, failure, "sealing a segment")
            self._log.lock.notify_all()
