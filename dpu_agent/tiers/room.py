"""Whether the files of a log run short, so that blocks have to leave for those that come."""

from __future__ import annotations

from collections.abc import Callable

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.segment_log import SegmentLog

_FREE_PART = 16
"""One byte in so many is kept free."""
_FREE_SEGMENTS = 2
"""So many segments of each directory at least: one is kept by the log for itself."""
_LOOKS_PER_SEGMENT = 8


class Room:
    """A log takes no block more when its files are full of living ones, and only whole files become
    free. So blocks must leave before that, as their policy has it, or those that come would be lost
    instead. Where enough is dead for compaction to make room, none need leave."""

    def __init__(
        self, log: SegmentLog, config: SegmentLogConfig, hurry: Callable[[], None]
    ) -> None:
        """``config`` is the log's; ``hurry()`` has what is dead made room."""
        self._log = log
        self._hurry = hurry
        least = _FREE_SEGMENTS * config.segment_bytes * len(config.directories)
        self._least_free = max(least, log.usage().capacity_bytes // _FREE_PART)
        self._compact_below = config.compact_below
        self._look_after_bytes = config.segment_bytes // _LOOKS_PER_SEGMENT
        self._unseen_bytes = self._look_after_bytes
        self._is_short = False

    def is_short(self, nbytes: int) -> bool:
        """Whether others should leave for ``nbytes`` that are about to be written."""
        self._unseen_bytes += nbytes
        # Looking goes through all segments.
        if self._unseen_bytes >= self._look_after_bytes:
            self._unseen_bytes = 0
            self._is_short = self._look()
        return self._is_short

    def _look(self) -> bool:
        usage = self._log.usage()
        if usage.free_bytes >= self._least_free:
            return False
        self._hurry()
        # With a smaller share alive, some file has so little that it is compacted.
        used = usage.capacity_bytes - usage.free_bytes
        return usage.live_bytes >= self._compact_below * used
