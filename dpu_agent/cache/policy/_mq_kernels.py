"""Multi-Queue (Zhou, Philbin and Li, USENIX 2001): LRU queues by the logarithm of frequency.

Time is counted in accesses. A block that is not used for ``lifetime`` accesses moves one queue
down. What is evicted keeps its frequency among the ghosts (the paper's Qout).
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._ghost_kernels import (
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

QUEUES = 8
MQ = np.dtype(
    [
        ("links", "i8"),
        ("slots", "i8"),
        ("ghosts", "i8"),
        ("capacity", "i8"),
        ("kept", "i8"),
        ("lifetime", "i8"),
        ("clock", "i8"),
    ]
)
SLOT = np.dtype([("key", "i8"), ("frequency", "i8"), ("expires", "i8"), ("queue", "i8")])
_state_at = record_accessor(MQ)
_slot_at = record_accessor(SLOT)


@kernel
def _queue_for(frequency: int) -> int:
    """The logarithm to base 2, as far as there are queues."""
    queue = 0
    while frequency > 1 and queue < QUEUES - 1:
        frequency >>= 1
        queue += 1
    return queue


@kernel
def _enqueue(context: int, slot: int, queue: int) -> None:
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    record.queue = queue
    record.expires = state.clock + state.lifetime
    append(state.links, state.capacity + queue, slot)


@kernel
def _demote_expired(context: int) -> None:
    """Time goes on; move the oldest of each queue down if its time is over (the paper's Adjust)."""
    state = _state_at(context, 0)
    state.clock += 1
    for queue in range(1, QUEUES):
        head = np.int64(state.capacity) + queue
        slot = oldest(state.links, head)
        if slot != head and _slot_at(state.slots, slot).expires < state.clock:
            unlink(state.links, slot)
            _enqueue(context, slot, queue - 1)


def _inserted(context: int, slot: int, key: int, _now: int) -> int:
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    record.key = key
    record.frequency = max(take(state.ghosts, key), 0) + 1
    _enqueue(context, slot, _queue_for(np.int64(record.frequency)))
    _demote_expired(context)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    record.frequency += 1
    unlink(state.links, slot)
    _enqueue(context, slot, _queue_for(np.int64(record.frequency)))
    _demote_expired(context)
    return 0


def _removed(context: int, slot: int, evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    unlink(state.links, slot)
    if evicted:
        if count_in(state.ghosts, FIRST) >= state.kept:
            forget_oldest(state.ghosts, FIRST)
        record = _slot_at(state.slots, slot)
        remember(state.ghosts, FIRST, np.int64(record.key), np.int64(record.frequency))
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    claim(_state_at(context, 0).ghosts, key)
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    for queue in range(QUEUES):
        slot = oldest_unpinned(state.links, state.capacity + queue, slot_table)
        if slot != NO_VICTIM:
            return slot
    return NO_VICTIM


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
)
