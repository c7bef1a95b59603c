"""libcachesim in a process of its own: its caches over a trace that its reader maps into memory."""

from __future__ import annotations

import importlib
import time
from typing import Any

_TABLE_BITS = 16
"""Of its hash table. Its default of 24 makes it ten times slower on a short trace, most of whose
accesses are then the first to a page of the table; 12, 14, 18 and 20 were slower than 16."""


class Peer:
    """One open trace."""

    def __init__(self) -> None:
        self._libcachesim: Any = importlib.import_module("libcachesim")
        self._reader: Any = None

    def open(self, path: str) -> str:
        """Open a trace of the kind oracleGeneral; libcachesim's version."""
        kind = self._libcachesim.TraceType.ORACLE_GENERAL_TRACE
        self._reader = self._libcachesim.TraceReader(path, kind)
        return str(self._libcachesim.__version__)

    def replay(self, class_name: str, capacity: int) -> dict[str, float]:
        """Seconds and miss ratio of a new cache over the whole trace, from C to C."""
        cache = getattr(self._libcachesim, class_name)(capacity, hashpower=_TABLE_BITS)
        self._reader.reset()
        start = time.perf_counter()
        miss_ratio, _ = cache.process_trace(self._reader)
        return {"seconds": time.perf_counter() - start, "miss_ratio": float(miss_ratio)}

    def close(self) -> None:
        """Nothing is kept."""
