"""An eviction policy in Python whose functions raise when they are told to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyCalls, SlotArray
from kvlane.calls import Callbacks


class FailingPolicy:
    """First in, first out."""

    def __init__(self) -> None:
        self.broken: str | None = None
        """The function of ``PolicyCalls`` that raises."""
        self.asked = 0
        """Calls of it."""
        self.victims_asked_for = 0
        self._slots: list[int] = []
        self._callbacks = Callbacks()
        self.calls = PolicyCalls(
            context=0,
            inserted=self._add("inserted", lambda slot: self._slots.append(slot) or 0),
            touched=self._add("touched", lambda slot: 0),
            removed=self._add("removed", lambda slot: self._slots.remove(slot) or 0),
            missed=self._add("missed", lambda key: 0),
            victim=self._add("victim", self._oldest),
        )

    def _add(self, name: str, answer: Callable[[int], int]) -> int:
        def function(_context: int, first: int, _second: int, _third: int) -> int:
            if self.broken == name:
                self.asked += 1
                raise ZeroDivisionError(f"{name} is broken")
            return answer(first)

        return self._callbacks.add(function)

    def _oldest(self, slot_table: int) -> int:
        self.victims_asked_for += 1
        free = (slot for slot in self._slots if not is_pinned_at(slot_table, slot))
        return next(free, NO_VICTIM)

    def ordered(self) -> SlotArray:
        """As they came."""
        return np.array(self._slots, np.int64)

    def take_fault(self) -> BaseException | None:
        """The exception."""
        return self._callbacks.take_fault()
