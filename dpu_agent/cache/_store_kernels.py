"""The batch loops of the block store: each walks the keys or slots of one command.

They keep index, slot table, ledger and eviction policy consistent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._index_kernels import (
    IndexArrays,
    KeyWords,
    find,
    find_all,
    identity_of,
    insert,
    remove,
)
from dpu_agent.cache._slot_kernels import (
    SLOT,
    Ledger,
    SlotState,
    SlotTable,
    add_pin,
    bump_generation,
    drop_pin,
    give_free,
    judge_guess,
    move_state,
    pins_of,
    set_state,
    state_of,
    take_free,
)
from dpu_agent.cache.policy.base import (
    NO_VICTIM,
    NOT_INTERESTED,
    NOT_WORTH_A_SLOT,
    PolicyCalls,
    SlotArray,
)
from kvlane.atomics import prefetch
from kvlane.calls import call
from kvlane.capsule import KeyStatus
from kvlane.jit import kernel

Statuses = NDArray[np.uint8]
"""Shape (n,): a ``KeyStatus`` a key."""

_FREE = int(SlotState.FREE)
_SLOT_BYTES = int(SLOT.itemsize)
_WRITING = int(SlotState.WRITING)
_PUBLISHED = int(SlotState.PUBLISHED)
_CONDEMNED = int(SlotState.CONDEMNED)

# Numbers, not members: the kernel cache notices edits of kernel modules only.
_OK, _EXISTS, _NOT_FOUND, NO_SPACE, _BAD_LENGTH = 0, 1, 2, 3, 4
assert (_OK, _EXISTS, _NOT_FOUND) == (KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NOT_FOUND)
assert (NO_SPACE, _BAD_LENGTH) == (KeyStatus.NO_SPACE, KeyStatus.BAD_LENGTH)


UNFIT = -2
"""At and below it: minus the slot that a policy must not choose."""


class StoreArrays(NamedTuple):
    """All metadata of one store."""

    by_key: IndexArrays
    table: SlotTable
    ledger: Ledger
    policy: PolicyCalls
    block_bytes: int
    """Of a slot."""
    may_refuse: bool
    """Whether a policy may keep a block out; not where there is another tier for it."""
    gate: int
    """Address of the lock of ``kvlane._ticket_kernels`` that ``_shared_store_kernels`` take."""


@kernel
def find_published(arrays: StoreArrays, keys: KeyWords) -> SlotArray:
    """The slot of each key that is published, else -1."""
    slots = find_all(arrays.by_key, keys)
    table = int(arrays.table.ctypes.data)
    for i in range(len(slots)):
        if slots[i] >= 0:
            prefetch(table + _SLOT_BYTES * slots[i])
    for i in range(len(slots)):
        if slots[i] >= 0 and state_of(arrays.table, slots[i]) != _PUBLISHED:
            slots[i] = -1
    return slots


@kernel
def slot_offset(arrays: StoreArrays, slot: Any) -> Any:
    """Where a slot, or each of an array of slots, begins in the payload memory, bytes."""
    return slot * arrays.block_bytes


@kernel
def exist(arrays: StoreArrays, keys: KeyWords) -> Statuses:
    """OK or NOT_FOUND for each key."""
    slots = find_published(arrays, keys)
    statuses = np.empty(len(keys), np.uint8)
    for i in range(len(keys)):
        statuses[i] = _OK if slots[i] >= 0 else _NOT_FOUND
    return statuses


@kernel
def _ask_policy(
    arrays: StoreArrays, function: int, first: int, second: int = 0, third: int = 0
) -> int:
    """What the policy answers; below 0 also when it has failed, now or before.

    A policy that has failed may be wrong about its slots: what it says then could be anything.
    """
    book = arrays.ledger[0]
    if book["policy_faults"] != 0:
        return NO_VICTIM
    answer: int = call(function, arrays.policy.context, first, second, third)
    if answer < 0 and answer != NO_VICTIM:
        book["policy_faults"] += 1
    return answer


@kernel
def announce(arrays: StoreArrays, keys: KeyWords, now: int) -> int:
    """Tell a policy that wants to know of it which chain a request has; how many keys that has."""
    if arrays.policy.asked == NOT_INTERESTED:
        return 0
    identities = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        identities[i] = identity_of(arrays.by_key.secrets, keys, i)
    _ask_policy(arrays, arrays.policy.asked, int(identities.ctypes.data), len(keys), now)
    # Used after the call, so that they live as long.
    return len(identities)


@kernel
def match(arrays: StoreArrays, keys: KeyWords, now: int) -> int:
    """How many keys, from the first on, are published without a gap."""
    announce(arrays, keys, now)
    slots = find_published(arrays, keys)
    for i in range(len(keys)):
        if slots[i] < 0:
            return i
    return len(keys)


@kernel
def pin(arrays: StoreArrays, keys: KeyWords, now: int) -> SlotArray:
    """Pin what is published; slots, -1 where absent."""
    policy = arrays.policy
    book = arrays.ledger[0]
    slots = find_published(arrays, keys)
    for i in range(len(keys)):
        slot = slots[i]
        if slot >= 0:
            add_pin(arrays.table, arrays.ledger, slot)
            judge_guess(arrays.table, arrays.ledger, slot, True)
            _ask_policy(arrays, policy.touched, slot, now)
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
        if not known or pins_of(table, slot) == 0:
            for j in range(i):
                if held[j]:
                    add_pin(table, arrays.ledger, slots[j])
            return held, i
        drop_pin(table, arrays.ledger, slot)
        held[i] = True
    for i in range(len(slots)):
        slot = slots[i]
        # A slot listed twice is FREE at its second turn, so it is freed once.
        if held[i] and state_of(table, slot) == _CONDEMNED and pins_of(table, slot) == 0:
            give_free(table, arrays.ledger, slot)
    return held, -1


@kernel
def _begin_writing(arrays: StoreArrays, keys: KeyWords, row: int, length: int, slot: int) -> None:
    insert(arrays.by_key, keys, row, slot)
    bump_generation(arrays.table, slot)
    set_state(arrays.table, slot, _WRITING)
    arrays.table[slot]["length"] = length
    arrays.ledger[0]["writing"] += 1


@kernel
def withdraw(arrays: StoreArrays, slot: int, evicted: int) -> None:
    """Take a PUBLISHED slot out of sight; the caller decides what becomes of it."""
    judge_guess(arrays.table, arrays.ledger, slot, False)
    _ask_policy(arrays, arrays.policy.removed, slot, evicted)
    remove(arrays.by_key, slot)
    book = arrays.ledger[0]
    book["blocks"] -= 1
    book["bytes"] -= np.int64(arrays.table[slot]["length"])


@kernel
def _is_evictable(arrays: StoreArrays, slot: int) -> bool:
    """Whether a block is there that nobody reads."""
    known = slot < len(arrays.table) and state_of(arrays.table, slot) == _PUBLISHED
    return bool(known and pins_of(arrays.table, slot) == 0)


@kernel
def _next_in_turn(arrays: StoreArrays) -> int:
    """The next slot whose block can be evicted, in the order of slots, or -1: what goes when there
    is no policy to ask."""
    book = arrays.ledger[0]
    for _ in range(len(arrays.table)):
        slot: int = book["next_evicted"]
        book["next_evicted"] = slot + 1 if slot + 1 < len(arrays.table) else 0
        if _is_evictable(arrays, slot):
            return slot
    return -1


@kernel
def next_victim(arrays: StoreArrays) -> int:
    """The slot of the most dispensable block; -1 when there is none, or ``UNFIT - slot`` for one
    that the policy should not have chosen."""
    slot = _ask_policy(arrays, arrays.policy.victim, int(arrays.table.ctypes.data))
    if arrays.ledger[0]["policy_faults"] != 0:
        slot = _next_in_turn(arrays)
    if slot < 0:
        return -1
    return slot if _is_evictable(arrays, slot) else UNFIT - slot


@kernel
def _evict(arrays: StoreArrays) -> int:
    """The slot of the most dispensable block, which is withdrawn; otherwise as ``next_victim``."""
    slot: int = next_victim(arrays)
    if slot < 0:
        return slot
    withdraw(arrays, slot, 1)
    arrays.ledger[0]["displaced"] += 1
    return slot


@kernel
def _fits(arrays: StoreArrays, length: int) -> bool:
    """Whether a slot can hold a block of this length."""
    return 0 < length <= arrays.block_bytes


@kernel
def _find_holders(arrays: StoreArrays, keys: KeyWords, lengths: NDArray[np.int64]) -> SlotArray:
    """The slot that has each key, published or being written, or -1. It cannot be evicted until
    ``_let_go``: a batch does not push out its own chain."""
    holders = find_all(arrays.by_key, keys)
    for i in range(len(keys)):
        if not _fits(arrays, lengths[i]):
            holders[i] = -1
        elif holders[i] >= 0:
            add_pin(arrays.table, arrays.ledger, holders[i])
    return holders


@kernel
def _let_go(arrays: StoreArrays, holders: SlotArray) -> None:
    for i in range(len(holders)):
        if holders[i] >= 0:
            drop_pin(arrays.table, arrays.ledger, holders[i])


@kernel
def _room_for_one(arrays: StoreArrays) -> int:
    """A slot to write into; otherwise as ``_evict``."""
    if arrays.ledger[0]["free"] > 0:
        return int(take_free(arrays.table, arrays.ledger))
    return int(_evict(arrays))


@kernel
def reserve(
    arrays: StoreArrays, keys: KeyWords, lengths: NDArray[np.int64]
) -> tuple[SlotArray, Statuses, int]:
    """Slots to write (-1 where none was given), statuses, and -1 or the slot that the policy
    chose though it is pinned or not published; then it went no further."""
    book = arrays.ledger[0]
    slots = np.full(len(keys), -1, np.int64)
    statuses = np.full(len(keys), NO_SPACE, np.uint8)
    holders = _find_holders(arrays, keys, lengths)
    unfit, is_full = -1, False
    for i in range(len(keys)):
        if not _fits(arrays, lengths[i]):
            statuses[i] = _BAD_LENGTH
        elif holders[i] >= 0 or find(arrays.by_key, keys, i) >= 0:
            statuses[i] = _EXISTS
            book["already_stored"] += 1
        elif is_full:
            book["refused"] += 1
        else:
            identity = identity_of(arrays.by_key.secrets, keys, i)
            answer = _ask_policy(arrays, arrays.policy.missed, identity)
            if answer == NOT_WORTH_A_SLOT and arrays.may_refuse:
                book["refused"] += 1
                continue
            slot = _room_for_one(arrays)
            if slot <= UNFIT:
                unfit = UNFIT - slot
                break
            if slot < 0:
                # Nobody unpins meanwhile: the search, which may be long, is made once.
                is_full = True
                book["refused"] += 1
                continue
            _begin_writing(arrays, keys, i, lengths[i], slot)
            slots[i] = slot
            statuses[i] = _OK
    _let_go(arrays, holders)
    return slots, statuses, unfit


@kernel
def publish(arrays: StoreArrays, slots: SlotArray, checksums: NDArray[np.int64], now: int) -> int:
    """WRITING to PUBLISHED, all or none; -1, or the position of the first that cannot."""
    wrong = move_state(arrays.table, slots, _WRITING, _PUBLISHED)
    if wrong >= 0:
        return wrong
    book = arrays.ledger[0]
    policy = arrays.policy
    for i in range(len(slots)):
        record = arrays.table[slots[i]]
        record["checksum"] = checksums[i]
        identity = identity_of(arrays.by_key.secrets, arrays.by_key.keys, slots[i])
        _ask_policy(arrays, policy.inserted, slots[i], identity, now)
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
def delete(arrays: StoreArrays, keys: KeyWords) -> Statuses:
    """Delete what is published: OK or NOT_FOUND for each key."""
    statuses = np.full(len(keys), _NOT_FOUND, np.uint8)
    for i in range(len(keys)):
        # One at a time: the second of two equal keys finds nothing.
        slot = find(arrays.by_key, keys, i)
        if slot < 0 or state_of(arrays.table, slot) != _PUBLISHED:
            continue
        statuses[i] = _OK
        withdraw(arrays, slot, 0)
        if pins_of(arrays.table, slot) > 0:
            set_state(arrays.table, slot, _CONDEMNED)
        else:
            give_free(arrays.table, arrays.ledger, slot)
        arrays.ledger[0]["deleted"] += 1
    return statuses
