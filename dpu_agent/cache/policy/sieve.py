"""SIEVE: new blocks that nobody reads leave soon, and a read costs one store."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy._sieve_kernels import FUNCTIONS, SIEVE, VISITED
from dpu_agent.cache.policy.base import SlotArray


class SievePolicy:
    """``EvictionPolicy`` with one bit a block."""

    def __init__(self, capacity_blocks: int) -> None:
        self._head = capacity_blocks
        self._links = new_links(capacity_blocks)
        self._visited = np.zeros(capacity_blocks, VISITED)
        self._state = np.zeros(1, SIEVE)
        addresses = (self._links.ctypes.data, self._visited.ctypes.data)
        self._state[0] = (*addresses, self._head, 0, self._head)
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """In the order of the queue, oldest first; the hand decides where it is looked at."""
        return np.array(listed(self._links, self._head), np.int64)
