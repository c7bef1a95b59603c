"""CLOCK by reads and age: a counter of reads that the hand lowers faster the older a block is.

The counter is that of generalized CLOCK (Smith, ACM TODS 1978). The age is the time since the block
was written, which the hand looks at as in WSClock (Carr and Hennessy, SOSP 1981), counted in
writes: one generation is as many as there are slots. From a block that is n generations old the
hand takes one read, and one more for each doubling of n: what was written long ago must be read
more to stay.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy._list_kernels import append, oldest, unlink
from dpu_agent.cache.policy._nothing_kernels import NOTHING
from dpu_agent.cache.policy.base import NO_VICTIM, PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

CLOCK_AGE = np.dtype(
    [
        ("links", "i8"),
        ("slots", "i8"),
        ("capacity", "i8"),
        ("blocks", "i8"),
        ("writes", "i8"),
        ("max_reads", "i8"),
    ]
)
"""``blocks`` are in the list now, ``writes`` were put there ever."""
SLOT = np.dtype([("reads", "i8"), ("written_at", "i8")])
_state_at = record_accessor(CLOCK_AGE)
_slot_at = record_accessor(SLOT)


def _inserted(context: int, slot: int, _key: int, _now: int) -> int:
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    record.reads = 0
    record.written_at = state.writes
    append(state.links, state.capacity, slot)
    state.writes += 1
    state.blocks += 1
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    record = _slot_at(state.slots, slot)
    if record.reads < state.max_reads:
        record.reads += 1
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    state = _state_at(context, 0)
    unlink(state.links, slot)
    state.blocks -= 1
    return 0


@kernel
def _price(context: int, written_at: int) -> int:
    """Reads that the hand takes from a block: one, and one for each doubling of its age."""
    state = _state_at(context, 0)
    generations = (state.writes - written_at) // state.capacity
    price = 1
    while generations > 1:
        generations >>= 1
        price += 1
    return price


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = _state_at(context, 0)
    # After max_reads rounds nobody has reads left, so one more finds whatever is not pinned.
    for _ in range((state.max_reads + 1) * state.blocks):
        slot = oldest(state.links, state.capacity)
        record = _slot_at(state.slots, slot)
        if is_pinned_at(slot_table, slot):
            pass
        elif record.reads <= 0:
            return slot
        else:
            record.reads -= _price(context, np.int64(record.written_at))
        unlink(state.links, slot)
        append(state.links, state.capacity, slot)
    return NO_VICTIM


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=NOTHING,
    victim=exported(_victim),
)
