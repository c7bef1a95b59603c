"""2Q: only what is asked for again after it has left the trial queue is kept by recency."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._ghost_kernels import GhostMemory
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy._two_q_kernels import FUNCTIONS, QUEUES, SLOT, TWO_Q
from dpu_agent.cache.policy.base import SlotArray

_IN_SHARE = 0.25
_GHOST_SHARE = 0.5


class TwoQPolicy:
    """``EvictionPolicy`` with the shares of the paper."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        kept = int(_GHOST_SHARE * capacity_blocks)
        self._links = new_links(capacity_blocks, QUEUES)
        self._slots = np.zeros(capacity_blocks, SLOT)
        self._ghosts = GhostMemory(kept, capacity_blocks)
        self._state = np.zeros(1, TWO_Q)
        self._state[0] = (
            self._links.ctypes.data,
            self._slots.ctypes.data,
            self._ghosts.address,
            capacity_blocks,
            kept,
            int(_IN_SHARE * capacity_blocks),
            0,
        )
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """The trial queue first, each from its oldest."""
        heads = range(self._capacity, self._capacity + QUEUES)
        return np.array([slot for head in heads for slot in listed(self._links, head)], np.int64)
