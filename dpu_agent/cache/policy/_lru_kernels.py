"""LRU over one list of slots."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._list_kernels import append, oldest_unpinned, unlink
from dpu_agent.cache.policy._nothing_kernels import NOTHING
from dpu_agent.cache.policy.base import PolicyFunctions
from kvlane.calls import exported
from kvlane.rawmem import record_accessor

LRU = np.dtype([("links", "i8"), ("head", "i8")])
"""Address of the links, and the list's row."""
_state_at = record_accessor(LRU)


def _inserted(context: int, slot: int, _key: int, _now: int) -> int:
    state = _state_at(context, 0)
    append(state.links, state.head, slot)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    unlink(state.links, slot)
    append(state.links, state.head, slot)
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    unlink(_state_at(context, 0).links, slot)
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    return oldest_unpinned(state.links, state.head, slot_table)


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=NOTHING,
    victim=exported(_victim),
)
