"""LFU: by uses, then by the latest of them.

Blocks used once, when they were stored, are in a list, the oldest first; the others are in a heap
and go after all of these.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._heap_kernels import change, discard, least_unpinned, push
from dpu_agent.cache.policy._list_kernels import append, oldest_unpinned, unlink
from dpu_agent.cache.policy._nothing_kernels import NOTHING
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.rawmem import record_accessor, words_at

LFU = np.dtype(
    [("links", "i8"), ("heap", "i8"), ("uses", "i8"), ("capacity", "i8"), ("clock", "i8")]
)
"""``uses`` is the address of a word a slot, ``clock`` the number of reads."""
_state_at = record_accessor(LFU)


def _inserted(context: int, slot: int, _key: int, _now: int) -> int:
    state = _state_at(context, 0)
    words_at(state.uses, state.capacity)[slot] = 1
    append(state.links, state.capacity, slot)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    uses = words_at(state.uses, state.capacity)
    uses[slot] += 1
    state.clock += 1
    if uses[slot] == 2:
        unlink(state.links, slot)
        push(state.heap, slot, 2, state.clock)
    else:
        change(state.heap, slot, uses[slot], state.clock)
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    if words_at(state.uses, state.capacity)[slot] == 1:
        unlink(state.links, slot)
    else:
        discard(state.heap, slot)
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
    missed=NOTHING,
    victim=exported(_victim),
)
