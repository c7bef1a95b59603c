"""Least frequently used: the fewest uses go first, among equals the least recently used."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._heap_kernels import SlotHeap
from dpu_agent.cache.policy._lfu_kernels import FUNCTIONS, LFU
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy.base import SlotArray


class LfuPolicy:
    """``EvictionPolicy`` that counts uses for as long as a block is there."""

    def __init__(self, capacity_blocks: int) -> None:
        self._head = capacity_blocks
        self._links = new_links(capacity_blocks)
        self._heap = SlotHeap(capacity_blocks)
        self._uses = np.zeros(capacity_blocks, np.int64)
        self._state = np.zeros(1, LFU)
        addresses = (self._links.ctypes.data, self._heap.address, self._uses.ctypes.data)
        self._state[0] = (*addresses, capacity_blocks, 0)
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """Fewest uses first."""
        used_once = np.array(listed(self._links, self._head), np.int64)
        return np.concatenate((used_once, self._heap.ordered()))
