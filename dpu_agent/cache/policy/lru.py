"""Least recently used: whatever was neither stored nor read for longest goes first."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy._lru_kernels import FUNCTIONS, LRU
from dpu_agent.cache.policy.base import SlotArray


class LruPolicy:
    """``EvictionPolicy`` by order of use; the order of calls is its only clock."""

    def __init__(self, capacity_blocks: int) -> None:
        self._head = capacity_blocks
        self._links = new_links(capacity_blocks)
        self._state = np.zeros(1, LRU)
        self._state[0] = (self._links.ctypes.data, self._head)
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """Oldest first."""
        return np.array(listed(self._links, self._head), np.int64)
