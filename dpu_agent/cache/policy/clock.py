"""CLOCK: the oldest block goes unless it was read since the hand passed it."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._clock_kernels import CLOCK, COUNT, FUNCTIONS
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy.base import SlotArray


class ClockPolicy:
    """``EvictionPolicy`` with a counter of reads a block; of one bit, as in the textbook."""

    def __init__(self, capacity_blocks: int, *, counter_bits: int = 1) -> None:
        self._head = capacity_blocks
        self._links = new_links(capacity_blocks)
        self._reads = np.zeros(capacity_blocks, COUNT)
        self._state = np.zeros(1, CLOCK)
        addresses = (self._links.ctypes.data, self._reads.ctypes.data)
        self._state[0] = (*addresses, self._head, 0, (1 << counter_bits) - 1)
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """In the order in which the hand comes."""
        return np.array(listed(self._links, self._head), np.int64)
