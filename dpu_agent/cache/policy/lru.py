"""Least recently used: whatever was neither stored nor read for longest goes first."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy import _lru_kernels as kernels
from dpu_agent.cache.policy.base import PinArray, SlotArray


class LruPolicy:
    """``EvictionPolicy`` by order of use; the order of calls is its only clock."""

    def __init__(self, capacity_blocks: int) -> None:
        self._links = np.full((capacity_blocks + 1, 2), capacity_blocks, np.int32)

    def inserted(self, slots: SlotArray, now: int) -> None:  # noqa: ARG002 - the protocol's
        """The last of ``slots`` becomes the newest."""
        kernels.append(self._links, slots)

    def touched(self, slots: SlotArray, now: int) -> None:  # noqa: ARG002 - the protocol's
        """The last of ``slots`` becomes the newest."""
        kernels.renew(self._links, slots)

    def removed(self, slots: SlotArray) -> None:
        """Forget ``slots``."""
        kernels.unlink(self._links, slots)

    def victims(self, count: int, pins: PinArray) -> SlotArray:
        """Up to ``count`` unpinned slots, oldest first."""
        return kernels.oldest_unpinned(self._links, count, pins)
