"""Compiled policies against plain models, and any policy under a store with pins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.cache.invariants import check_invariants
from dpu_agent.cache.policy.lru_k import LruKPolicy
from dpu_agent.cache.policy.mq import MqPolicy
from dpu_agent.cache.policy.registry import POLICIES, make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.planning.planner import hits_of, simulated_hits
from kvlane.capsule import KeyStatus
from kvlane.limits import MIN_BLOCK_BYTES
from tests.support.access_patterns import as_accesses, zipf_names
from tests.support.policy_models import MODELS, lru_k, mq

every_model = pytest.mark.parametrize("name", sorted(MODELS))
every_exact_model = pytest.mark.parametrize("name", sorted(MODELS.keys() - {"w_tinylfu"}))
"""Without the one whose sketch confuses some of many keys."""


def model_hits(name: str, names: list[int], capacity: int) -> int:
    access = MODELS[name](capacity)
    return sum(access(block) for block in names)


@every_model
@given(names=st.lists(st.integers(0, 14), min_size=1, max_size=120), capacity=st.integers(1, 12))
def test_like_the_model(name: str, names: list[int], capacity: int) -> None:
    assert hits_of(name, as_accesses(names), capacity)[0] == model_hits(name, names, capacity)


@every_exact_model
@pytest.mark.parametrize("capacity", [10, 50])
def test_like_the_model_for_longer(name: str, capacity: int) -> None:
    names = zipf_names(distinct=200, count=3_000, exponent=0.8, seed=capacity)
    assert hits_of(name, as_accesses(names), capacity)[0] == model_hits(name, names, capacity)


@given(
    names=st.lists(st.integers(0, 14), min_size=1, max_size=150),
    capacity=st.integers(1, 6),
    lifetime=st.integers(1, 20),
)
def test_mq_demotes_like_the_model(names: list[int], capacity: int, lifetime: int) -> None:
    access = mq(capacity, lifetime)
    policy = MqPolicy(capacity, lifetime_accesses=lifetime)
    expected = sum(access(block) for block in names)
    assert simulated_hits(policy, as_accesses(names), capacity)[0] == expected


@given(
    names=st.lists(st.integers(0, 14), min_size=1, max_size=120),
    capacity=st.integers(1, 6),
    k=st.integers(1, 4),
    retained=st.integers(0, 3),
)
def test_lru_k_for_every_k(names: list[int], capacity: int, k: int, retained: int) -> None:
    access = lru_k(capacity, k, retained)
    policy = LruKPolicy(capacity, k=k, retained_per_block=retained)
    expected = sum(access(block) for block in names)
    assert simulated_hits(policy, as_accesses(names), capacity)[0] == expected


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(3))
def test_a_store_with_pins_stays_consistent(name: str, seed: int) -> None:
    capacity = 12
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 256, (40, 32), np.uint8)
    policy = make_policy(name, capacity)
    store = BlockStore(
        capacity_blocks=capacity, block_bytes=MIN_BLOCK_BYTES, policy=policy, seed=seed
    )
    held = np.empty(0, np.int64)
    for now in range(150):
        batch = keys[rng.choice(len(keys), size=rng.integers(1, 6), replace=False)]
        slots, statuses = store.reserve(batch, np.full(len(batch), 8, np.int64))
        assert set(statuses.tolist()) <= {KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NO_SPACE}
        written = slots[slots >= 0]
        if rng.integers(4):
            store.publish(written, np.zeros(len(written), np.uint32), now)
        else:
            store.abort(written)
        store.unpin(held, store.generations(held))
        pinned = store.pin(keys[rng.choice(len(keys), size=6, replace=False)], now)
        held = pinned[pinned >= 0]
        if not rng.integers(5):
            store.delete(keys[rng.integers(0, len(keys), 2)])
            # Deleted blocks are free only when their readers have let go.
            store.unpin(held, store.generations(held))
            held = np.empty(0, np.int64)
        check_invariants(store)
    assert store.stats().policy_faults == 0
    assert store.stats().evicted > 0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_when_all_is_pinned_nothing_is_chosen(name: str) -> None:
    capacity = 4
    keys = np.random.default_rng(5).integers(0, 256, (capacity + 1, 32), np.uint8)
    store = BlockStore(
        capacity_blocks=capacity,
        block_bytes=MIN_BLOCK_BYTES,
        policy=make_policy(name, capacity),
        seed=1,
    )
    slots, _ = store.reserve(keys[:capacity], np.full(capacity, 8, np.int64))
    store.publish(slots, np.zeros(capacity, np.uint32), 0)
    pinned = store.pin(keys[:capacity], 1)
    _, statuses = store.reserve(keys[capacity:], np.full(1, 8, np.int64))
    assert statuses.tolist() == [KeyStatus.NO_SPACE]
    store.unpin(pinned[:1], store.generations(pinned[:1]))
    slots, statuses = store.reserve(keys[capacity:], np.full(1, 8, np.int64))
    assert (slots.tolist(), statuses.tolist()) == ([int(pinned[0])], [KeyStatus.OK])
