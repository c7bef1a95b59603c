"""LFU with time decay: a read counts half after each half-life.

All scores shrink alike, so their order changes only by reads: a score is kept as its logarithm to
base 2 plus the half-lives since time 0, which then stays as it is (forward decay, Cormode et al.,
ICDE 2009).
"""

from __future__ import annotations

import math

import numpy as np

from dpu_agent.cache.policy._heap_kernels import change, discard, least_unpinned, major_of, push
from dpu_agent.cache.policy._nothing_kernels import NOTHING
from dpu_agent.cache.policy.base import PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

LFU_DECAY = np.dtype([("heap", "i8"), ("clock", "i8"), ("half_life_ns", "i8")])
_state_at = record_accessor(LFU_DECAY)
_UNITS = 1 << 20
"""Of a score in one half-life: scores are integers, so that equal ones are equal."""


@kernel
def _one_read(context: int, now: int) -> int:
    """The score of a block that was read once, now."""
    return int(now / _state_at(context, 0).half_life_ns * _UNITS)


@kernel
def _sum_of(score: int, other: int) -> int:
    """The logarithm of the sum of two."""
    larger = max(score, other)
    apart = abs(score - other) / _UNITS
    return larger + int(math.log2(1.0 + 2.0**-apart) * _UNITS)


def _inserted(context: int, slot: int, _key: int, now: int) -> int:
    state = _state_at(context, 0)
    state.clock += 1
    push(state.heap, slot, _one_read(context, now), state.clock)
    return 0


def _touched(context: int, slot: int, now: int, _unused: int) -> int:
    state = _state_at(context, 0)
    state.clock += 1
    score = _sum_of(major_of(state.heap, slot), _one_read(context, now))
    change(state.heap, slot, score, state.clock)
    return 0


def _removed(context: int, slot: int, _evicted: int, _unused: int) -> int:
    discard(_state_at(context, 0).heap, slot)
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    return least_unpinned(_state_at(context, 0).heap, slot_table)


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=NOTHING,
    victim=exported(_victim),
)
