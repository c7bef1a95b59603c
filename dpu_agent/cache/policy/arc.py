"""Adaptive Replacement Cache: learns how much room blocks that were used once deserve."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._arc_kernels import ARC, FUNCTIONS, LISTS, SLOT
from dpu_agent.cache.policy._ghost_kernels import ABSENT, GhostMemory
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy.base import NO_VICTIM, SlotArray


class ArcPolicy:
    """``EvictionPolicy`` with as many ghosts as the paper allows: with the blocks, twice these."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._links = new_links(capacity_blocks, LISTS)
        self._slots = np.zeros(capacity_blocks, SLOT)
        self._ghosts = GhostMemory(2 * capacity_blocks, capacity_blocks)
        self._state = np.zeros(1, ARC)
        self._state["links"] = self._links.ctypes.data
        self._state["slots"] = self._slots.ctypes.data
        self._state["ghosts"] = self._ghosts.address
        self._state["capacity"] = capacity_blocks
        self._state["missed_in"] = ABSENT
        self._state["unremembered"] = NO_VICTIM
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """Blocks used once first, then the others, each from the oldest."""
        heads = range(self._capacity, self._capacity + LISTS)
        return np.array([slot for head in heads for slot in listed(self._links, head)], np.int64)
