"""LFU with time decay, for dialogue: a conversation that has ended does not stay for its past."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._heap_kernels import SlotHeap
from dpu_agent.cache.policy._lfu_decay_kernels import FUNCTIONS, LFU_DECAY
from dpu_agent.cache.policy.base import SlotArray

_NS_PER_S = 1_000_000_000


class LfuDecayPolicy:
    """``EvictionPolicy`` by reads, each of which loses half its weight in every half-life."""

    def __init__(self, capacity_blocks: int, *, half_life_s: int = 600) -> None:
        self._heap = SlotHeap(capacity_blocks)
        self._state = np.zeros(1, LFU_DECAY)
        self._state[0] = (self._heap.address, 0, half_life_s * _NS_PER_S)
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """The least score first."""
        return self._heap.ordered()
