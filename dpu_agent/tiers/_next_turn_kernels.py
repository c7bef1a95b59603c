"""Conversations, when their next turn may come, and how sure that is: arrays and what moves them.

A request continues the conversation whose last prompt it contains up to its last block or the one
before: the last block of a prompt is often not full, and then another the next time. The row of a
conversation moves with each of its requests to the next place of a ring; so the one that has been
silent longest is forgotten first, and memory is bounded.

Buckets lead from a block to a row. A row is believed only if it names the block, so a bucket that
was overwritten or is out of date costs a guess and no more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel

NO_ROW = -1
NEVER = (1 << 63) - 1
"""A time that does not come."""
MAX_TURN = 8
"""Later turns are counted as this one."""
SAME_TURN_NS = 1_000_000_000
"""A prompt that comes again within it is a retry: nobody answers so fast."""
LEAD = 0.5
"""The share of the expected think time after which a turn is taken to be near."""
LAPSE = 8.0
"""After so many think times a conversation is taken to have ended."""
LEAST_CHANCE = 0.5
"""Of a next turn, below which none is expected."""
_OWN_WEIGHT = 0.5
_COMMON_WEIGHT = 1.0 / 64.0
_NO_KEY = 0

CONVERSATION = np.dtype(
    [
        ("last_key", "i8"),
        ("key_before", "i8"),
        ("asked_ns", "i8"),
        ("due_ns", "i8"),
        ("lapses_ns", "i8"),
        ("think_ns", "f8"),
        ("turn", "i8"),
    ]
)
"""``think_ns`` is 0 where it is not known yet; ``due_ns`` and ``lapses_ns`` are ``NEVER`` once
they have been acted on."""

COMMON = np.dtype([("requests", "i8"), ("think_ns", "f8"), ("next_due_ns", "i8")])


class Conversations(NamedTuple):
    """All that is known."""

    rows: NDArray[np.void]
    """Shape (n,), dtype CONVERSATION: a ring by the number of the request."""
    buckets: NDArray[np.int32]
    returned: NDArray[np.int64]
    """Shape (MAX_TURN + 1,): how often a turn was followed by another."""
    lapsed: NDArray[np.int64]
    """And how often not."""
    common: NDArray[np.void]
    """Shape (1,), dtype COMMON."""


def new_conversations(count: int) -> Conversations:
    """Nothing is known; ``count`` is how many are remembered."""
    rows = np.zeros(count, CONVERSATION)
    rows["due_ns"] = rows["lapses_ns"] = NEVER
    common = np.zeros(1, COMMON)
    common["next_due_ns"] = NEVER
    return Conversations(
        rows=rows,
        buckets=np.full(8 * count, NO_ROW, np.int32),
        returned=np.zeros(MAX_TURN + 1, np.int64),
        lapsed=np.zeros(MAX_TURN + 1, np.int64),
        common=common,
    )


@kernel
def _bucket_of(known: Conversations, key: int) -> int:
    word = np.int64(key)
    return int(((word >> 32) ^ word) & 0x7FFFFFFF) % len(known.buckets)


@kernel
def _find(known: Conversations, chain: Any) -> int:
    """The conversation that a chain continues, or ``NO_ROW``."""
    for i in range(len(chain) - 1, -1, -1):
        row = np.int64(known.buckets[_bucket_of(known, chain[i])])
        if row == NO_ROW:
            continue
        record = known.rows[row]
        if record["last_key"] == chain[i] or record["key_before"] == chain[i]:
            return int(row)
    return NO_ROW


@kernel
def _forget(known: Conversations, row: int) -> None:
    record = known.rows[row]
    record["last_key"] = record["key_before"] = _NO_KEY
    record["due_ns"] = record["lapses_ns"] = NEVER


@kernel
def _lapse(known: Conversations, row: int) -> None:
    """A conversation is not taken to go on any more."""
    record = known.rows[row]
    if record["lapses_ns"] != NEVER:
        record["lapses_ns"] = NEVER
        known.lapsed[record["turn"]] += 1


@kernel
def chance_of_more(known: Conversations, turn: int) -> float:
    """How likely a turn is followed by another; a half where nothing is known."""
    returned, lapsed = float(known.returned[turn]), float(known.lapsed[turn])
    return (returned + 1.0) / (returned + lapsed + 2.0)


@kernel
def _learn_gap(known: Conversations, row: int, gap_ns: float) -> float:
    """A conversation has gone on; what its think time is now."""
    record, common = known.rows[row], known.common[0]
    if record["lapses_ns"] != NEVER:
        known.returned[record["turn"]] += 1
    else:
        # It was given up too early; the count is put right.
        known.lapsed[record["turn"]] = max(known.lapsed[record["turn"]] - 1, 0)
        known.returned[record["turn"]] += 1
    if common["think_ns"] == 0.0:
        common["think_ns"] = gap_ns
    else:
        common["think_ns"] += _COMMON_WEIGHT * (gap_ns - common["think_ns"])
    if record["think_ns"] == 0.0:
        return gap_ns
    return float(record["think_ns"] + _OWN_WEIGHT * (gap_ns - record["think_ns"]))


@kernel
def _expect(known: Conversations, row: int, now: int) -> None:
    """Say when the next turn may come, if it may."""
    record, common = known.rows[row], known.common[0]
    if common["think_ns"] == 0.0:
        return
    think = record["think_ns"] if record["think_ns"] > 0.0 else common["think_ns"]
    record["lapses_ns"] = now + np.int64(LAPSE * max(think, common["think_ns"]))
    if record["think_ns"] > 0.0 and chance_of_more(known, record["turn"]) >= LEAST_CHANCE:
        record["due_ns"] = now + np.int64(LEAD * think)
        common["next_due_ns"] = min(common["next_due_ns"], record["due_ns"])


@kernel
def note_request(known: Conversations, chain: Any, now: int) -> tuple[int, int]:
    """A prompt has come: the row where it is remembered, and the one that it continues or
    ``NO_ROW``. ``chain`` is int64, what stands for the key of each block; it is not empty."""
    before = _find(known, chain)
    turn, think = 1, 0.0
    if before != NO_ROW:
        record = known.rows[before]
        turn, think = record["turn"], record["think_ns"]
        gap = now - record["asked_ns"]
        if gap >= SAME_TURN_NS:
            think = _learn_gap(known, before, float(gap))
            turn = min(turn + 1, MAX_TURN)
        _forget(known, before)
    common = known.common[0]
    row = common["requests"] % len(known.rows)
    common["requests"] += 1
    if known.rows[row]["last_key"] != _NO_KEY:
        _lapse(known, row)
    _forget(known, row)
    record = known.rows[row]
    record["last_key"] = chain[len(chain) - 1]
    record["key_before"] = chain[max(len(chain) - 2, 0)]
    record["asked_ns"], record["turn"], record["think_ns"] = now, turn, think
    known.buckets[_bucket_of(known, record["last_key"])] = row
    known.buckets[_bucket_of(known, record["key_before"])] = row
    _expect(known, row, now)
    return int(row), before


@kernel
def take_due(known: Conversations, now: int) -> int:
    """A conversation whose next turn is near, each once; ``NO_ROW`` when there is none."""
    common = known.common[0]
    if common["next_due_ns"] > now:
        return NO_ROW
    found, soonest = NO_ROW, NEVER
    for row in range(len(known.rows)):
        record = known.rows[row]
        if record["lapses_ns"] <= now:
            _lapse(known, row)
        if found == NO_ROW and record["due_ns"] <= now:
            found = row
            record["due_ns"] = NEVER
        soonest = min(soonest, record["due_ns"])
    common["next_due_ns"] = soonest
    return found
