"""The policy ``reuse`` under any traffic: its records hold together, and prefixes come first."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpu_agent.cache._slot_kernels import SlotState, states
from dpu_agent.cache.invariants import check_invariants
from dpu_agent.cache.policy.reuse import ReusePolicy
from dpu_agent.cache.store import BlockStore
from kvlane.limits import MIN_BLOCK_BYTES
from tests.support.call_kernels import call_through
from tests.support.reuse_checker import check_reuse

_SECOND_NS = 1_000_000_000
CAPACITY = 8
# Numbers of branches: a chain is a path in a tree, so chains share what they have in common.
paths = st.lists(st.integers(0, 2), min_size=1, max_size=6)
steps = st.lists(
    st.tuples(paths, st.integers(0, 90), st.sampled_from(["turn", "turn", "blind", "delete"])),
    max_size=40,
)


def chain_of(path: list[int]) -> np.ndarray:
    """Keys of the nodes on a path; no key is in the tree twice."""
    keys = np.zeros((len(path), 32), np.uint8)
    for depth in range(len(path)):
        keys[depth, : depth + 1] = np.array(path[: depth + 1]) + 1
        keys[depth, 31] = depth + 1
    return keys


def new_store(seed: int = 3) -> tuple[BlockStore, ReusePolicy]:
    policy = ReusePolicy(CAPACITY)
    store = BlockStore(
        capacity_blocks=CAPACITY, block_bytes=MIN_BLOCK_BYTES, policy=policy, seed=seed
    )
    return store, policy


def store_all(store: BlockStore, keys: np.ndarray, now: int) -> None:
    slots, _ = store.reserve(keys, np.full(len(keys), 8, np.int64))
    written = slots[slots >= 0]
    store.publish(written, np.zeros(len(written), np.uint32), now)


def read_all(store: BlockStore, keys: np.ndarray, now: int) -> None:
    slots = store.pin(keys, now)
    held = slots[slots >= 0]
    store.unpin(held, store.generations(held))


def serve(store: BlockStore, keys: np.ndarray, now: int) -> int:
    """Match, retrieve what is there, store the rest."""
    matched = store.match(keys, now)
    read_all(store, keys[:matched], now)
    store_all(store, keys[matched:], now)
    return matched


def published(store: BlockStore) -> int:
    return int(np.count_nonzero(states(store.arrays.table) == SlotState.PUBLISHED))


@settings(max_examples=40, deadline=None)
@given(steps=steps)
def test_its_records_hold_together(steps: list[tuple[list[int], int, str]]) -> None:
    store, policy = new_store()
    now = 0
    for path, pause_s, what in steps:
        now += pause_s * _SECOND_NS
        keys = chain_of(path)
        if what == "turn":
            serve(store, keys, now)
        elif what == "blind":
            read_all(store, keys[::2], now)
            store_all(store, keys[1::2], now)
        else:
            store.delete(keys[-1:])
        assert store.stats().policy_faults == 0
    check_invariants(store)
    check_reuse(policy)


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(st.tuples(paths, st.integers(0, 90)), max_size=40))
def test_eviction_makes_no_orphan(turns: list[tuple[list[int], int]]) -> None:
    """While whole chains are stored and nothing is deleted, what is here begins at the start."""
    store, _ = new_store()
    now, chains = 0, []
    for path, pause_s in turns:
        now += pause_s * _SECOND_NS
        chains.append(chain_of(path))
        serve(store, chains[-1], now)
        for keys in chains:
            is_here = store.exist(keys) == 0
            assert not (is_here[1:] & ~is_here[:-1]).any()


def test_what_is_pinned_stays_even_if_all_candidates_are() -> None:
    store, _ = new_store()
    keys = chain_of([0] * 6)
    serve(store, keys, 0)
    serve(store, chain_of([1, 1]), _SECOND_NS)
    assert published(store) == CAPACITY
    # The ends of both chains are being read: only what comes before them can go.
    held = store.pin(np.concatenate((keys[-1:], chain_of([1, 1])[-1:])), 2 * _SECOND_NS)
    for number in range(CAPACITY):
        store_all(store, chain_of([2] * (number + 1))[-1:], (3 + number) * _SECOND_NS)
    assert (states(store.arrays.table)[held] == SlotState.PUBLISHED).all()
    assert store.stats().policy_faults == 0
    store.unpin(held, store.generations(held))
    check_invariants(store)


def test_keys_that_look_alike_are_kept_apart() -> None:
    policy = ReusePolicy(4)
    calls = policy.calls
    for slot in range(4):
        assert call_through(calls.inserted, calls.context, slot, 77, 0) == 0
    check_reuse(policy)
    assert sorted(policy.ordered().tolist()) == [0, 1, 2, 3]
    for slot in range(4):
        assert call_through(calls.removed, calls.context, slot, 1, 0) == 0
    check_reuse(policy)
    assert policy.ordered().tolist() == []
