"""What became of past requests, of the policy ``reuse``: the data that its model is fitted to.

A ring of records. At large capacities reuse takes longer than a full ring lasts; then every second
record is dropped and only every second row, fourth row and so on is recorded from then on.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._reuse_layout_kernels import (
    FEATURES,
    NONE,
    VALUES,
    row_at,
    state_at,
)
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

KEPT = 32_768
_SPAN_CAPACITIES = 4
"""How many times the capacity a full ring should have seen missed."""
_FIRST_FIT = 64
"""Records before the second fit; then always an eighth more, up to an eighth of the ring."""

HISTORY = np.dtype(
    [("records", "i8"), ("logged", "i8"), ("stride", "i8"), ("skipped", "i8"), ("due", "i8")]
)
"""``logged`` counts records since the start of the ring, ``due`` is the count at which the model is
to be fitted again."""
RECORD = np.dtype([("began_ms", "f8"), ("ended_ms", "f8"), ("missed", "i8"), ("traits", "i8")])
"""``ended_ms`` is when the row was asked for again; negative when it was forgotten before; 0 while
neither has come to pass. ``missed`` counts blocks up to its start."""
history_at = record_accessor(HISTORY)
record_at = record_accessor(RECORD)


@kernel
def traits_of(stratum: int, first: int, second: int, third: int, fourth: int) -> int:
    """Stratum and features in one number."""
    return (((stratum * VALUES + fourth) * VALUES + third) * VALUES + second) * VALUES + first


@kernel
def feature_in(traits: int, which: int) -> int:
    """One of the features."""
    return (traits >> (4 * which)) & (VALUES - 1)


@kernel
def stratum_in(traits: int) -> int:
    """The stratum."""
    return traits >> (4 * FEATURES)


@kernel
def first_kept(history: int) -> int:
    """The number of the oldest record that is there."""
    return max(0, int(np.int64(history_at(history, 0).logged)) - KEPT)


@kernel
def _thin(context: int) -> None:
    """Drop every second record, and tell the rows what their numbers are now."""
    state = state_at(context, 0)
    history = history_at(state.history, 0)
    first = first_kept(state.history)
    # The ring turned so that it begins at its first place; it is full.
    whole = np.empty((KEPT, 4), np.float64)
    for place in range(KEPT):
        record = record_at(history.records, (first + place) % KEPT)
        whole[place, 0] = record.began_ms
        whole[place, 1] = record.ended_ms
        whole[place, 2] = record.missed
        whole[place, 3] = record.traits
    for place in range(KEPT // 2):
        record = record_at(history.records, place)
        kept = whole[2 * place + 1]
        record.began_ms = kept[0]
        record.ended_ms = kept[1]
        record.missed = np.int64(kept[2])
        record.traits = np.int64(kept[3])
    for row in range(state.row_count):
        place = np.int64(row_at(state.rows, row).logged) - first
        row_at(state.rows, row).logged = place >> 1 if place >= 0 and place & 1 else NONE
    history.logged = KEPT // 2
    history.stride *= 2
    history.due = KEPT // 2 + KEPT // 8


@kernel
def _is_too_short(context: int) -> bool:
    state = state_at(context, 0)
    history = history_at(state.history, 0)
    if history.logged < KEPT:
        return False
    oldest = record_at(history.records, first_kept(state.history) % KEPT)
    span = np.int64(state.missed) - np.int64(oldest.missed)
    return bool(span < _SPAN_CAPACITIES * np.int64(state.capacity))


@kernel
def log(context: int, traits: int) -> int:
    """Record a row that begins now; the number of the record, or ``NONE`` if it is left out."""
    state = state_at(context, 0)
    history = history_at(state.history, 0)
    history.skipped += 1
    if history.skipped < history.stride:
        return NONE
    history.skipped = 0
    if _is_too_short(context):
        _thin(context)
    number = int(np.int64(history.logged))
    record = record_at(history.records, number % KEPT)
    record.began_ms = state.clock_ms
    record.ended_ms = 0.0
    record.missed = state.missed
    record.traits = traits
    history.logged += 1
    return number


@kernel
def end(context: int, row: int, is_reused: bool) -> None:
    """Note that a row was asked for again, or forgotten; the first to happen counts."""
    state = state_at(context, 0)
    number = np.int64(row_at(state.rows, row).logged)
    if number < 0 or number < first_kept(state.history):
        return
    record = record_at(history_at(state.history, 0).records, number % KEPT)
    if record.ended_ms == 0.0:
        record.ended_ms = state.clock_ms if is_reused else -state.clock_ms


@kernel
def is_fit_due(history: int) -> bool:
    """Whether enough has been recorded since the last fit; asking sets the next one."""
    state = history_at(history, 0)
    logged = np.int64(state.logged)
    if logged < state.due:
        return False
    state.due = logged + min(max(_FIRST_FIT, logged // 8), KEPT // 8)
    return True
