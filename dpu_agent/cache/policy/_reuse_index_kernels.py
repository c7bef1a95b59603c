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
def _push(point_times: Reals, alive_at: Reals, size: int, time: float, alive: float) -> int:
    """Put a point before the first of a hull, and take out those that it hides; how many it has."""
    while size >= 2:
        first, second = size - 1, size - 2
        rise = (alive - alive_at[first]) * (point_times[second] - point_times[first])
        if rise > (alive_at[first] - alive_at[second]) * (point_times[first] - time):
            break
        size -= 1
    point_times[size], alive_at[size] = time, alive
    return size + 1


@kernel
def _best_on(point_times: Reals, alive_at: Reals, size: int, begin: float, alive: float) -> float:
    """The steepest way from a time and probability before a hull to a point of it."""
    best = size - 1
    while best > 0:
        after = best - 1
        won, won_after = alive - alive_at[best], alive - alive_at[after]
        # Fractions are compared without division, which would take most of the time.
        if won_after * (point_times[best] - begin) <= won * (point_times[after] - begin):
            break
        best = after
    return float((alive - alive_at[best]) / (point_times[best] - begin))


@kernel
def _find_best(alive: Reals, spent: Reals, hull: Reals, indices: Reals) -> None:
    """The index in the middle of each bin.

    Giving up at the end of a bin is a point: the time spent by then, and how probable it is that
    reuse has not come. The best of those after a bin lies on their hull, which grows by a point
    with each bin before.
    """
    point_times, alive_at = hull[0], hull[1]
    size, time = 0, 0.0
    for which in range(BINS - 1, -1, -1):
        # Times are counted backwards from the end, so that no sum is needed first.
        size = _push(point_times, alive_at, size, time, alive[which + 1])
        now = 0.5 * (alive[which] + alive[which + 1])
        begin = time - 0.5 * spent[which] - _OVERHEAD_MS * now
        indices[which] = _best_on(point_times, alive_at, size, begin, now)
        time -= spent[which]


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
    alive, spent, hull = np.empty(BINS + 1), np.empty(BINS), np.empty((2, BINS))
    for stratum in range(STRATA):
        for level in range(LEVELS):
            factor = math.exp((level - MIDDLE_LEVEL) * LEVEL_STEP)
            _survive(hazards, stratum, factor, alive, spent)
            first = list_of(stratum, level, 0)
            _find_best(alive, spent, hull, indices[first : first + BINS])


@kernel
def level_of(risk: float) -> int:
    """The level of a row's hazard."""
    steps = math.floor(math.log(risk) / LEVEL_STEP + 0.5)
    return min(max(steps + MIDDLE_LEVEL, 0), LEVELS - 1)
