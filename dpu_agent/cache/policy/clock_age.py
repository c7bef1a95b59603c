"""CLOCK by reads and age: what was written long ago must be read more often to stay."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._clock_age_kernels import CLOCK_AGE, FUNCTIONS, SLOT
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy.base import SlotArray


class ClockAgePolicy:
    """``EvictionPolicy`` with a counter of reads and the time of writing of each block."""

    def __init__(self, capacity_blocks: int, *, max_reads: int = 7) -> None:
        self._head = capacity_blocks
        self._links = new_links(capacity_blocks)
        self._slots = np.zeros(capacity_blocks, SLOT)
        self._state = np.zeros(1, CLOCK_AGE)
        addresses = (self._links.ctypes.data, self._slots.ctypes.data)
        self._state[0] = (*addresses, capacity_blocks, 0, 0, max_reads)
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """In the order in which the hand comes."""
        return np.array(listed(self._links, self._head), np.int64)
