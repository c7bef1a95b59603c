"""2Q (Johnson and Shasha, VLDB 1994), the full version: a queue on trial, and an LRU list.

New blocks enter IN (the paper's A1in), which reads do not reorder, and leave a ghost there
(A1out); a key with a ghost enters MAIN (Am).
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
    take,
)
from dpu_agent.cache.policy._list_kernels import append, oldest_unpinned, unlink
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.rawmem import record_accessor

IN, MAIN = 0, 1
QUEUES = 2
TWO_Q = np.dtype(
    [
        ("links", "i8"),
        ("slots", "i8"),
        ("ghosts", "i8"),
        ("capacity", "i8"),
        ("kept", "i8"),
        ("in_capacity", "i8"),
        ("in_blocks", "i8"),
    ]
)
SLOT = np.dtype([("key", "i8"), ("queue", "i8")])
_state_at = record_accessor(TWO_Q)
_slot_at = record_accessor(SLOT)


def _inserted(context: int, slot: int, key: int, _now: int) -> int:
    state = _state_at(context, 0)
    queue = IN if take(state.ghosts, key) == ABSENT else MAIN
    record = _slot_at(state.slots, slot)
    record.key = key
    record.queue = queue
    append(state.links, state.capacity + queue, slot)
    if queue == IN:
        state.in_blocks += 1
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    if _slot_at(state.slots, slot).queue == MAIN:
        unlink(state.links, slot)
        append(state.links, state.capacity + MAIN, slot)
    return 0


def _removed(context: int, slot: int, evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    unlink(state.links, slot)
    record = _slot_at(state.slots, slot)
    if record.queue == MAIN:
        return 0
    state.in_blocks -= 1
    if evicted and state.kept > 0:
        if count_in(state.ghosts, FIRST) >= state.kept:
            forget_oldest(state.ghosts, FIRST)
        remember(state.ghosts, FIRST, np.int64(record.key), 0)
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    claim(_state_at(context, 0).ghosts, key)
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    """From IN while it is beyond its size; from the other where all of one is pinned."""
    state = _state_at(context, 0)
    preferred = IN if state.in_blocks > state.in_capacity else MAIN
    slot = oldest_unpinned(state.links, state.capacity + preferred, slot_table)
    if slot == NO_VICTIM:
        slot = oldest_unpinned(state.links, state.capacity + 1 - preferred, slot_table)
    return slot


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
)
