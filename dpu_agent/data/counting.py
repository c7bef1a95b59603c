"""What the data path counts: words that the thread of one lane writes, and anybody may read.

None ever falls. Who reads while a command is counted may see it in one word and not yet in another.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kvlane.capsule import Opcode

OPERATIONS = tuple(Opcode)
TIERS = ("memory", "nvme")
"""What answered a command: memory alone, or a wait for the tier below it too."""

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_DECADES = range(3, 10)
BOUNDS_NS = np.array([*(round(s * 10**d) for d in _DECADES for s in _STEPS), 10**10], np.int64)
"""Upper bounds of the classes of latency, themselves included: 1 us to 10 s, at most 1.67 times as
much as the one before. One class more takes what is longer."""

LATENCY_CLASSES = len(BOUNDS_NS) + 1
SUM_NS = LATENCY_CLASSES
JITTER_SUM_NS = LATENCY_CLASSES + 1
JITTERS = LATENCY_CLASSES + 2
LATENCY_WORDS = LATENCY_CLASSES + 3
"""Of a row: commands by class, then the words named above. Jitter is by how much the latencies of
two commands differ that follow each other in one session and one row."""
LATENCY_ROWS = len(OPERATIONS) * len(TIERS)
"""Each operation has one row a tier."""

NEVER = -1
"""For the latency of a session's last command: there was none."""

MAX_TENANTS = 64
OTHER_TENANTS = MAX_TENANTS
"""The row of all tenants beyond those that have one of their own."""


class Found(IntEnum):
    """Where a key was found that a command looked up."""

    IN_MEMORY = 0
    IN_NVME = 1
    NOWHERE = 2


class TenantWord(IntEnum):
    """What is counted of a tenant; of keys, three words by ``Found``."""

    RETRIEVE_KEYS = 0
    EXIST_KEYS = 3
    MATCH_KEYS = 6
    STORED_BYTES = 9
    RETRIEVED_BYTES = 10


TENANT_WORDS = 16
"""Two cache lines."""
ANSWER_WORDS = 3
"""Connection, row of latencies, time of arrival."""

Words = NDArray[np.int64]


def latency_row(operation: Opcode, tier: int) -> int:
    """Which row the latencies of an operation that waited for a tier are in."""
    return OPERATIONS.index(operation) * len(TIERS) + tier


class LaneCounts:
    """The words of one lane."""

    def __init__(self, max_sessions: int, command_slots: int) -> None:
        """``command_slots`` is how many commands can be answered in one turn of the loop."""
        self.latencies: Words = np.zeros((LATENCY_ROWS, LATENCY_WORDS), np.int64)
        self.tenants: Words = np.zeros((MAX_TENANTS + 1, TENANT_WORDS), np.int64)
        self.latest: Words = np.full((max_sessions, LATENCY_ROWS), NEVER, np.int64)
        """Latency of the last command of each session."""
        self.answers: Words = np.zeros((command_slots, ANSWER_WORDS), np.int64)
        """Responses posted in this turn, whose latency is known when it ends."""

    def begin_session(self, index: int) -> None:
        """Another session has this place now."""
        self.latest[index] = NEVER
