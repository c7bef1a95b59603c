"""The model of the policy ``reuse``: how probable it is that a row is asked for again, by age.

A proportional hazard, piecewise constant over the bins of age: the hazard of a stratum times one
effect a feature. Few requests must do, so everything is drawn towards what is known better, as if
some events as expected had been seen besides: a stratum's hazard towards that of all bodies, that
towards its neighbours in age and towards 1 / age (which orders as LRU does); an effect towards its
neighbours' and towards 1. Each fit goes on from the last.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy._reuse_history_kernels import (
    KEPT,
    feature_in,
    first_kept,
    history_at,
    record_at,
    stratum_in,
)
from dpu_agent.cache.policy._reuse_layout_kernels import (
    BIN_RATIO,
    BINS,
    EDGES_MS,
    FEATURES,
    GROUPS,
    STRATA,
    TAIL_STRATUM,
    VALUES,
    reals_at,
    state_at,
)
from kvlane.jit import kernel

_BINS_PER_LOG = 1.0 / math.log(BIN_RATIO)
_ROUNDS = 2
_PRIOR_REUSES = 0.3
"""The hazard at an age before anything is known, times that age."""
_PRIOR_WIDTHS = 0.2
"""How long that has been seen, in widths of a bin."""
_NEIGHBOUR = 0.5
"""Weight of the bin beside; of the one after it, its cube."""
_STRATUM_EVENTS = 20.0
_STRATUM_NEIGHBOUR = 0.7
_STRATUM_REACH = 4
_EFFECT_EVENTS = 10.0
_EFFECT_NEIGHBOUR = 0.6
_SCALE_EVENTS = 0.5

Reals = NDArray[np.float64]


@kernel
def bin_of(age_ms: float) -> int:
    """The bin of an age."""
    if age_ms < 1.0:
        return 0
    found = min(int(math.log(age_ms) * _BINS_PER_LOG) + 1, BINS - 1)
    # The logarithm may be off by a rounding at an edge.
    while found > 0 and age_ms < EDGES_MS[found]:
        found -= 1
    while found < BINS - 1 and age_ms >= EDGES_MS[found + 1]:
        found += 1
    return found


@kernel
def group_of(stratum: int) -> int:
    """The effects that a stratum has: all bodies have the same."""
    return max(0, stratum - TAIL_STRATUM + 1)


@kernel
def effect_place(group: int, feature: int, value: int) -> int:
    """Where an effect lies."""
    return (group * FEATURES + feature) * VALUES + value


@kernel
def risk_of(effects: Reals, traits: int) -> float:
    """The product of a row's effects."""
    group = group_of(stratum_in(traits))
    risk = 1.0
    for feature in range(FEATURES):
        risk *= effects[effect_place(group, feature, feature_in(traits, feature))]
    return risk


@kernel
def _middle_ms(which: int) -> float:
    if which == 0:
        return 0.5
    return float(EDGES_MS[which] * math.sqrt(BIN_RATIO))


class Seen(NamedTuple):
    """All that is recorded, one column a record."""

    strata: NDArray[np.int64]
    values: NDArray[np.int64]
    """Shape (FEATURES, n): which effect of each feature is the record's, as numbered by
    ``effect_place`` in the group of its stratum."""
    ages: Reals
    bins: NDArray[np.int64]
    """Of the ages."""
    reused: NDArray[np.int64]
    """1 where the age ended in reuse."""


@kernel
def _gather(context: int) -> Seen:
    state = state_at(context, 0)
    history = history_at(state.history, 0)
    first = first_kept(state.history)
    count = int(np.int64(history.logged)) - first
    strata, bins = np.empty(count, np.int64), np.empty(count, np.int64)
    values = np.empty((FEATURES, count), np.int64)
    ages = np.empty(count, np.float64)
    reused = np.zeros(count, np.int64)
    for i in range(count):
        record = record_at(history.records, (first + i) % KEPT)
        ended = record.ended_ms if record.ended_ms != 0.0 else -state.clock_ms
        traits = np.int64(record.traits)
        strata[i] = stratum_in(traits)
        group = group_of(strata[i])
        for feature in range(FEATURES):
            values[feature, i] = effect_place(group, feature, feature_in(traits, feature))
        ages[i] = abs(ended) - record.began_ms
        bins[i] = bin_of(ages[i])
        reused[i] = 1 if ended > 0.0 else 0
    return Seen(strata, values, ages, bins, reused)


@kernel
def _count(seen: Seen, risks: Reals) -> tuple[Reals, Reals]:
    """Events, and time at risk, by stratum and bin."""
    events = np.zeros((STRATA, BINS))
    exposure = np.zeros((STRATA, BINS))
    beyond = np.zeros((STRATA, BINS))
    for i in range(len(risks)):
        stratum, last = seen.strata[i], seen.bins[i]
        exposure[stratum, last] += risks[i] * (seen.ages[i] - EDGES_MS[last])
        beyond[stratum, last] += risks[i]
        events[stratum, last] += seen.reused[i]
    for stratum in range(STRATA):
        older = 0.0
        for which in range(BINS - 1, -1, -1):
            exposure[stratum, which] += older * (EDGES_MS[which + 1] - EDGES_MS[which])
            older += beyond[stratum, which]
    return events, exposure


@kernel
def _smooth_hazard(events: Reals, exposure: Reals, which: int) -> float:
    """The hazard in a bin, from it and its neighbours, whose hazard times age is taken as alike."""
    width = EDGES_MS[which + 1] - EDGES_MS[which]
    seen = _PRIOR_WIDTHS * width
    reuses = seen * _PRIOR_REUSES / (_middle_ms(which) + 1.0)
    for other in range(max(0, which - 2), min(BINS, which + 3)):
        distance = abs(other - which)
        weight = 1.0 if distance == 0 else (_NEIGHBOUR if distance == 1 else _NEIGHBOUR**3)
        reuses += weight * events[other]
        seen += weight * exposure[other] * BIN_RATIO ** float(which - other)
    return float(reuses / seen)


@kernel
def _drawn_to(events: Reals, exposure: Reals, pooled: Reals, which: int) -> float:
    """The hazard of a stratum of bodies: that of all, times how it differs about this age."""
    reuses, expected = _STRATUM_EVENTS, _STRATUM_EVENTS
    for other in range(max(0, which - _STRATUM_REACH), min(BINS, which + _STRATUM_REACH + 1)):
        weight = _STRATUM_NEIGHBOUR ** float(abs(other - which))
        reuses += weight * events[other]
        expected += weight * exposure[other] * pooled[other]
    return float(pooled[which] * reuses / expected)


@kernel
def _scale(hazards: Reals, events: Reals, exposure: Reals, first: int, end: int) -> None:
    """Make strata expect as many events as there were: smoothing alone would drift."""
    total, expected = _SCALE_EVENTS, _SCALE_EVENTS
    for stratum in range(first, end):
        for which in range(BINS):
            total += events[stratum, which]
            expected += exposure[stratum, which] * hazards[stratum * BINS + which]
    for place in range(first * BINS, end * BINS):
        hazards[place] *= total / expected


@kernel
def _fit_hazards(hazards: Reals, events: Reals, exposure: Reals) -> None:
    all_events, all_exposure = np.zeros(BINS), np.zeros(BINS)
    pooled = np.zeros(BINS)
    for stratum in range(TAIL_STRATUM):
        for which in range(BINS):
            all_events[which] += events[stratum, which]
            all_exposure[which] += exposure[stratum, which]
    for which in range(BINS):
        pooled[which] = _smooth_hazard(all_events, all_exposure, which)
    for stratum in range(STRATA):
        for which in range(BINS):
            place = stratum * BINS + which
            if stratum < TAIL_STRATUM:
                hazards[place] = _drawn_to(events[stratum], exposure[stratum], pooled, which)
            else:
                hazards[place] = _smooth_hazard(events[stratum], exposure[stratum], which)
    _scale(hazards, events, exposure, 0, TAIL_STRATUM)
    for stratum in range(TAIL_STRATUM, STRATA):
        _scale(hazards, events, exposure, stratum, stratum + 1)


@kernel
def _cumulate(hazards: Reals) -> Reals:
    """Hazard added up to the start of each bin, by stratum."""
    cumulated = np.zeros((STRATA, BINS))
    for stratum in range(STRATA):
        for which in range(BINS - 1):
            width = EDGES_MS[which + 1] - EDGES_MS[which]
            cumulated[stratum, which + 1] = (
                cumulated[stratum, which] + hazards[stratum * BINS + which] * width
            )
    return cumulated


@kernel
def _lived(seen: Seen, hazards: Reals, cumulated: Reals) -> Reals:
    """The hazard of its stratum that each record has lived through."""
    lived = np.empty(len(seen.strata))
    for i in range(len(lived)):
        stratum, last = seen.strata[i], seen.bins[i]
        within = hazards[stratum * BINS + last] * (seen.ages[i] - EDGES_MS[last])
        lived[i] = cumulated[stratum, last] + within
    return lived


@kernel
def _fit_effects(effects: Reals, feature: int, events: Reals, expected: Reals) -> Reals:
    """New effects of a feature from the events of each value; how all effects have changed."""
    change = np.ones(GROUPS * FEATURES * VALUES)
    for group in range(GROUPS):
        first = effect_place(group, feature, 0)
        before = effects[first : first + VALUES]
        after = np.empty(VALUES)
        old_total, new_total = 1e-9, 1e-9
        for value in range(VALUES):
            reuses, reference = _EFFECT_EVENTS, _EFFECT_EVENTS
            for other in range(max(0, value - 1), min(VALUES, value + 2)):
                weight = 1.0 if other == value else _EFFECT_NEIGHBOUR
                reuses += weight * events[first + other]
                reference += weight * expected[first + other] / before[other]
            after[value] = reuses / reference
            old_total += expected[first + value]
            new_total += expected[first + value] * after[value] / before[value]
        # The hazards carry the level, so that effects have no common drift.
        for value in range(VALUES):
            after[value] *= old_total / new_total
            change[first + value] = after[value] / before[value]
        before[:] = after
    return change


@kernel
def fit(context: int) -> None:
    """Hazards and effects from all that is recorded."""
    state = state_at(context, 0)
    hazards = reals_at(state.hazards, STRATA * BINS)
    effects = reals_at(state.effects, GROUPS * FEATURES * VALUES)
    seen = _gather(context)
    risks, events = np.ones(len(seen.strata)), np.zeros(len(effects))
    for feature in range(FEATURES):
        for i in range(len(risks)):
            place = seen.values[feature, i]
            risks[i] *= effects[place]
            events[place] += seen.reused[i]
    for _ in range(_ROUNDS):
        _fit_hazards(hazards, *_count(seen, risks))
        lived = _lived(seen, hazards, _cumulate(hazards))
        for feature in range(FEATURES):
            expected = np.zeros(len(effects))
            for i in range(len(risks)):
                expected[seen.values[feature, i]] += risks[i] * lived[i]
            change = _fit_effects(effects, feature, events, expected)
            for i in range(len(risks)):
                risks[i] *= change[seen.values[feature, i]]
