"""A client of Mooncake Store over TCP: the one that holds the memory, or the one that uses it."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np


class Peer:
    """A client that is not connected yet."""

    def __init__(self) -> None:
        module = importlib.import_module("mooncake.store")
        self._store: Any = module.MooncakeDistributedStore()

    def connect(self, master: str, segment_bytes: int, buffer_bytes: int) -> None:
        """Join the store and give it ``segment_bytes`` of memory."""
        code = self._store.setup(
            "127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master
        )
        if code:
            raise RuntimeError(f"setup returned {code}")

    def allocate(self, blocks: int, block_bytes: int) -> None:
        """Register lanes."""
        self._rows = np.ones((blocks, block_bytes), np.uint8)
        code = self._store.register_buffer(int(self._rows.ctypes.data), self._rows.nbytes)
        if code:
            raise RuntimeError(f"register_buffer returned {code}")
        self._pointers = [int(row.ctypes.data) for row in self._rows]
        self._sizes = [block_bytes] * blocks

    def put(self, keys: list[str]) -> float:
        """Store the lanes; seconds."""
        count = len(keys)
        start = time.perf_counter()
        codes = self._store.batch_put_from(keys, self._pointers[:count], self._sizes[:count])
        spent = time.perf_counter() - start
        if any(codes):
            raise RuntimeError(f"batch_put_from returned {codes}")
        return spent

    def get(self, keys: list[str]) -> float:
        """Fetch into the lanes; seconds."""
        count = len(keys)
        start = time.perf_counter()
        sizes = self._store.batch_get_into(keys, self._pointers[:count], self._sizes[:count])
        spent = time.perf_counter() - start
        if list(sizes) != self._sizes[:count]:
            raise RuntimeError(f"batch_get_into returned {sizes}")
        return spent

    def exist(self, keys: list[str]) -> tuple[int, float]:
        """How many keys are there, and the seconds of the call."""
        start = time.perf_counter()
        there = self._store.batch_is_exist(keys)
        return sum(code == 1 for code in there), time.perf_counter() - start

    def clear(self, keys: list[str]) -> None:
        """Remove keys, also those that were read a moment ago."""
        self._store.batch_remove(keys, True)

    def close(self) -> None:
        """Leave the store."""
        self._store.close()
