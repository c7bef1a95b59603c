"""How long commands take, from the turn of the loop that finds them to the end of the one that
posts their responses: counted by classes, with sum and jitter, without a look at the clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.data.counting import (
    ANSWER_WORDS,
    BOUNDS_NS,
    JITTER_SUM_NS,
    JITTERS,
    LATENCY_ROWS,
    LATENCY_WORDS,
    NEVER,
    OPERATIONS,
    SUM_NS,
    TIERS,
)
from dpu_agent.data.state import Serving, server_at
from kvlane.jit import kernel
from kvlane.rawmem import words_at

NOT_EXECUTED = 0
"""The opcode of a command slot whose command is refused; its latency says nothing."""
assert NOT_EXECUTED not in OPERATIONS

_TIER_COUNT = len(TIERS)
_FIRST_ROWS = np.zeros(256, np.int64)
_FIRST_ROWS[list(OPERATIONS)] = np.arange(len(OPERATIONS)) * _TIER_COUNT
"""By opcode."""
_WORD_BYTES = 8


@kernel
def class_of(latency_ns: int) -> int:
    """Which class a latency is in: the first whose bound it does not exceed."""
    return int(np.searchsorted(BOUNDS_NS, latency_ns))


@kernel
def note_answer(serving: Serving, index: int, command: Any) -> None:
    """A response is being posted; what it took is known when the turn of the loop is over."""
    if command.opcode == NOT_EXECUTED:
        return
    server = server_at(serving.server, 0)
    place = server.answers + server.answer_count * ANSWER_WORDS * _WORD_BYTES
    entry = words_at(place, ANSWER_WORDS)
    entry[0] = index
    entry[1] = _FIRST_ROWS[command.opcode] + command.has_waited
    entry[2] = command.arrived_at
    server.answer_count += 1


@kernel
def count_latency(row: Any, latest: Any, latency_ns: int) -> None:
    """Count one command in its row; ``latest`` is the latency of the one before."""
    row[class_of(latency_ns)] += 1
    row[SUM_NS] += latency_ns
    if latest[0] != NEVER:
        row[JITTER_SUM_NS] += abs(latency_ns - latest[0])
        row[JITTERS] += 1
    latest[0] = latency_ns


@kernel
def count_answers(serving: Serving, now: int) -> None:
    """The turn is over: count what the commands took whose responses were posted in it."""
    server = server_at(serving.server, 0)
    for i in range(server.answer_count):
        entry = words_at(server.answers + i * ANSWER_WORDS * _WORD_BYTES, ANSWER_WORDS)
        place = (entry[0] * LATENCY_ROWS + entry[1]) * _WORD_BYTES
        row = words_at(server.latencies + entry[1] * LATENCY_WORDS * _WORD_BYTES, LATENCY_WORDS)
        count_latency(row, words_at(server.latest + place, 1), max(0, now - entry[2]))
    server.answer_count = 0
