"""The batch loops of the block store: each walks the keys or slots of one command.

They keep index, slot table and ledger consistent; the eviction policy is told by the store.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._index_kernels import IndexArrays, KeyWords, find, insert, remove
from dpu_agent.cache._slot_kernels import (
    Ledger,
    SlotState,
    SlotTable,
    add_pin,
    bump_generation,
    drop_pin,
    give_free,
    move_state,
    take_free,
)
from dpu_agent.cache.policy.base import SlotArray
from kvlane.capsule import KeyStatus
from kvlane.jit import kernel

Statuses = NDArray[np.uint8]
"""Shape (n,): a ``KeyStatus`` a key."""

_FREE = int(SlotState.FREE)
_WRITING = int(SlotState.WRITING)
_PUBLISHED = int(SlotState.PUBLISHED)
_CONDEMNED = int(SlotState.CONDEMNED)

# Numbers, not members: the kernel cache notices edits of kernel modules only.
_OK, _EXISTS, _NOT_FOUND, NO_SPACE, _BAD_LENGTH = 0, 1, 2, 3, 4
assert (_OK, _EXISTS, _NOT_FOUND) == (KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NOT_FOUND)
assert (NO_SPACE, _BAD_LENGTH) == (KeyStatus.NO_SPACE, KeyStatus.BAD_LENGTH)


class StoreArrays(NamedTuple):
    """All metadata of one store."""

    by_key: IndexArrays
    table: SlotTable
    ledger: Ledger


@kernel
def _find_published(arrays: StoreArrays, keys: KeyWords, row: int) -> int:
    slot = find(arrays.by_key, keys, row)
    if slot >= 0 and arrays.table[slot]["state"] == _PUBLISHED:
        return slot
    return -1


@kernel
def exist(arrays: StoreArrays, keys: KeyWords) -> Statuses:
    """OK or NOT_FOUND for each key."""
    statuses = np.empty(len(keys), np.uint8)
    for i in range(len(keys)):
        statuses[i] = _OK if _find_published(arrays, keys, i) >= 0 else _NOT_FOUND
    return statuses


@kernel
def match(arrays: StoreArrays, keys: KeyWords) -> int:
    """How many keys, from the first on, are published without a gap."""
    for i in range(len(keys)):
        if _find_published(arrays, keys, i) < 0:
            return i
    return len(keys)


@kernel
def pin(arrays: StoreArrays, keys: KeyWords) -> SlotArray:
    """Pin what is published; slots, -1 where absent."""
    book = arrays.ledger[0]
    slots = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        slot = _find_published(arrays, keys, i)
        slots[i] = slot
        if slot >= 0:
            add_pin(arrays.table, arrays.ledger, slot)
            book["hits"] += 1
        else:
            book["misses"] += 1
    return slots


@kernel
def unpin(
    arrays: StoreArrays, slots: SlotArray, generations: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], int]:
    """Give pins back, all or none; which were still of that generation, and -1 or the
    position of the first slot that has no pin to give back."""
    table = arrays.table
    held = np.zeros(len(slots), np.bool_)
    for i in range(len(slots)):
        slot = slots[i]
        known = 0 <= slot < len(table)
        if known and np.int64(table[slot]["generation"]) != generations[i]:
            continue
        if not known or table[slot]["pins"] == 0:
            for j in range(i):
                if held[j]:
                    add_pin(table, arrays.ledger, slots[j])
            return held, i
        drop_pin(table, arrays.ledger, slot)
        held[i] = True
    for i in range(len(slots)):
        slot = slots[i]
        # A slot listed twice is FREE at its second turn, so it is freed once.
        if held[i] and table[slot]["state"] == _CONDEMNED and table[slot]["pins"] == 0:
            give_free(table, arrays.ledger, slot)
    return held, -1


@kernel
def _begin_writing(arrays: StoreArrays, keys: KeyWords, row: int, length: int, slot: int) -> None:
    insert(arrays.by_key, keys, row, slot)
    bump_generation(arrays.table, slot)
    record = arrays.table[slot]
    record["state"] = _WRITING
    record["length"] = length
    arrays.ledger[0]["writing"] += 1


@kernel
def _withdraw(arrays: StoreArrays, slot: int) -> None:
    """Take a PUBLISHED slot out of sight; the caller decides what becomes of it."""
    remove(arrays.by_key, slot)
    book = arrays.ledger[0]
    book["blocks"] -= 1
    book["bytes"] -= np.int64(arrays.table[slot]["length"])


@kernel
def reserve_free(
    arrays: StoreArrays, keys: KeyWords, lengths: NDArray[np.int64], block_bytes: int
) -> tuple[SlotArray, Statuses, SlotArray]:
    """Reserve as far as free slots reach.

    Returns slots (-1 where none was given), statuses, and the slots that hold keys which
    EXIST. A key for which no slot was left has NO_SPACE, also where it repeats an earlier
    one of the same batch: ``reserve_evicting`` finishes the job.
    """
    book = arrays.ledger[0]
    slots = np.full(len(keys), -1, np.int64)
    statuses = np.empty(len(keys), np.uint8)
    holders = np.empty(len(keys), np.int64)
    held = 0
    for i in range(len(keys)):
        if not 0 < lengths[i] <= block_bytes:
            statuses[i] = _BAD_LENGTH
            continue
        holder = find(arrays.by_key, keys, i)
        if holder >= 0:
            statuses[i] = _EXISTS
            holders[held] = holder
            held += 1
        elif book["free"] > 0:
            statuses[i] = _OK
            slots[i] = take_free(arrays.table, arrays.ledger)
            _begin_writing(arrays, keys, i, lengths[i], slots[i])
        else:
            statuses[i] = NO_SPACE
    book["already_stored"] += held
    return slots, statuses, holders[:held]


@kernel
def reserve_evicting(
    arrays: StoreArrays,
    keys: KeyWords,
    lengths: NDArray[np.int64],
    victims: SlotArray,
    slots: SlotArray,
    statuses: Statuses,
) -> int:
    """Serve the keys that ``reserve_free`` left, each with the slot of the next victim.

    Changes ``slots`` and ``statuses``; returns how many victims were evicted.
    """
    book = arrays.ledger[0]
    evicted = 0
    for i in range(len(keys)):
        if statuses[i] != NO_SPACE:
            continue
        if find(arrays.by_key, keys, i) >= 0:
            statuses[i] = _EXISTS
            book["already_stored"] += 1
        elif evicted < len(victims):
            slot = victims[evicted]
            evicted += 1
            _withdraw(arrays, slot)
            _begin_writing(arrays, keys, i, lengths[i], slot)
            slots[i] = slot
            statuses[i] = _OK
        else:
            book["refused"] += 1
    book["evicted"] += evicted
    return evicted


@kernel
def publish(arrays: StoreArrays, slots: SlotArray, checksums: NDArray[np.int64]) -> int:
    """WRITING to PUBLISHED, all or none; -1, or the position of the first that cannot."""
    wrong = move_state(arrays.table, slots, _WRITING, _PUBLISHED)
    if wrong >= 0:
        return wrong
    book = arrays.ledger[0]
    for i in range(len(slots)):
        record = arrays.table[slots[i]]
        record["checksum"] = checksums[i]
        book["bytes"] += np.int64(record["length"])
    book["blocks"] += len(slots)
    book["stored"] += len(slots)
    book["writing"] -= len(slots)
    return -1


@kernel
def abort(arrays: StoreArrays, slots: SlotArray) -> int:
    """WRITING to FREE, all or none; -1, or the position of the first that cannot."""
    wrong = move_state(arrays.table, slots, _WRITING, _FREE)
    if wrong >= 0:
        return wrong
    for i in range(len(slots)):
        remove(arrays.by_key, slots[i])
        give_free(arrays.table, arrays.ledger, slots[i])
    book = arrays.ledger[0]
    book["writing"] -= len(slots)
    book["aborted"] += len(slots)
    return -1


@kernel
def delete(arrays: StoreArrays, keys: KeyWords) -> tuple[Statuses, SlotArray]:
    """Delete what is published; statuses, and the slots that left the policy's care."""
    statuses = np.empty(len(keys), np.uint8)
    gone = np.empty(len(keys), np.int64)
    deleted = 0
    for i in range(len(keys)):
        slot = _find_published(arrays, keys, i)
        if slot < 0:
            statuses[i] = _NOT_FOUND
            continue
        statuses[i] = _OK
        gone[deleted] = slot
        deleted += 1
        _withdraw(arrays, slot)
        if arrays.table[slot]["pins"] > 0:
            arrays.table[slot]["state"] = _CONDEMNED
        else:
            give_free(arrays.table, arrays.ledger, slot)
    arrays.ledger[0]["deleted"] += deleted
    return statuses, gone[:deleted]
