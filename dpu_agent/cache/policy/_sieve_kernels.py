"""SIEVE (Zhang et al., NSDI 2024): a queue that never reorders, and a hand that spares the used."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy._list_kernels import append, newer_than, oldest, unlink
from dpu_agent.cache.policy._nothing_kernels import NOTHING
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.rawmem import array_accessor, record_accessor

VISITED = np.dtype(np.uint8)
SIEVE = np.dtype(
    [("links", "i8"), ("visited", "i8"), ("head", "i8"), ("blocks", "i8"), ("hand", "i8")]
)
"""``hand`` is where the next search begins, or the list's head for its oldest."""
_state_at = record_accessor(SIEVE)
_visited_at = array_accessor(VISITED)


def _inserted(context: int, slot: int, _key: int, _now: int) -> int:
    state = _state_at(context, 0)
    _visited_at(state.visited, state.head)[slot] = 0
    append(state.links, state.head, slot)
    state.blocks += 1
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    _visited_at(state.visited, state.head)[slot] = 1
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    if state.hand == slot:
        state.hand = newer_than(state.links, slot)
    unlink(state.links, slot)
    state.blocks -= 1
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    visited = _visited_at(state.visited, state.head)
    slot = np.int64(state.hand)
    # The first round forgets all visits, so that the second finds whatever is not pinned.
    for _ in range(2 * state.blocks + 2):
        if slot == state.head:
            slot = oldest(state.links, slot)
            if slot == state.head:
                break
        if not visited[slot] and not is_pinned_at(slot_table, slot):
            state.hand = slot
            return int(slot)
        visited[slot] = 0
        slot = newer_than(state.links, slot)
    return NO_VICTIM


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=NOTHING,
    victim=exported(_victim),
)
