"""What holds of a block store between any two calls; for tests and checkers, not fast."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._index_kernels import find_all
from dpu_agent.cache._slot_kernels import END_OF_LIST, SlotState, is_guessed, pins, states
from dpu_agent.cache.store import BlockStore


def check_invariants(store: BlockStore) -> None:
    """Raise ``AssertionError`` naming the first rule that does not hold."""
    state = states(store.arrays.table)
    _check_index(store, np.flatnonzero(np.isin(state, [SlotState.WRITING, SlotState.PUBLISHED])))
    _check_free_list(store, np.flatnonzero(state == SlotState.FREE))
    _check_pins(store)
    _check_ledger(store)
    if store.stats().policy_faults:
        return
    published = np.flatnonzero(state == SlotState.PUBLISHED)
    ordered = store.policy.ordered()
    _require(
        np.array_equal(np.sort(ordered), published),
        f"the policy orders slots {ordered}, published are {published}",
    )


def _require(holds: bool | np.bool_, rule: str) -> None:
    if not holds:
        raise AssertionError(rule)


def _check_index(store: BlockStore, keyed: NDArray[np.intp]) -> None:
    index = store.arrays.by_key
    _require(
        np.array_equal(find_all(index, index.keys[keyed]), keyed),
        "the key of each slot that is written or published leads to that slot",
    )
    _require(
        np.count_nonzero(index.entries) == len(keyed),
        "the index has no entry beyond the slots that are written or published",
    )


def _check_free_list(store: BlockStore, free: NDArray[np.intp]) -> None:
    book = store.arrays.ledger[0]
    chained: list[int] = []
    slot = int(book["free_head"])
    while slot != END_OF_LIST and len(chained) <= store.capacity_blocks:
        chained.append(slot)
        slot = int(store.arrays.table["next_free"][slot])
    _require(sorted(chained) == free.tolist(), f"the free list is {chained}, FREE are {free}")
    _require(book["free"] == len(free), "the ledger counts the free slots")


def _check_pins(store: BlockStore) -> None:
    state, readers = states(store.arrays.table), pins(store.arrays.table)
    unpinnable = np.isin(state, [SlotState.FREE, SlotState.WRITING])
    _require(not readers[unpinnable].any(), "a slot that is free or being written has no pin")
    _require(readers[state == SlotState.CONDEMNED].all(), "a condemned slot is pinned")


def _check_ledger(store: BlockStore) -> None:
    table, stats = store.arrays.table, store.stats()
    state = states(table)
    published = state == SlotState.PUBLISHED
    counted = {
        "blocks": np.count_nonzero(published),
        "bytes": int(table["length"][published].sum()),
        "pinned": np.count_nonzero(pins(table)),
        "writing": np.count_nonzero(state == SlotState.WRITING),
        "stored": stats.blocks + stats.evicted + stats.deleted,
    }
    for name, count in counted.items():
        _require(getattr(stats, name) == count, f"stats().{name} is {count}")
    guessed = is_guessed(table)
    _require(not guessed[~published].any(), "only a published block was brought here on a guess")
    guesses = store.guesses()
    _require(guesses.open == np.count_nonzero(guessed), "guesses().open counts them")
    _require(guesses.open_bytes == int(table["length"][guessed].sum()), "and their bytes")
    used = state != SlotState.FREE
    _require(table["generation"][used].all(), "a slot in use has a generation")
