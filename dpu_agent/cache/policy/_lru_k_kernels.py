"""LRU-K (O'Neil, O'Neil and Weikum, SIGMOD 1993): the K-th latest access decides.

Blocks with fewer than K accesses are in a list, in the order of arrival, and go before all others;
the others are in a heap by the time of their K-th latest access. Time is counted in accesses. What
is evicted leaves its times to a ghost (the paper's history control block), so that a block that
comes back within the retained information period is no newcomer.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._ghost_kernels import (
    ABSENT,
    FIRST,
    claim,
    count_in,
    forget_oldest,
    remember,
    row_of,
    take,
)
from dpu_agent.cache.policy._heap_kernels import change, discard, least_unpinned, push
from dpu_agent.cache.policy._list_kernels import append, oldest_unpinned, unlink
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor, words_at

LRU_K = np.dtype(
    [
        ("links", "i8"),
        ("heap", "i8"),
        ("slots", "i8"),
        ("times", "i8"),
        ("ghosts", "i8"),
        ("ghost_times", "i8"),
        ("capacity", "i8"),
        ("kept", "i8"),
        ("k", "i8"),
        ("clock", "i8"),
    ]
)
"""``times`` and ``ghost_times`` are addresses of K words for each slot, and for each ghost: when
the latest accesses were, the latest first."""
SLOT = np.dtype([("key", "i8"), ("accesses", "i8")])
"""``accesses`` are counted up to K + 1."""
_state_at = record_accessor(LRU_K)
_slot_at = record_accessor(SLOT)
_TOO_FEW = -1


@kernel
def _note(context: int, slot: int) -> int:
    """Count an access; the time of the K-th latest, or ``_TOO_FEW``."""
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    k = np.int64(state.k)
    state.clock += 1
    times = words_at(state.times + 8 * k * slot, k)
    for i in range(k - 1, 0, -1):
        times[i] = times[i - 1]
    times[0] = state.clock
    if record.accesses <= k:
        record.accesses += 1
    return _TOO_FEW if record.accesses < k else int(times[k - 1])


@kernel
def _copy_times(target: int, source: int, k: int) -> None:
    theirs, ours = words_at(target, k), words_at(source, k)
    for i in range(k):
        theirs[i] = ours[i]


@kernel
def _recall(context: int, slot: int, key: int) -> None:
    """Give a slot the times of its key's ghost, or none."""
    state = _state_at(context, 0)
    row = row_of(state.ghosts, key)
    accesses = 0
    if row != ABSENT:
        k = np.int64(state.k)
        _copy_times(state.times + 8 * k * slot, state.ghost_times + 8 * k * row, k)
        accesses = take(state.ghosts, key)
    record = _slot_at(state.slots, slot)
    record.key = key
    record.accesses = accesses


@kernel
def _retain(context: int, slot: int) -> None:
    """Leave a ghost with the times of a slot."""
    state = _state_at(context, 0)
    if state.kept == 0:
        return
    if count_in(state.ghosts, FIRST) >= state.kept:
        forget_oldest(state.ghosts, FIRST)
    record = _slot_at(state.slots, slot)
    row = remember(state.ghosts, FIRST, np.int64(record.key), np.int64(record.accesses))
    k = np.int64(state.k)
    _copy_times(state.ghost_times + 8 * k * row, state.times + 8 * k * slot, k)


def _inserted(context: int, slot: int, key: int, _now: int) -> int:
    state = _state_at(context, 0)
    _recall(context, slot, key)
    rank = _note(context, slot)
    if rank == _TOO_FEW:
        append(state.links, state.capacity, slot)
    else:
        push(state.heap, slot, rank, state.clock)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    rank = _note(context, slot)
    if rank == _TOO_FEW:
        return 0
    if _slot_at(state.slots, slot).accesses == state.k:
        unlink(state.links, slot)
        push(state.heap, slot, rank, state.clock)
    else:
        change(state.heap, slot, rank, state.clock)
    return 0


def _removed(context: int, slot: int, evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    if _slot_at(state.slots, slot).accesses < state.k:
        unlink(state.links, slot)
    else:
        discard(state.heap, slot)
    if evicted:
        _retain(context, slot)
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    claim(_state_at(context, 0).ghosts, key)
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    slot = oldest_unpinned(state.links, state.capacity, slot_table)
    if slot == NO_VICTIM:
        slot = least_unpinned(state.heap, slot_table)
    return slot


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
)
