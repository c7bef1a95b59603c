"""What keeping a block is worth, of the policy ``reuse``: Gittins' index.

For each stratum, level of hazard and age it is the most that can be had of (probability of reuse)
/ (expected time that the block takes up space), over all times at which one may give up. All
blocks of a row have the same. So a row of which reuse is probable, but not soon, is worth less at
first than later, when the wait is nearly over.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy._reuse_layout_kernels import (
    BINS,
    EDGES_MS,
    LEVEL_STEP,
    LEVELS,
    LISTS,
    MIDDLE_LEVEL,
    STRATA,
    reals_at,
    state_at,
)
from kvlane.jit import kernel

_OVERHEAD_MS = 1000.0
"""Added to every time: what could be had within less is no better for it."""
_CERTAIN = 1e-6
_TINY = 1e-250

Reals = NDArray[np.float64]


@kernel
def _survive(hazards: Reals, stratum: int, factor: float, alive: Reals, spent: Reals) -> None:
    """The probability to reach each bin without reuse, and the expected time in it."""
    alive[0] = 1.0
    for which in range(BINS):
        width = EDGES_MS[which + 1] - EDGES_MS[which]
        hazard = hazards[stratum * BINS + which] * factor
        alive[which + 1] = max(alive[which] * math.exp(-hazard * width), _TINY)
        if hazard * width > 1e-9:
            spent[which] = (alive[which] - alive[which + 1]) / hazard
        else:
            spent[which] = alive[which] * width


@kernel
def _best_from(start: int, alive: Reals, spent: Reals) -> float:
    """The index in the middle of a bin."""
    now = 0.5 * (alive[start] + alive[start + 1])
    time = _OVERHEAD_MS * now + 0.5 * spent[start]
    # Fractions are compared without division, which would take most of the time.
    best_reuse, best_time = now - alive[start + 1], time
    for last in range(start + 1, BINS):
        if alive[last] < _CERTAIN * now:
            break
        time += spent[last]
        reuse = now - alive[last + 1]
        if reuse * best_time > best_reuse * time:
            best_reuse, best_time = reuse, time
    return float(best_reuse / best_time)


@kernel
def list_of(stratum: int, level: int, which: int) -> int:
    """The number of the list of rows with the same index."""
    return (stratum * LEVELS + level) * BINS + which


@kernel
def find_indices(context: int) -> None:
    """The index of every list."""
    state = state_at(context, 0)
    hazards = reals_at(state.hazards, STRATA * BINS)
    indices = reals_at(state.indices, LISTS)
    alive, spent = np.empty(BINS + 1), np.empty(BINS)
    for stratum in range(STRATA):
        for level in range(LEVELS):
            factor = math.exp((level - MIDDLE_LEVEL) * LEVEL_STEP)
            _survive(hazards, stratum, factor, alive, spent)
            for which in range(BINS):
                indices[list_of(stratum, level, which)] = _best_from(which, alive, spent)


@kernel
def level_of(risk: float) -> int:
    """The level of a row's hazard."""
    steps = math.floor(math.log(risk) / LEVEL_STEP + 0.5)
    return min(max(steps + MIDDLE_LEVEL, 0), LEVELS - 1)
