"""Multi-Queue: recency and frequency, with the frequency of evicted blocks remembered."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._ghost_kernels import GhostMemory
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy._mq_kernels import FUNCTIONS, MQ, QUEUES, SLOT
from dpu_agent.cache.policy.base import SlotArray

_GHOSTS_PER_BLOCK = 4


class MqPolicy:
    """``EvictionPolicy`` with eight queues."""

    def __init__(self, capacity_blocks: int, *, lifetime_accesses: int = 10_000) -> None:
        self._capacity = capacity_blocks
        kept = _GHOSTS_PER_BLOCK * capacity_blocks
        self._links = new_links(capacity_blocks, QUEUES)
        self._slots = np.zeros(capacity_blocks, SLOT)
        self._ghosts = GhostMemory(kept, capacity_blocks)
        self._state = np.zeros(1, MQ)
        self._state[0] = (
            self._links.ctypes.data,
            self._slots.ctypes.data,
            self._ghosts.address,
            capacity_blocks,
            kept,
            lifetime_accesses,
            0,
        )
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """The lowest queue first, each from its oldest."""
        heads = range(self._capacity, self._capacity + QUEUES)
        return np.array([slot for head in heads for slot in listed(self._links, head)], np.int64)
