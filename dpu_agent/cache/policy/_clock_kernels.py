"""CLOCK: first in, first out, but a block that was read is passed over, once a counted read.

Pinned blocks are passed over too and keep their count.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy._list_kernels import append, oldest, unlink
from dpu_agent.cache.policy._nothing_kernels import NOTHING
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.rawmem import array_accessor, record_accessor

COUNT = np.dtype(np.uint8)
CLOCK = np.dtype(
    [("links", "i8"), ("reads", "i8"), ("head", "i8"), ("blocks", "i8"), ("max_reads", "i8")]
)
"""``reads`` is the address of a count for each slot, up to ``max_reads``."""
_state_at = record_accessor(CLOCK)
_reads_at = array_accessor(COUNT)


def _inserted(context: int, slot: int, _key: int, _now: int) -> int:
    state = _state_at(context, 0)
    _reads_at(state.reads, state.head)[slot] = 0
    append(state.links, state.head, slot)
    state.blocks += 1
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    reads = _reads_at(state.reads, state.head)
    count = np.int64(reads[slot])
    if count < state.max_reads:
        reads[slot] = count + 1
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    unlink(state.links, slot)
    state.blocks -= 1
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    reads = _reads_at(state.reads, state.head)
    # After max_reads rounds no count is left, so one more finds whatever is not pinned.
    for _ in range((state.max_reads + 1) * state.blocks):
        slot = oldest(state.links, state.head)
        if is_pinned_at(slot_table, slot):
            pass
        elif reads[slot] == 0:
            return slot
        else:
            reads[slot] = np.int64(reads[slot]) - 1
        unlink(state.links, slot)
        append(state.links, state.head, slot)
    return NO_VICTIM


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=NOTHING,
    victim=exported(_victim),
)
