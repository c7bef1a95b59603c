"""ARC (Megiddo and Modha, FAST 2003): two lists whose balance is learnt from their ghosts.

Blocks used once are in ONCE (the paper's T1), the others in OFTEN (T2); the ghosts of each are
FIRST (B1) and SECOND (B2). ``target`` is the size that ONCE should have (the paper's p).
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._ghost_kernels import (
    ABSENT,
    FIRST,
    SECOND,
    claim,
    count_in,
    forget_oldest,
    remember,
    take,
)
from dpu_agent.cache.policy._list_kernels import append, oldest_unpinned, unlink
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

ONCE, OFTEN = 0, 1
LISTS = 2
ARC = np.dtype(
    [
        ("links", "i8"),
        ("slots", "i8"),
        ("ghosts", "i8"),
        ("capacity", "i8"),
        ("once", "i8"),
        ("often", "i8"),
        ("missed_in", "i8"),
        ("unremembered", "i8"),
        ("target", "f8"),
    ]
)
"""``once`` and ``often`` are sizes. ``missed_in`` is the list of the latest missed key's ghost, and
``unremembered`` a chosen slot that is to leave no ghost."""
SLOT = np.dtype([("key", "i8"), ("list", "i8")])
_state_at = record_accessor(ARC)
_slot_at = record_accessor(SLOT)


@kernel
def _add(context: int, slot: int, which: int) -> None:
    state = _state_at(context, 0)
    _slot_at(state.slots, slot).list = which
    append(state.links, state.capacity + which, slot)
    if which == ONCE:
        state.once += 1
    else:
        state.often += 1


@kernel
def _drop(context: int, slot: int) -> int:
    """Take a slot out; the list that it was in."""
    state = _state_at(context, 0)
    unlink(state.links, slot)
    which = int(_slot_at(state.slots, slot).list)
    if which == ONCE:
        state.once -= 1
    else:
        state.often -= 1
    return which


def _inserted(context: int, slot: int, key: int, _now: int) -> int:
    state = _state_at(context, 0)
    _slot_at(state.slots, slot).key = key
    _add(context, slot, ONCE if take(state.ghosts, key) == ABSENT else OFTEN)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    _drop(context, slot)
    _add(context, slot, OFTEN)
    return 0


def _removed(context: int, slot: int, evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    which = _drop(context, slot)
    if evicted and slot != state.unremembered:
        key = np.int64(_slot_at(state.slots, slot).key)
        remember(state.ghosts, FIRST if which == ONCE else SECOND, key, 0)
    state.unremembered = NO_VICTIM
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    """A ghost says that its list should have been larger."""
    state = _state_at(context, 0)
    first, second = count_in(state.ghosts, FIRST), count_in(state.ghosts, SECOND)
    state.missed_in = claim(state.ghosts, key)
    if state.missed_in == FIRST:
        state.target = min(state.target + max(second / first, 1.0), float(state.capacity))
    elif state.missed_in == SECOND:
        state.target = max(state.target - max(first / second, 1.0), 0.0)
    return 0


@kernel
def _replaced(context: int, slot_table: int) -> int:
    """The oldest of the list that is beyond its size; the other's where all of it is pinned."""
    state = _state_at(context, 0)
    is_at_target = state.once == state.target and state.missed_in == SECOND
    preferred = ONCE if state.once > state.target or is_at_target else OFTEN
    head = np.int64(state.capacity)
    slot = oldest_unpinned(state.links, head + preferred, slot_table)
    if slot == NO_VICTIM:
        slot = oldest_unpinned(state.links, head + 1 - preferred, slot_table)
    return slot


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    if state.missed_in == ABSENT:
        first = count_in(state.ghosts, FIRST)
        second = count_in(state.ghosts, SECOND)
        if state.once + first >= state.capacity:
            if first == 0:
                slot = oldest_unpinned(state.links, state.capacity + ONCE, slot_table)
                state.unremembered = slot
                return slot if slot != NO_VICTIM else _replaced(context, slot_table)
            forget_oldest(state.ghosts, FIRST)
        elif state.once + state.often + first + second >= 2 * state.capacity:
            forget_oldest(state.ghosts, SECOND)
    return _replaced(context, slot_table)


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
)
