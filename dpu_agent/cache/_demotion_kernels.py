"""Blocks on their way out of memory into a colder tier: chosen and pinned, then evicted.

A block that leaves is copied first. It is pinned meanwhile, so it is found and read as before, and
its slot becomes free when it is let go.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._index_kernels import KeyWords
from dpu_agent.cache._slot_kernels import (
    SlotState,
    add_pin,
    drop_pin,
    give_free,
    pins_of,
    state_of,
)
from dpu_agent.cache._store_kernels import StoreArrays, find_published, next_victim, withdraw
from dpu_agent.cache.policy.base import SlotArray
from kvlane._ticket_kernels import enter, leave
from kvlane.jit import kernel
from kvlane.limits import KEY_BYTES

_KEY_WORDS = KEY_BYTES // 8
_PUBLISHED = int(SlotState.PUBLISHED)
_CONDEMNED = int(SlotState.CONDEMNED)


class Leaving(NamedTuple):
    """Blocks that are pinned to be copied; one row a block."""

    slots: SlotArray
    keys: KeyWords
    generations: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.int64]


@kernel
def hold(arrays: StoreArrays, keys: KeyWords) -> SlotArray:
    """Pin what is published, -1 for the rest; neither books nor policy take it for a use."""
    enter(arrays.gate)
    slots = find_published(arrays, keys)
    for i in range(len(slots)):
        if slots[i] >= 0:
            add_pin(arrays.table, arrays.ledger, slots[i])
    leave(arrays.gate)
    return slots


@kernel
def describe(arrays: StoreArrays, slots: SlotArray) -> Leaving:
    """What is known of blocks that the caller has pinned."""
    keys = np.empty((len(slots), _KEY_WORDS), np.int64)
    generations = np.empty(len(slots), np.int64)
    lengths = np.empty(len(slots), np.int64)
    checksums = np.empty(len(slots), np.int64)
    for i in range(len(slots)):
        row = arrays.table[slots[i]]
        keys[i] = arrays.by_key.keys[slots[i]]
        generations[i] = np.int64(row["generation"])
        lengths[i] = np.int64(row["length"])
        checksums[i] = np.int64(row["checksum"])
    return Leaving(slots, keys, generations, lengths, checksums)


@kernel
def choose_leaving(arrays: StoreArrays, most: int) -> Leaving:
    """Pin the most dispensable blocks that nobody reads, as many as there are up to ``most``."""
    enter(arrays.gate)
    slots = np.empty(most, np.int64)
    count = 0
    while count < most:
        slot = next_victim(arrays)
        if slot < 0:
            break
        add_pin(arrays.table, arrays.ledger, slot)
        slots[count] = slot
        count += 1
    leaving = describe(arrays, slots[:count])
    leave(arrays.gate)
    return leaving


@kernel
def let_go(
    arrays: StoreArrays, slots: SlotArray, generations: NDArray[np.int64], evict: bool
) -> None:
    """Give the pins back, and evict what nobody else reads, if so wished."""
    enter(arrays.gate)
    table, book = arrays.table, arrays.ledger[0]
    for i in range(len(slots)):
        slot = slots[i]
        if np.int64(table[slot]["generation"]) != generations[i] or pins_of(table, slot) == 0:
            continue
        drop_pin(table, arrays.ledger, slot)
        state = state_of(table, slot)
        if pins_of(table, slot) != 0:
            continue
        if state == _CONDEMNED:
            give_free(table, arrays.ledger, slot)
        elif evict and state == _PUBLISHED:
            withdraw(arrays, slot, 1)
            give_free(table, arrays.ledger, slot)
            book["demoted"] += 1
    leave(arrays.gate)


@kernel
def are_there(
    arrays: StoreArrays, slots: SlotArray, generations: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which of the blocks, that the caller has pinned, were not deleted meanwhile."""
    enter(arrays.gate)
    found = np.zeros(len(slots), np.bool_)
    for i in range(len(slots)):
        same = np.int64(arrays.table[slots[i]]["generation"]) == generations[i]
        found[i] = same and state_of(arrays.table, slots[i]) == _PUBLISHED
    leave(arrays.gate)
    return found
