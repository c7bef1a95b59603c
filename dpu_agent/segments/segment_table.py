"""The segments in memory: their entries, what of them lives, and which are worth compacting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from dpu_agent.segments.direct_file import SegmentFile
from dpu_agent.segments.group_commit import GroupCommit
from dpu_agent.segments.layout import FIRST_BATCH, PAGE_BYTES, SegmentState, padded
from dpu_agent.segments.locations import NOWHERE, incarnation_of, location_of, ordinal_of


class Life(IntEnum):
    """Where an entry is in its life."""

    WRITING = 0
    LIVE = 1
    MOVED = 2
    """A copy has taken its place; its bytes are there until the segment is used again."""
    DEAD = 3


HELD_ENTRY = np.dtype(
    [
        ("key", "V32"),
        ("tag", "V16"),
        ("sequence", "<u8"),
        ("shadow", "<u8"),
        ("page", "<u4"),
        ("length", "<u4"),
        ("checksum", "<u4"),
        ("encoding", "<u2"),
        ("kind", "u1"),
        ("life", "u1"),
    ]
)
"""80 bytes of memory for each entry; ``page`` is where the payload begins."""


class EntryList:
    """Entries of one segment by ordinal."""

    def __init__(self) -> None:
        self._rows = np.zeros(16, HELD_ENTRY)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Any:
        """All of them, as they are kept: what is assigned to a field stays."""
        return self._rows[: self._count]

    def add(self, entries: Any, offsets: Any, life: Life) -> int:
        """Take entries of the format ENTRY in; the ordinal of the first."""
        first, count = self._count, len(entries)
        self._grow_to(first + count)
        rows = self._rows[first : first + count]
        for name in ("key", "tag", "sequence", "shadow", "length", "checksum", "encoding", "kind"):
            rows[name] = entries[name]
        rows["page"] = np.asarray(offsets) // PAGE_BYTES
        rows["life"] = life
        self._count += count
        return first

    def skip_to(self, ordinal: int) -> None:
        """Let the next entry be ``ordinal``; those before it are dead, and empty."""
        if ordinal > self._count:
            self._grow_to(ordinal)
            self._rows[self._count : ordinal]["life"] = Life.DEAD
            self._count = ordinal

    def _grow_to(self, count: int) -> None:
        if count > len(self._rows):
            more = max(len(self._rows), count - len(self._rows))
            self._rows = np.concatenate([self._rows, np.zeros(more, HELD_ENTRY)])


@dataclass(eq=False, slots=True)
class Segment:
    """A segment that is in use."""

    directory: int
    number: int
    """Of the file in its directory."""
    incarnation: int
    revision: int
    """Of the superblock that counts."""
    file: SegmentFile
    state: SegmentState = SegmentState.OPEN
    end: int = FIRST_BATCH
    entries: EntryList = field(default_factory=EntryList)
    live_bytes: int = 0
    writing: int = 0
    """Entries whose write has not ended."""
    sealing: bool = False
    """Its end is being written."""
    holders: int = 0
    """Reads under way, and locations that callers hold."""
    unfollowed: int = 0
    """Records that moved away, of which the caller may not know yet."""
    shadowed_ordinals: int = 0
    """Ordinals below this were named by shadows; some may be of batches that a crash took."""
    commit: GroupCommit[Any] = field(default_factory=lambda: GroupCommit(FIRST_BATCH))


@dataclass(frozen=True, slots=True)
class FreeSegment:
    """A file that waits for its next use; one that is not there yet has no file."""

    number: int
    revision: int = 0
    file: SegmentFile | None = None


class SegmentTable:
    """Segments by life, and the free ones by directory."""

    def __init__(self, directories: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.in_use: dict[int, Segment] = {}
        self.free: list[list[FreeSegment]] = [[] for _ in range(directories)]
        self.next_incarnation = 1

    def add(self, segment: Segment) -> None:
        """A segment is in use."""
        self.in_use[segment.incarnation] = segment
        self.next_incarnation = max(self.next_incarnation, segment.incarnation + 1)

    def retire(self, segment: Segment) -> None:
        """It is free again."""
        del self.in_use[segment.incarnation]
        self.free[segment.directory].append(
            FreeSegment(segment.number, segment.revision, segment.file)
        )

    def find(self, location: int) -> tuple[Segment, Any] | None:
        """Segment and entry of a location that was given in a life that goes on."""
        segment = self.in_use.get(incarnation_of(location))
        ordinal = ordinal_of(location)
        if segment is None or ordinal >= len(segment.entries):
            return None
        return segment, segment.entries.rows[ordinal]

    def life(self, location: int) -> Life:
        """DEAD where nothing is known of it."""
        found = self.find(location)
        return Life.DEAD if found is None else Life(int(found[1]["life"]))

    def set_life(self, location: int, life: Life) -> None:
        """Change it, and what its segment counts."""
        found = self.find(location)
        if found is None:
            return
        segment, entry = found
        size = padded(int(entry["length"]))
        segment.live_bytes += size * ((life is Life.LIVE) - (int(entry["life"]) == Life.LIVE))
        entry["life"] = life

    def is_needed(self, shadow: int) -> bool:
        """Whether a shadow must outlast its segment: what it ends could come back."""
        return shadow != NOWHERE and incarnation_of(shadow) in self.in_use

    def needed_shadows(self, segment: Segment) -> list[int]:
        """What a segment ends in others that are in use."""
        shadows = segment.entries.rows["shadow"]
        own = segment.incarnation
        return [
            shadow
            for shadow in map(int, shadows[shadows != NOWHERE])
            if self.is_needed(shadow) and incarnation_of(shadow) != own
        ]

    def live(self, segment: Segment) -> Iterator[tuple[int, Any]]:
        """Location and entry of each live record of a segment."""
        rows = segment.entries.rows
        for ordinal in np.flatnonzero(rows["life"] == Life.LIVE):
            yield location_of(segment.incarnation, int(ordinal)), rows[ordinal]


def worth(segment: Segment, segment_bytes: int, newest: int) -> float:
    """Room won for bytes moved, and the old first: what died young has died already.

    The cost-benefit rule of Rosenblum and Ousterhout's log-structured file system, 1992.
    """
    live = segment.live_bytes / segment_bytes
    return (1 - live) * (1 + newest - segment.incarnation) / (1 + live)


def victims(
    segments: Sequence[Segment], segment_bytes: int, below: float, newest: int
) -> list[Segment]:
    """Segments to compact, best first: sealed, and with a smaller live share than ``below``."""
    chosen = [
        segment
        for segment in segments
        if segment.state is SegmentState.SEALED
        and not (segment.writing or segment.sealing)
        and segment.commit.idle
        and segment.live_bytes < below * segment_bytes
    ]
    return sorted(chosen, key=lambda s: worth(s, segment_bytes, newest), reverse=True)
