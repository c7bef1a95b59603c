"""W-TinyLFU (Einziger, Friedman and Manes, ACM TOS 2017): a small window, and a gate behind it.

New blocks enter WINDOW, an LRU list. What it has no room for meets the block that the main cache
would evict: the one that the sketch has seen more often stays. The main cache is a segmented LRU:
blocks enter TRIAL (the paper's probation), a read moves them to KEPT (protected), and what KEPT
has no room for goes back to TRIAL.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._frequency_sketch_kernels import add, estimate
from dpu_agent.cache.policy._list_kernels import append, oldest, oldest_unpinned, unlink
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

WINDOW, TRIAL, KEPT = 0, 1, 2
SEGMENTS = 3
W_TINYLFU = np.dtype(
    [
        ("links", "i8"),
        ("slots", "i8"),
        ("sketch", "i8"),
        ("capacity", "i8"),
        ("window_capacity", "i8"),
        ("kept_capacity", "i8"),
        ("window", "i8"),
        ("kept", "i8"),
    ]
)
"""``window`` and ``kept`` are sizes."""
SLOT = np.dtype([("key", "i8"), ("segment", "i8")])
_state_at = record_accessor(W_TINYLFU)
_slot_at = record_accessor(SLOT)


@kernel
def _add_to(context: int, slot: int, segment: int) -> None:
    state = _state_at(context, 0)
    _slot_at(state.slots, slot).segment = segment
    append(state.links, state.capacity + segment, slot)
    if segment == WINDOW:
        state.window += 1
    elif segment == KEPT:
        state.kept += 1


@kernel
def _drop(context: int, slot: int) -> int:
    """Take a slot out; the segment that it was in."""
    state = _state_at(context, 0)
    unlink(state.links, slot)
    segment = int(_slot_at(state.slots, slot).segment)
    if segment == WINDOW:
        state.window -= 1
    elif segment == KEPT:
        state.kept -= 1
    return segment


@kernel
def _move_oldest(context: int, source: int, target: int) -> None:
    state = _state_at(context, 0)
    slot = oldest(state.links, state.capacity + source)
    _drop(context, slot)
    _add_to(context, slot, target)


def _inserted(context: int, slot: int, key: int, _now: int) -> int:
    state = _state_at(context, 0)
    _slot_at(state.slots, slot).key = key
    _add_to(context, slot, WINDOW)
    # Whoever gave the slot up has made room in the main cache, or it was not full yet.
    if state.window > state.window_capacity:
        _move_oldest(context, WINDOW, TRIAL)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    add(state.sketch, np.int64(_slot_at(state.slots, slot).key))
    segment = _drop(context, slot)
    _add_to(context, slot, WINDOW if segment == WINDOW else KEPT)
    if state.kept > state.kept_capacity:
        _move_oldest(context, KEPT, TRIAL)
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    _drop(context, slot)
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    add(_state_at(context, 0).sketch, key)
    return 0


@kernel
def _main_victim(context: int, slot_table: int) -> int:
    state = _state_at(context, 0)
    slot = oldest_unpinned(state.links, state.capacity + TRIAL, slot_table)
    if slot == NO_VICTIM:
        slot = oldest_unpinned(state.links, state.capacity + KEPT, slot_table)
    return slot


@kernel
def _seen(context: int, slot: int) -> int:
    state = _state_at(context, 0)
    return estimate(state.sketch, np.int64(_slot_at(state.slots, slot).key))


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    incumbent = _main_victim(context, slot_table)
    if incumbent != NO_VICTIM and state.window < state.window_capacity:
        return incumbent
    candidate = oldest_unpinned(state.links, state.capacity + WINDOW, slot_table)
    if candidate == NO_VICTIM or incumbent == NO_VICTIM:
        return max(candidate, incumbent)
    if _seen(context, candidate) <= _seen(context, incumbent):
        return candidate
    _drop(context, candidate)
    _add_to(context, candidate, TRIAL)
    return incumbent


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
)
