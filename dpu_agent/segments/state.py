"""What all parts of an open log share; everything here is touched under ``lock`` only."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.direct_file import SegmentFile, aligned_buffer
from dpu_agent.segments.io_queue import JobQueue
from dpu_agent.segments.layout import SegmentState, Superblock
from dpu_agent.segments.locations import incarnation_of
from dpu_agent.segments.segment_table import Life, Segment, SegmentTable
from dpu_agent.segments.tickets import TicketDesk
from dpu_agent.segments.volume import Volume

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Directory:
    """A volume, and the threads that wait for its device."""

    number: int
    volume: Volume
    reads: JobQueue
    writes: JobQueue
    upkeep: JobQueue
    """Opening, syncing and sealing."""
    failed: bool = False
    """Nothing more is appended here."""
    claimed: set[int] = field(default_factory=set)
    """Segments that are about to be in use."""
    full: bool = False
    """Its file system has no room for another segment, whatever the configuration says."""


@dataclass(slots=True)
class Counters:
    """Since the log was opened."""

    user_bytes: int = 0
    written_bytes: int = 0
    compacted_bytes: int = 0
    checksum_failures: int = 0
    io_errors: int = 0


@dataclass(eq=False, slots=True)
class LogState:
    """The log in memory."""

    config: SegmentLogConfig
    log_id: bytes
    lock: threading.Condition
    table: SegmentTable
    directories: list[Directory]
    desk: TicketDesk
    index: dict[bytes, int] = field(default_factory=dict)
    """Location of the record of each key."""
    writing: set[bytes] = field(default_factory=set)
    """Keys with an append whose write has not ended: another waits for it."""
    ending: Counter[int] = field(default_factory=Counter)
    """Records with a tombstone whose write has not ended."""
    ended: dict[bytes, int] = field(default_factory=dict)
    """Record of a key that a tombstone has ended which a crash may still take."""
    copies: dict[int, int] = field(default_factory=dict)
    """Where a record is being copied to, or was, until its segment is used again."""
    moved: list[tuple[int, int]] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    next_sequence: int = 1

    def chain_of(self, location: int) -> list[int]:
        """A location and the copies of its record: whoever ends it ends all of them."""
        chain = [location]
        while chain[-1] in self.copies:
            chain.append(self.copies[chain[-1]])
        return chain

    def end_record(self, location: int) -> None:
        """A record is gone, with its copies."""
        for place in self.chain_of(location):
            found = self.table.find(place)
            if found is None or found[1]["life"] == Life.WRITING:
                continue
            self.table.set_life(place, Life.DEAD)
            key = found[1]["key"].tobytes()
            if self.index.get(key) == place:
                del self.index[key]

    def move_record(self, old: int, new: int) -> None:
        """A copy is where it is to be; its source may have ended meanwhile."""
        found = self.table.find(old)
        if found is None or found[1]["life"] != Life.LIVE:
            self.table.set_life(new, Life.DEAD)
            return
        self.table.set_life(new, Life.LIVE)
        self.table.set_life(old, Life.MOVED)
        self.index[found[1]["key"].tobytes()] = new
        found[0].unfollowed += 1
        self.moved.append((old, new))

    def forget_copies(self, segment: Segment) -> None:
        """A segment goes, and where its records went with it."""
        for old in [old for old in self.copies if incarnation_of(old) == segment.incarnation]:
            del self.copies[old]

    def fail_directory(self, directory: Directory, error: OSError, doing: str) -> None:
        """Note that a device failed; what is there is still read."""
        self.counters.io_errors += 1
        if not directory.failed:
            directory.failed = True
            _log.error(
                "%s: %s failed (%s); nothing more is appended there. Look at the device, then "
                "start again",
                directory.volume.name,
                doing,
                error,
            )


def write_superblock(
    file: SegmentFile, log: LogState, segment: Segment, state: SegmentState, end: int = 0
) -> None:
    """Say on the device what a segment is now; not over the superblock that counted until then."""
    superblock = Superblock(
        state=state,
        segment_bytes=log.config.segment_bytes,
        log_id=log.log_id,
        incarnation=segment.incarnation,
        revision=segment.revision + 1,
        end=end,
    )
    page = aligned_buffer(len(superblock.emit()))
    page[:] = superblock.emit()
    file.write([page], superblock.page)
    segment.revision += 1
