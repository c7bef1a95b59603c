"""S3-FIFO (Yang et al., SOSP 2023): a small queue filters what the main queue keeps.

New blocks enter SMALL. Its oldest goes on to MAIN if it was read twice, else it is evicted and
leaves a ghost; a key with a ghost enters MAIN at once. MAIN gives what was read another round.
Until the cache is full for the first time, what SMALL has no room for enters MAIN too.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy._ghost_kernels import (
    ABSENT,
    FIRST,
    claim,
    count_in,
    forget_oldest,
    remember,
    take,
)
from dpu_agent.cache.policy._list_kernels import append, oldest, oldest_unpinned, unlink
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

SMALL, MAIN = 0, 1
QUEUES = 2
_READS_TO_MOVE = 2
_MAX_READS = 3
"""As many rounds a block of MAIN may win."""
S3_FIFO = np.dtype(
    [
        ("links", "i8"),
        ("slots", "i8"),
        ("ghosts", "i8"),
        ("capacity", "i8"),
        ("kept", "i8"),
        ("main_capacity", "i8"),
        ("small", "i8"),
        ("main", "i8"),
        ("was_full", "i8"),
    ]
)
"""``small`` and ``main`` are sizes, ``kept`` how many ghosts there may be."""
SLOT = np.dtype([("key", "i8"), ("reads", "i4"), ("queue", "i4")])
_state_at = record_accessor(S3_FIFO)
_slot_at = record_accessor(SLOT)


@kernel
def _add(context: int, slot: int, queue: int) -> None:
    state = _state_at(context, 0)
    _slot_at(state.slots, slot).queue = queue
    append(state.links, state.capacity + queue, slot)
    if queue == SMALL:
        state.small += 1
    else:
        state.main += 1


@kernel
def _drop(context: int, slot: int) -> int:
    """Take a slot out; the queue that it was in."""
    state = _state_at(context, 0)
    unlink(state.links, slot)
    queue = int(_slot_at(state.slots, slot).queue)
    if queue == SMALL:
        state.small -= 1
    else:
        state.main -= 1
    return queue


def _inserted(context: int, slot: int, key: int, _now: int) -> int:
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    record.key = key
    record.reads = 0
    is_filling = not state.was_full and state.small >= state.capacity - state.main_capacity
    is_known = take(state.ghosts, key) != ABSENT
    _add(context, slot, MAIN if is_known or is_filling else SMALL)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    record = _slot_at(_state_at(context, 0).slots, slot)
    if record.reads < _MAX_READS:
        record.reads += 1
    return 0


def _removed(context: int, slot: int, evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    queue = _drop(context, slot)
    if evicted and queue == SMALL and state.kept > 0:
        if count_in(state.ghosts, FIRST) >= state.kept:
            forget_oldest(state.ghosts, FIRST)
        remember(state.ghosts, FIRST, np.int64(_slot_at(state.slots, slot).key), 0)
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    claim(_state_at(context, 0).ghosts, key)
    return 0


@kernel
def _from_small(context: int, slot_table: int) -> int:
    """The first of SMALL, from its oldest, that was not read twice; those before it move on."""
    state = _state_at(context, 0)
    for _ in range(state.small):
        slot = oldest(state.links, state.capacity + SMALL)
        is_moving = _slot_at(state.slots, slot).reads >= _READS_TO_MOVE
        if not is_moving and not is_pinned_at(slot_table, slot):
            return slot
        _drop(context, slot)
        if is_moving:
            _slot_at(state.slots, slot).reads = 0
        _add(context, slot, MAIN if is_moving else SMALL)
    return NO_VICTIM


@kernel
def _from_main(context: int, slot_table: int) -> int:
    """The first of MAIN that has won all its rounds."""
    state = _state_at(context, 0)
    for _ in range((_MAX_READS + 1) * state.main):
        slot = oldest(state.links, state.capacity + MAIN)
        record = _slot_at(state.slots, slot)
        if is_pinned_at(slot_table, slot):
            pass
        elif record.reads == 0:
            return slot
        else:
            record.reads -= 1
        _drop(context, slot)
        _add(context, slot, MAIN)
    return NO_VICTIM


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    state.was_full = 1
    slot = NO_VICTIM
    if state.main <= state.main_capacity:
        slot = _from_small(context, slot_table)
    if slot == NO_VICTIM:
        slot = _from_main(context, slot_table)
    if slot == NO_VICTIM:
        slot = oldest_unpinned(state.links, state.capacity + SMALL, slot_table)
    return slot


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
)
