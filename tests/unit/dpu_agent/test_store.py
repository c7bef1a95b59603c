"""The block store's rules, one at a time: who may write, who may read, what makes room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from dpu_agent.cache._slot_kernels import SlotState, states
from dpu_agent.cache.invariants import check_invariants
from dpu_agent.cache.policy.base import SlotArray
from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.store import BlockStore
from kvlane.capsule import KeyArray, KeyStatus
from kvlane.errors import ConfigError
from kvlane.limits import MAX_BLOCK_BYTES
from tests.support.blocks import random_keys
from tests.support.call_kernels import PINNED_SLOT_0

OK, EXISTS, NOT_FOUND = KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NOT_FOUND
NO_SPACE, BAD_LENGTH = KeyStatus.NO_SPACE, KeyStatus.BAD_LENGTH
BLOCK_BYTES = 128
KEYS = random_keys(12)


def make_store(capacity: int = 4, policy: LruPolicy | None = None) -> BlockStore:
    return BlockStore(
        capacity_blocks=capacity,
        block_bytes=BLOCK_BYTES,
        policy=policy or LruPolicy(capacity),
        seed=7,
    )


def reserve(store: BlockStore, keys: KeyArray) -> tuple[SlotArray, list[int]]:
    slots, statuses = store.reserve(keys, np.full(len(keys), BLOCK_BYTES))
    check_invariants(store)
    return slots, statuses.tolist()


def publish(store: BlockStore, slots: SlotArray) -> None:
    store.publish(slots, np.zeros(len(slots), np.uint32), now=0)
    check_invariants(store)


def put(store: BlockStore, keys: KeyArray) -> SlotArray:
    slots, statuses = reserve(store, keys)
    assert statuses == [OK] * len(keys)
    publish(store, slots)
    return slots


def pin(store: BlockStore, keys: KeyArray) -> tuple[SlotArray, NDArray[np.uint32]]:
    slots = store.pin(keys, now=0)
    check_invariants(store)
    return slots, store.generations(slots)


def stored(store: BlockStore, rows: Sequence[int] = range(len(KEYS))) -> list[int]:
    """Which of KEYS the store has."""
    return [row for row in rows if store.exist(KEYS[row : row + 1])[0] == OK]


# Writing


def test_the_first_writer_wins() -> None:
    store = make_store()
    first, _ = reserve(store, KEYS[:1])
    second, statuses = reserve(store, KEYS[:1])
    assert (second.tolist(), statuses) == ([-1], [EXISTS])
    publish(store, first)
    again, statuses = reserve(store, KEYS[:1])
    assert (again.tolist(), statuses) == ([-1], [EXISTS])
    assert store.stats().already_stored == 2


def test_the_second_of_a_key_in_one_batch_exists() -> None:
    store = make_store()
    slots, statuses = reserve(store, KEYS[[0, 1, 0]])
    assert statuses == [OK, OK, EXISTS]
    assert slots[2] == -1
    assert store.stats().writing == 2


def test_a_block_is_absent_until_published() -> None:
    store = make_store()
    slots, _ = reserve(store, KEYS[:2])
    assert store.exist(KEYS[:2]).tolist() == [NOT_FOUND, NOT_FOUND]
    assert store.match(KEYS[:2]) == 0
    assert store.pin(KEYS[:2], now=0).tolist() == [-1, -1]
    assert store.delete(KEYS[:2]).tolist() == [NOT_FOUND, NOT_FOUND]
    publish(store, slots[:1])
    assert store.exist(KEYS[:2]).tolist() == [OK, NOT_FOUND]
    assert store.match(KEYS[:2]) == 1


def test_what_was_published_is_what_readers_see() -> None:
    store = make_store()
    slots, _ = store.reserve(KEYS[:3], np.array([1, 100, BLOCK_BYTES]))
    checksums = np.array([0, 0xDEADBEEF, 0xFFFFFFFF], np.uint32)
    store.publish(slots, checksums, now=1)
    pinned, _ = pin(store, KEYS[[2, 0, 1]])
    assert pinned.tolist() == slots[[2, 0, 1]].tolist()
    assert store.lengths(pinned).tolist() == [BLOCK_BYTES, 1, 100]
    assert store.checksums(pinned).tolist() == checksums[[2, 0, 1]].tolist()
    assert store.stats().bytes == BLOCK_BYTES + 101


@pytest.mark.parametrize("length", [0, -1, BLOCK_BYTES + 1, 1 << 32])
def test_a_block_that_fits_no_slot_is_refused(length: int) -> None:
    store = make_store(capacity=1)
    slots, statuses = store.reserve(KEYS[:2], np.array([length, 1]))
    assert statuses.tolist() == [BAD_LENGTH, OK]
    assert slots.tolist() == [-1, 0]


def test_abort_leaves_nothing() -> None:
    store = make_store(capacity=1)
    slots, _ = reserve(store, KEYS[:1])
    store.abort(slots)
    check_invariants(store)
    assert stored(store) == []
    assert store.stats().aborted == 1
    put(store, KEYS[:1])
    assert stored(store) == [0]


def test_only_reserved_slots_are_published_or_aborted() -> None:
    store = make_store(capacity=4)
    slots, _ = reserve(store, KEYS[:4])
    publish(store, slots[:1])
    store.abort(slots[1:2])
    for wrong in ([2, 3, 0], [2, 3, 2], [1], [4], [-1]):
        slots = np.array(wrong, np.int64)
        with pytest.raises(AssertionError, match=f"slot {wrong[-1]} is not reserved"):
            store.publish(slots, np.zeros(len(slots), np.uint32), now=0)
        with pytest.raises(AssertionError, match=f"slot {wrong[-1]} is not reserved"):
            store.abort(slots)
        check_invariants(store)
        assert stored(store) == [0]
        assert store.stats().writing == 2


# Eviction


def test_eviction_takes_the_oldest_and_no_more_than_needed() -> None:
    store = make_store(capacity=4)
    put(store, KEYS[:3])
    slots, statuses = reserve(store, KEYS[[4, 5, 5, 6, 4]])
    assert statuses == [OK, OK, EXISTS, OK, EXISTS]
    assert store.stats().evicted == 2
    assert (store.displaced_blocks, store.demoted_blocks) == (2, 0)
    assert stored(store) == [2]
    publish(store, slots[slots >= 0])
    assert stored(store) == [2, 4, 5, 6]


def test_reading_keeps_a_block_and_peeking_does_not() -> None:
    store = make_store(capacity=3)
    put(store, KEYS[:3])
    store.unpin(*pin(store, KEYS[:1]))
    store.exist(KEYS[1:2])
    store.match(KEYS[1:2])
    reserve(store, KEYS[5:6])
    assert stored(store) == [0, 2]


def test_pinned_and_unfinished_blocks_are_never_evicted() -> None:
    store = make_store(capacity=4)
    put(store, KEYS[:3])
    reserve(store, KEYS[3:4])
    pinned, generations = pin(store, KEYS[[0, 2]])
    slots, statuses = reserve(store, KEYS[4:7])
    assert statuses == [OK, NO_SPACE, NO_SPACE]
    assert slots.tolist()[1:] == [-1, -1]
    assert stored(store) == [0, 2]
    assert store.stats().refused == 2
    assert store.unpin(pinned, generations).all()
    assert reserve(store, KEYS[5:7])[1] == [OK, OK]


def test_a_batch_does_not_push_out_its_own_chain() -> None:
    store = make_store(capacity=3)
    put(store, KEYS[:3])
    slots, statuses = reserve(store, KEYS[[9, 0, 1]])
    assert statuses == [OK, EXISTS, EXISTS]
    assert stored(store) == [0, 1]
    store.abort(slots[:1])
    put(store, KEYS[2:3])
    assert reserve(store, KEYS[[9, 0, 1, 2, 9]])[1] == [NO_SPACE, EXISTS, EXISTS, EXISTS, NO_SPACE]
    assert reserve(store, KEYS[9:10])[1] == [OK]


def test_a_policy_that_offers_a_pinned_block_is_caught() -> None:
    store = make_store(capacity=2)
    put(store, KEYS[:2])
    reckless = store.policy.calls._replace(victim=PINNED_SLOT_0.address)
    store.arrays = store.arrays._replace(policy=reckless)
    pin(store, KEYS[:2])
    with pytest.raises(AssertionError, match=r"LruPolicy chose slot 0"):
        store.reserve(KEYS[2:3], np.array([1]))
    check_invariants(store)
    assert stored(store) == [0, 1]


# Reading


def test_pins_count_for_each_occurrence() -> None:
    store = make_store(capacity=1)
    put(store, KEYS[:1])
    slots, generations = pin(store, KEYS[[0, 0]])
    assert slots.tolist() == [0, 0]
    assert store.stats().pinned == 1
    store.unpin(slots[:1], generations[:1])
    assert reserve(store, KEYS[1:2])[1] == [NO_SPACE]
    store.unpin(slots[:1], generations[:1])
    assert store.stats().pinned == 0
    assert reserve(store, KEYS[1:2])[1] == [OK]


def test_hits_and_misses_are_counted_by_readers_only() -> None:
    store = make_store()
    put(store, KEYS[:2])
    store.exist(KEYS)
    store.match(KEYS)
    assert (store.stats().hits, store.stats().misses) == (0, 0)
    assert store.pin(KEYS[[0, 5, 1, 6, 7]], now=0).tolist() == [0, -1, 1, -1, -1]
    assert (store.stats().hits, store.stats().misses) == (2, 3)


def test_match_ends_at_the_first_gap() -> None:
    store = make_store()
    put(store, KEYS[[0, 1, 3]])
    assert store.match(KEYS[:4]) == 2
    assert store.match(KEYS[[0, 1, 3]]) == 3
    assert store.match(KEYS[2:4]) == 0
    assert store.match(KEYS[:0]) == 0


def test_a_generation_tells_that_a_slot_was_reused() -> None:
    store = make_store(capacity=1)
    put(store, KEYS[:1])
    slots, old = pin(store, KEYS[:1])
    assert old[0] != 0
    assert store.unpin(slots, old).tolist() == [True]
    put(store, KEYS[1:2])
    _, new = pin(store, KEYS[1:2])
    assert new[0] != old[0]
    assert store.unpin(slots, old).tolist() == [False]
    assert store.stats().pinned == 1, "the new reader keeps its pin"
    assert store.unpin(slots, new).tolist() == [True]


def test_generations_skip_zero_when_they_wrap() -> None:
    store = make_store(capacity=1)
    store.arrays.table["generation"] = 0xFFFFFFFE
    seen = []
    for row in range(3):
        seen += store.generations(put(store, KEYS[row : row + 1])).tolist()
    assert seen == [0xFFFFFFFF, 1, 2]


@pytest.mark.parametrize("slot", [0, 1, 2, 3, 4, -1], ids=lambda slot: f"slot{slot}")
def test_unpin_of_what_is_not_pinned_changes_nothing(slot: int) -> None:
    """Never pinned, pinned once but listed twice, written, free, beyond the table."""
    store = make_store(capacity=4)
    put(store, KEYS[:2])
    reserve(store, KEYS[2:3])
    pinned, generations = pin(store, KEYS[1:2])
    of_slot = store.arrays.table["generation"][slot : slot + 1] if 0 <= slot < 4 else [0]
    # One stale pin and one good one come first: neither may leave a trace.
    slots = np.array([0, *pinned, slot])
    with pytest.raises(AssertionError, match=f"slot {slot} has no pin"):
        store.unpin(slots, np.array([99, *generations, *of_slot], np.uint32))
    check_invariants(store)
    assert store.stats().pinned == 1
    assert store.unpin(pinned, generations).all()


# Deletion


def test_delete_is_seen_at_once() -> None:
    store = make_store()
    put(store, KEYS[:3])
    assert store.delete(KEYS[[1, 5, 1, 2]]).tolist() == [OK, NOT_FOUND, NOT_FOUND, OK]
    check_invariants(store)
    assert stored(store) == [0]
    assert store.stats().deleted == 2


def test_a_block_deleted_under_readers_is_freed_by_the_last() -> None:
    store = make_store(capacity=2)
    put(store, KEYS[:1])
    slots, generations = pin(store, KEYS[[0, 0, 0]])
    store.delete(KEYS[:1])
    assert states(store.arrays.table)[slots[0]] == SlotState.CONDEMNED
    assert store.pin(KEYS[:1], now=0).tolist() == [-1]
    assert (store.stats().blocks, store.stats().pinned) == (0, 1)

    # Its key may come back meanwhile, in another slot; its own is not given away.
    other = put(store, KEYS[:1])
    assert other[0] != slots[0]
    pin(store, KEYS[:1])
    assert reserve(store, KEYS[1:2])[1] == [NO_SPACE]

    assert store.unpin(slots[:1], generations[:1]).all()
    assert reserve(store, KEYS[1:2])[1] == [NO_SPACE]
    assert store.unpin(slots[1:], generations[1:]).all()
    check_invariants(store)
    again, statuses = reserve(store, KEYS[1:2])
    assert (again.tolist(), statuses) == ([slots[0]], [OK])


# Shape


def test_empty_batches_do_nothing() -> None:
    store = make_store()
    nothing, none = KEYS[:0], np.empty(0, np.int64)
    slots, statuses = store.reserve(nothing, none)
    store.publish(slots, none.astype(np.uint32), now=0)
    store.abort(slots)
    pinned, generations = pin(store, nothing)
    assert store.unpin(pinned, generations).tolist() == []
    assert [len(statuses), len(store.exist(nothing)), len(store.delete(nothing))] == [0, 0, 0]
    assert store.stats() == make_store().stats()


def test_slots_lie_side_by_side() -> None:
    store = make_store()
    assert store.slot_offset(3) == 3 * BLOCK_BYTES
    assert store.slot_offset(np.array([0, 2])).tolist() == [0, 2 * BLOCK_BYTES]


@pytest.mark.parametrize("block_bytes", [0, 63, MAX_BLOCK_BYTES + 1])
def test_block_size_outside_the_limits(block_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"block_bytes must be .*not {block_bytes}"):
        BlockStore(capacity_blocks=1, block_bytes=block_bytes, policy=LruPolicy(1), seed=0)
