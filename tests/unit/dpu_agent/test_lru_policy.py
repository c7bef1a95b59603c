"""LRU's order against an OrderedDict, and that choosing victims changes nothing."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.policy.registry import POLICIES, make_policy
from kvlane.errors import ConfigError


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def no_pins(capacity: int) -> np.ndarray:
    return np.zeros(capacity, np.uint32)


@pytest.mark.parametrize("seed", range(4))
def test_like_an_ordered_dict(seed: int) -> None:
    capacity = 12
    rng = np.random.default_rng(seed)
    policy, twin = LruPolicy(capacity), OrderedDict[int, None]()
    for step in range(200):
        absent = [slot for slot in range(capacity) if slot not in twin]
        pool = absent if rng.integers(2) else list(twin)
        batch = rng.permutation(np.array(pool, np.int64))[: rng.integers(4)]
        if pool is absent:
            policy.inserted(batch, step)
            twin.update(dict.fromkeys(batch.tolist()))
        elif rng.integers(3):
            policy.touched(np.repeat(batch, 2), step)
            for slot in batch.tolist():
                twin.move_to_end(slot)
        else:
            policy.removed(batch)
            for slot in batch.tolist():
                del twin[slot]
        pins = rng.integers(0, 2, capacity, dtype=np.uint32)
        count = int(rng.integers(capacity + 2))
        unpinned = [slot for slot in twin if not pins[slot]]
        assert policy.victims(count, pins).tolist() == unpinned[:count]
        assert policy.victims(capacity, no_pins(capacity)).tolist() == list(twin)


def test_the_order_within_a_batch_counts() -> None:
    policy = LruPolicy(4)
    policy.inserted(slots(2, 0, 3), 0)
    policy.touched(slots(0, 2, 0), 1)
    assert policy.victims(4, no_pins(4)).tolist() == [3, 2, 0]


def test_pinned_slots_are_passed_over() -> None:
    policy = LruPolicy(4)
    policy.inserted(slots(0, 1, 2, 3), 0)
    pins = np.array([1, 0, 7, 0], np.uint32)
    assert policy.victims(1, pins).tolist() == [1]
    assert policy.victims(4, pins).tolist() == [1, 3]
    assert policy.victims(4, no_pins(4) + 1).tolist() == []


def test_a_policy_is_made_by_name() -> None:
    assert isinstance(make_policy("lru", 4), LruPolicy)


@pytest.mark.parametrize("name", ["LRU", "", "fifo"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    assert name not in POLICIES
    with pytest.raises(ConfigError, match=f"'{name}'.*choose one of: .*lru"):
        make_policy(name, 4)
