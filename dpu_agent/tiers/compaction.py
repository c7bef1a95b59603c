"""The thread that gives space back which deleted blocks take on the medium."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dpu_agent.segments.segment_log import SegmentLog
from kvlane.errors import StorageError

_PAUSE_S = 0.5
_BUDGET_BYTES = 64 << 20
"""Moved at a time, so that at most about 128 MiB a second are."""
_log = logging.getLogger(__name__)


class CompactionThread:
    """Compacts a little at a time, as long as there is something to gain."""

    def __init__(self, log: SegmentLog, told: Callable[[], None]) -> None:
        """``told()`` when blocks have moved, whose places are to be learnt, or there is room."""
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
                done = self._segments.compact_once(_BUDGET_BYTES)
            except StorageError as error:
                _log.error("nothing is compacted any more: %s", error)
                return
            if done.moved_bytes or done.freed_segments:
                self._told()
