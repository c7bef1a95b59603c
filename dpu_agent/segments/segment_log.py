"""The segment log as callers have it: append, read, delete, poll, compact."""

from __future__ import annotations

import contextlib
import resource
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from dpu_agent.segments.batching import Pending
from dpu_agent.segments.compaction import Compacted, Compactor
from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.io_queue import Workers
from dpu_agent.segments.lane import BATCH_BYTES, RESERVED_SEGMENTS, Lane
from dpu_agent.segments.layout import LOG_ID_BYTES, MAX_ENTRIES_PER_BATCH, SegmentState
from dpu_agent.segments.locations import incarnation_of
from dpu_agent.segments.opening import (
    agree_on_log,
    check_descriptors,
    find_segments,
    keep_room,
    reopen,
)
from dpu_agent.segments.reading import Reader
from dpu_agent.segments.recovery import resolve
from dpu_agent.segments.requests import Completion, ItemStatus, Kept, Read, Record, Usage
from dpu_agent.segments.segment_table import Life, Segment, SegmentTable
from dpu_agent.segments.state import Directory, LogState
from dpu_agent.segments.tickets import TicketDesk
from dpu_agent.segments.volume import DirectoryVolume, Volume, VolumeOpener
from kvlane.errors import ConfigError, StorageError

_UPKEEP_THREADS = 3
_CLOSE_TIMEOUT_S = 60.0
_THREADS = Workers()


class SegmentLog:
    """Blocks in files. Every method may be called from any thread.

    A location is good until its record is deleted, and after a move until the caller has asked
    for moves twice: once to be told, once more when its own index has followed.
    """

    def __init__(self, log: LogState) -> None:
        """Use ``open``."""
        self._log = log
        directories = log.directories
        self._spare = [Lane(log, directory, self._kick) for directory in directories]
        self._lanes = [
            Lane(log, directory, self._kick, spare)
            for directory, spare in zip(directories, self._spare, strict=True)
        ]
        self._reader = Reader(log, log.lock.notify_all)
        self._compactor = Compactor(log, self._reader, self._spare)
        self._compacting = threading.Lock()
        self._told: list[tuple[int, int]] = []
        self._held: Counter[int] = Counter()
        self._closed = False

    @classmethod
    def open(
        cls,
        config: SegmentLogConfig,
        open_volume: VolumeOpener = DirectoryVolume,
        workers: Workers = _THREADS,
    ) -> SegmentLog:
        """Lock the directories and read what is there.

        ``ConfigError``, ``StorageError`` or ``StorageFormatError`` say what stands against it.
        """
        check_descriptors(config, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        with contextlib.ExitStack() as undo:
            volumes: list[Volume] = []
            for path in config.directories:
                volumes.append(open_volume(path, config.direct))
                undo.callback(volumes[-1].close)
            try:
                log = _recovered(config, volumes, workers, undo)
            except OSError as error:
                raise StorageError(f"the log cannot be opened: {error}") from error
            undo.pop_all()
        return log

    def records(self) -> Iterator[Kept]:
        """What the log holds now; after ``open``, what recovery found."""
        with self._log.lock:
            table = self._log.table
            live = [each for s in list(table.in_use.values()) for each in table.live(s)]
            kept = [
                Kept(
                    entry["key"].tobytes(),
                    location,
                    int(entry["length"]),
                    int(entry["checksum"]),
                    entry["tag"].tobytes(),
                    int(entry["encoding"]),
                )
                for location, entry in live
            ]
        return iter(kept)

    def append(self, records: Sequence[Record], *, durable: bool) -> int:
        """Start to append; a ticket. A record of a key that is there takes its place.

        ``durable``: complete when a crash cannot take it any more, else when it is written.
        """
        for record in records:
            record.validate(self._log.config.max_block_bytes)
        with self._log.lock:
            self._require_open()
            ticket = self._log.desk.open(len(records))
            for index, record in enumerate(records):
                lane = self._choose_lane()
                if lane is None:
                    ticket.finish(index, self._why_no_lane())
                else:
                    lane.put(Pending(ticket, index, durable, record))
            self._kick()
            return ticket.number

    def read(self, reads: Sequence[Read]) -> int:
        """Start to read; a ticket. Bytes are only said to be OK when their checksum is right."""
        with self._log.lock:
            self._require_open()
            ticket = self._log.desk.open(len(reads))
            self._reader.start(ticket, reads)
            return ticket.number

    def delete(self, locations: Sequence[int], *, durable: bool) -> int:
        """Start to end records; a ticket. ``durable``: complete when they cannot come back."""
        with self._log.lock:
            self._require_open()
            ticket = self._log.desk.open(len(locations))
            for index, location in enumerate(locations):
                self._delete_one(Pending(ticket, index, durable, None, location))
            self._kick()
            return ticket.number

    def poll(self) -> list[Completion]:
        """What has completed since the last call."""
        with self._log.lock:
            return self._log.desk.poll()

    def fileno(self) -> int:
        """A descriptor that is readable while ``poll`` has something."""
        return self._log.desk.fileno()

    def wait(self, ticket: int, timeout_s: float = 30.0) -> Completion:
        """Wait for one ticket, which ``poll`` then does not return; for tests and tools."""
        with self._log.lock:
            return self._log.desk.wait(ticket, timeout_s)

    def hold(self, location: int) -> bool:
        """Keep a location good, moved or not, until ``release``; False where nothing is there."""
        with self._log.lock:
            found = self._log.table.find(location)
            if found is None or found[1]["life"] not in (Life.LIVE, Life.MOVED):
                return False
            found[0].holders += 1
            self._held[location] += 1
            return True

    def release(self, location: int) -> None:
        """Undo one ``hold``."""
        with self._log.lock:
            if not self._held[location]:
                raise ConfigError(f"location {location} is not held; release each hold once")
            self._held[location] -= 1
            self._log.table.in_use[incarnation_of(location)].holders -= 1

    def compact_once(self, budget_bytes: int) -> Compacted:
        """Move up to about ``budget_bytes`` out of segments that are mostly dead, and free them.

        Waits in the calling thread, which is best one of its own.
        """
        with self._compacting:
            with self._log.lock:
                self._require_open()
            return self._compactor.run(budget_bytes)

    def moved(self) -> list[tuple[int, int]]:
        """Old and new location of what compaction moved since the last call.

        The call says also that the caller's index has followed what the last one returned.
        """
        with self._log.lock:
            for old, _ in self._told:
                self._log.table.in_use[incarnation_of(old)].unfollowed -= 1
            self._told, self._log.moved = self._log.moved, []
            return list(self._told)

    def usage(self) -> Usage:
        """Where the bytes are, and what was written."""
        with self._log.lock:
            return _usage(self._log)

    def close(self) -> None:
        """Finish what was started, say where it ends, and give the directories back."""
        with self._compacting:
            with self._log.lock:
                if self._closed:
                    return
                self._closed = True
                self._drain()
            for directory in self._log.directories:
                for queue in (directory.reads, directory.writes, directory.upkeep):
                    queue.close()
            self._give_back()

    def _resume(self, found_open: Sequence[Sequence[Segment]]) -> None:
        """Compaction first, and with most room: what it needs to begin must outlast a restart."""
        for number, segments in enumerate(found_open):
            lanes = [self._spare[number], self._lanes[number]]
            if len(segments) == 1 and len(self._log.table.free[number]) > RESERVED_SEGMENTS:
                lanes.reverse()
            for lane, segment in zip(lanes, segments, strict=False):
                lane.resume(segment)

    def _end_losers(self, locations: Sequence[int]) -> None:
        """Put in the log that these are ended, so that it holds whatever becomes of the winner."""
        for first in range(0, len(locations), MAX_ENTRIES_PER_BATCH):
            part = locations[first : first + MAX_ENTRIES_PER_BATCH]
            with self._log.lock:
                ticket = self._log.desk.open_internal(len(part), lambda _: None)
                for index, location in enumerate(part):
                    lane = self._spare[self._log.table.in_use[incarnation_of(location)].directory]
                    lane.put(Pending(ticket, index, True, None, location, exact=True))
                self._kick()

    def _drain(self) -> None:
        lanes = [*self._lanes, *self._spare]
        self._log.lock.wait_for(
            lambda: self._log.desk.idle and all(lane.idle for lane in lanes), _CLOSE_TIMEOUT_S
        )
        for lane in lanes:
            lane.leave()
        segments = self._log.table.in_use.values()
        self._log.lock.wait_for(lambda: not any(s.sealing for s in segments), _CLOSE_TIMEOUT_S)

    def _give_back(self) -> None:
        table = self._log.table
        files = [segment.file for segment in table.in_use.values()]
        files += [free.file for each in table.free for free in each if free.file is not None]
        for file in files:
            with contextlib.suppress(OSError):
                file.close()
        for directory in self._log.directories:
            directory.volume.close()
        self._log.desk.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StorageError("the segment log is closed; open it again")

    def _kick(self) -> None:
        for lane in (*self._lanes, *self._spare):
            lane.pump()
        self._log.lock.notify_all()

    def _choose_lane(self) -> Lane | None:
        """The least busy directory; of several, the one with most room."""
        able = [number for number, lane in enumerate(self._lanes) if lane.takes_more]
        if not able:
            return None
        free = self._log.table.free
        best = min(
            able,
            key=lambda n: (
                (self._lanes[n].waiting_bytes + self._lanes[n].in_flight * BATCH_BYTES)
                // BATCH_BYTES,
                sum(s.directory == n for s in self._log.table.in_use.values()),
                -len(free[n]),
            ),
        )
        return self._lanes[best]

    def _why_no_lane(self) -> ItemStatus:
        failed = all(directory.failed for directory in self._log.directories)
        return ItemStatus.IO_ERROR if failed else ItemStatus.NO_SPACE

    def _delete_one(self, item: Pending) -> None:
        """In the directory of the record, and else in any; in a full log, where room is kept."""
        table = self._log.table
        alive = (Life.LIVE, Life.WRITING)
        if not any(table.life(place) in alive for place in self._log.chain_of(item.ends)):
            item.ticket.finish(item.index, ItemStatus.NOT_FOUND)
            return
        found = table.find(item.ends)
        home = 0 if found is None else found[0].directory
        order = [home, *(n for n in range(len(self._lanes)) if n != home)]
        lanes = [lane[n] for n in order for lane in (self._lanes, self._spare)]
        lane = next((lane for lane in lanes if lane.takes_more), None)
        if lane is None:
            item.ticket.finish(item.index, self._why_no_lane())
        else:
            lane.put(item)


def _recovered(
    config: SegmentLogConfig,
    volumes: list[Volume],
    workers: Workers,
    undo: contextlib.ExitStack,
) -> SegmentLog:
    log_id = agree_on_log(volumes, secrets.token_bytes(LOG_ID_BYTES))
    lock = workers.new_lock()
    directories = [
        Directory(
            number,
            volume,
            workers.new_queue(f"segments-read-{number}", config.read_depth),
            workers.new_queue(f"segments-write-{number}", config.write_depth),
            workers.new_queue(f"segments-upkeep-{number}", _UPKEEP_THREADS),
        )
        for number, volume in enumerate(volumes)
    ]
    desk = TicketDesk(lock, config.max_waiting)
    undo.callback(desk.close)
    table = SegmentTable(len(volumes), config.segment_bytes)
    state = LogState(config, log_id, lock, table, directories, desk)
    segments = find_segments(state)
    keep_room(state)
    losers = resolve(table, segments)
    for segment in segments:
        rows = segment.entries.rows
        if len(rows):
            state.next_sequence = max(state.next_sequence, int(rows["sequence"].max()) + 1)
        for location, entry in table.live(segment):
            state.index[entry["key"].tobytes()] = location
    log = SegmentLog(state)
    log._resume(reopen(state, segments))
    log._end_losers(losers)
    return log


def _usage(log: LogState) -> Usage:
    table, config = log.table, log.config
    capacity = config.segments_per_directory * config.segment_bytes * len(log.directories)
    segments = list(table.in_use.values())
    live = sum(segment.live_bytes for segment in segments)
    used = sum(
        segment.commit.given if segment.state is SegmentState.OPEN else config.segment_bytes
        for segment in segments
    )
    return Usage(
        capacity_bytes=capacity,
        live_bytes=live,
        dead_bytes=used - live,
        free_bytes=max(capacity - used, 0),
        records=len(log.index),
        user_bytes=log.counters.user_bytes,
        written_bytes=log.counters.written_bytes,
        compacted_bytes=log.counters.compacted_bytes,
        checksum_failures=log.counters.checksum_failures,
        io_errors=log.counters.io_errors,
        failed_directories=tuple(d.volume.name for d in log.directories if d.failed),
    )
