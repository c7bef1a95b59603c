"""A policy driven by keys, as a store that takes in every missed block drives it."""

from __future__ import annotations

from collections.abc import Iterable

from dpu_agent.cache._slot_kernels import ONE_PIN, SlotState, new_slot_table
from dpu_agent.cache.policy.base import EvictionPolicy
from tests.support.call_kernels import call_through


class DrivenPolicy:
    """A cache of keys with a policy's choices."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy = policy
        self.slots: dict[int, int] = {}
        self._free = list(range(capacity))[::-1]
        self._table = new_slot_table(capacity)

    def access(self, key: int, now: int = 0) -> int | None:
        """Read a block, or take it in; the key that left for it."""
        calls = self.policy.calls
        if key in self.slots:
            self._call(calls.touched, self.slots[key], now)
            return None
        self._call(calls.missed, key)
        evicted = None
        if not self._free:
            slot = self.victim()
            evicted = next(cached for cached, its_slot in self.slots.items() if its_slot == slot)
            self.remove(evicted, evicted=True)
        slot = self._free.pop()
        self.slots[key] = slot
        self._call(calls.inserted, slot, key, now)
        return evicted

    def remove(self, key: int, *, evicted: bool) -> None:
        """Take a block out."""
        slot = self.slots.pop(key)
        self._call(self.policy.calls.removed, slot, int(evicted))
        self._free.append(slot)

    def victim(self, pinned: Iterable[int] = ()) -> int:
        """The slot that is to leave while those slots are pinned."""
        self._table["hold"] = int(SlotState.PUBLISHED)
        self._table["hold"][list(pinned)] |= ONE_PIN
        return self._call(self.policy.calls.victim, int(self._table.ctypes.data))

    def _call(self, function: int, first: int, second: int = 0, third: int = 0) -> int:
        return call_through(function, self.policy.calls.context, first, second, third)
