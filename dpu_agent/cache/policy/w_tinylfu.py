"""W-TinyLFU: a block enters the main cache only if it is asked for more often than what leaves."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._frequency_sketch_kernels import FrequencySketch
from dpu_agent.cache.policy._list_kernels import listed, new_links
from dpu_agent.cache.policy._w_tinylfu_kernels import FUNCTIONS, SEGMENTS, SLOT, W_TINYLFU
from dpu_agent.cache.policy.base import SlotArray

_WINDOW_SHARE = 0.01
_KEPT_SHARE = 0.8
"""Of the main cache."""


class WTinyLfuPolicy:
    """``EvictionPolicy`` with the shares of the paper."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        window = max(int(_WINDOW_SHARE * capacity_blocks), 1)
        self._links = new_links(capacity_blocks, SEGMENTS)
        self._slots = np.zeros(capacity_blocks, SLOT)
        self._sketch = FrequencySketch(capacity_blocks)
        self._state = np.zeros(1, W_TINYLFU)
        self._state[0] = (
            self._links.ctypes.data,
            self._slots.ctypes.data,
            self._sketch.address,
            capacity_blocks,
            window,
            int(_KEPT_SHARE * (capacity_blocks - window)),
            0,
            0,
        )
        self.calls = FUNCTIONS.on(self._state)

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def ordered(self) -> SlotArray:
        """The window first, then the main cache, each list from its oldest; the sketch decides
        between window and main cache when somebody must leave."""
        heads = range(self._capacity, self._capacity + SEGMENTS)
        return np.array([slot for head in heads for slot in listed(self._links, head)], np.int64)
