"""LRU-K: by the K-th latest use, so that one use alone does not keep a block."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._ghost_kernels import GhostMemory
from dpu_agent.cache.policy._heap_kernels import SlotHeap
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy._lru_k_kernels import FUNCTIONS, LRU_K, SLOT
from dpu_agent.cache.policy.base import SlotArray


class LruKPolicy:
    """``EvictionPolicy`` that remembers K accesses of each block, also for a while after it has
    left: until ``retained_per_block`` times as many blocks as there are slots have left since."""

    def __init__(self, capacity_blocks: int, *, k: int = 2, retained_per_block: int = 4) -> None:
        kept = retained_per_block * capacity_blocks
        self._head = capacity_blocks
        self._links = new_links(capacity_blocks)
        self._heap = SlotHeap(capacity_blocks)
        self._slots = np.zeros(capacity_blocks, SLOT)
        self._times = np.zeros(capacity_blocks * k, np.int64)
        self._ghosts = GhostMemory(kept, capacity_blocks)
        self._ghost_times = np.zeros(self._ghosts.row_count * k, np.int64)
        self._state = np.zeros(1, LRU_K)
        self._state[0] = (
            self._links.ctypes.data,
            self._heap.address,
            self._slots.ctypes.data,
            self._times.ctypes.data,
            self._ghosts.address,
            self._ghost_times.ctypes.data,
            capacity_blocks,
            kept,
            k,
            0,
        )
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """Fewer than K accesses first, then the oldest K-th latest."""
        newcomers = np.array(listed(self._links, self._head), np.int64)
        return np.concatenate((newcomers, self._heap.ordered()))
