"""The thread that gives space back which deleted blocks take on the medium."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dpu_agent.segments.segment_log import SegmentLog
from kvlane.errors import StorageError

_PAUSE_S = 0.5
_log = logging.getLogger(__name__)


class CompactionThread:
    """Compacts a little at a time, as long as there is something to gain."""

    def __init__(self, log: SegmentLog, told: Callable[[], None], bytes_per_s: int) -> None:
        """``told()`` when blocks have moved, whose places are to be learnt, or there is room;
        ``bytes_per_s`` is about how much is moved at most."""
        self._budget_bytes = max(1, int(bytes_per_s * _PAUSE_S))
        self._segments = log
        self._told = told
        self._stopping = False
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvlane-compaction", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it, after what it is doing."""
        self._stopping = True
        self._hurry.set()
        self._thread.join()

    def hurry(self) -> None:
        """Room is wanted now. Any thread may call."""
        self._hurry.set()

    def _run(self) -> None:
        while True:
            self._hurry.wait(_PAUSE_S)
            self._hurry.clear()
            if self._stopping:
                return
            try:
                done = self._segments.compact_once(self._budget_bytes)
            except StorageError as error:
                _log.error("nothing is compacted any more: %s", error)
                return
            if done.moved_bytes or done.freed_segments:
                self._told()
