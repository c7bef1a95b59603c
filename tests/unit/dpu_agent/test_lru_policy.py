"""LRU's order against an OrderedDict, and that choosing victims changes nothing."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from dpu_agent.cache._slot_kernels import ONE_PIN, SlotState, new_slot_table
from dpu_agent.cache.policy.base import NO_VICTIM
from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.policy.registry import POLICIES, make_policy
from kvlane.errors import ConfigError
from tests.support.call_kernels import call_through


class Driven:
    """A policy called by address as the store does, with pins in a slot table."""

    def __init__(self, capacity: int) -> None:
        self.policy = LruPolicy(capacity)
        self.table = new_slot_table(capacity)

    def tell(self, function: int, *slots: int) -> None:
        for slot in slots:
            call_through(function, self.policy.calls.context, slot, 0, 0)

    def victim(self, *pinned: int) -> int:
        self.table["hold"] = 0
        self.table["hold"][list(pinned)] = ONE_PIN | int(SlotState.PUBLISHED)
        calls = self.policy.calls
        return call_through(calls.victim, calls.context, int(self.table.ctypes.data), 0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_like_an_ordered_dict(seed: int) -> None:
    capacity = 12
    rng = np.random.default_rng(seed)
    driven, twin = Driven(capacity), OrderedDict[int, None]()
    calls = driven.policy.calls
    for _ in range(200):
        absent = [slot for slot in range(capacity) if slot not in twin]
        pool = absent if rng.integers(2) else list(twin)
        batch = rng.permutation(np.array(pool, np.int64))[: rng.integers(4)].tolist()
        if pool is absent:
            driven.tell(calls.inserted, *batch)
            twin.update(dict.fromkeys(batch))
        elif rng.integers(3):
            driven.tell(calls.touched, *(slot for slot in batch for _ in range(2)))
            for slot in batch:
                twin.move_to_end(slot)
        else:
            driven.tell(calls.removed, *batch)
            for slot in batch:
                del twin[slot]
        pinned = np.flatnonzero(rng.integers(0, 2, capacity)).tolist()
        unpinned = [slot for slot in twin if slot not in pinned]
        assert driven.victim(*pinned) == (unpinned[0] if unpinned else NO_VICTIM)
        assert driven.policy.ordered().tolist() == list(twin)


def test_choosing_changes_nothing() -> None:
    driven = Driven(4)
    driven.tell(driven.policy.calls.inserted, 2, 0, 3)
    assert [driven.victim(), driven.victim(2), driven.victim(0, 2), driven.victim()] == [2, 0, 3, 2]
    assert driven.victim(0, 2, 3) == NO_VICTIM
    assert driven.policy.ordered().tolist() == [2, 0, 3]


def test_a_policy_is_made_by_name() -> None:
    assert isinstance(make_policy("lru", 4), LruPolicy)


@pytest.mark.parametrize("name", ["LRU", "", "fifo"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    assert name not in POLICIES
    with pytest.raises(ConfigError, match=f"'{name}'.*choose one of: .*lru"):
        make_policy(name, 4)
