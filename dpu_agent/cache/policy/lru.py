"""Least recently used: whatever was neither stored nor read for longest goes first."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy import _lru_kernels as kernels
from dpu_agent.cache.policy.base import PolicyCalls, SlotArray


class LruPolicy:
    """``EvictionPolicy`` by order of use; the order of calls is its only clock."""

    def __init__(self, capacity_blocks: int) -> None:
        self._head = capacity_blocks
        self._links = np.full((capacity_blocks + 1, 2), capacity_blocks, kernels.LINKS)
        self._context = np.array([self._links.ctypes.data, capacity_blocks], np.int64)
        self.calls = PolicyCalls(
            context=int(self._context.ctypes.data),
            inserted=kernels.INSERTED.address,
            touched=kernels.TOUCHED.address,
            removed=kernels.REMOVED.address,
            victim=kernels.VICTIM.address,
        )

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """Oldest first."""
        slots: list[int] = []
        slot = int(self._links[self._head, 1])
        while slot != self._head:
            slots.append(slot)
            slot = int(self._links[slot, 1])
        return np.array(slots, np.int64)
