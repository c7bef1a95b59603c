"""Small eviction policies in Python, behind the table that compiled ones have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpu_agent.cache.policy.base import NO_VICTIM, NOT_WORTH_A_SLOT, PolicyCalls, SlotArray
from kvlane.calls import Callbacks


class PlainPolicy:
    """Least recently used, or first in, first out; refuses what it is told to. It fails when it is
    called for a slot that it cannot be called for."""

    def __init__(self, *, renews: bool, refuses: Callable[[int], bool]) -> None:
        self._slots: dict[int, None] = {}
        self._callbacks = Callbacks()
        self._renews = renews
        add = self._callbacks.add
        self.calls = PolicyCalls(
            context=0,
            inserted=add(lambda _context, slot, _key, _now: self._insert(slot)),
            touched=add(lambda _context, slot, _now, _unused: self._touch(slot)),
            removed=add(lambda _context, slot, _evicted, _unused: self._remove(slot)),
            missed=add(lambda _context, key, _2, _3: NOT_WORTH_A_SLOT if refuses(key) else 0),
            victim=add(lambda _context, _table, _2, _3: next(iter(self._slots), NO_VICTIM)),
        )

    def _insert(self, slot: int) -> int:
        assert slot not in self._slots
        self._slots[slot] = None
        return 0

    def _touch(self, slot: int) -> int:
        assert slot in self._slots
        if self._renews:
            del self._slots[slot]
            self._slots[slot] = None
        return 0

    def _remove(self, slot: int) -> int:
        del self._slots[slot]
        return 0

    def ordered(self) -> SlotArray:
        """Oldest first."""
        return np.array(list(self._slots), np.int64)

    def take_fault(self) -> BaseException | None:
        """The first failure."""
        return self._callbacks.take_fault()
