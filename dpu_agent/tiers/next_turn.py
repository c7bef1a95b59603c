"""When the next turn of a conversation is near, so that its blocks can be brought back before.

Sans-IO. Think time is learnt for each conversation; which turns are followed by another is learnt
from all of them (``_next_turn_kernels``).
"""

from __future__ import annotations

import numpy as np

from dpu_agent.tiers._next_turn_kernels import (
    NEVER,
    NO_ROW,
    new_conversations,
    note_request,
    take_due,
)
from kvlane.capsule import KeyArray

MAX_KEPT_KEYS = 1 << 20
"""32 MiB of keys, of all conversations together."""


class NextTurns:
    """Remembers the prompts of the conversations that were heard of last."""

    def __init__(self, conversations: int = 4096, kept_keys: int = MAX_KEPT_KEYS) -> None:
        self._known = new_conversations(conversations)
        self._chains: dict[int, KeyArray] = {}
        self._kept_keys = kept_keys
        self._keys = 0

    def asked(self, chain: KeyArray, now: int) -> None:
        """A request has this chain, of shape (n, 32) with n above 0; ``now`` in nanoseconds."""
        words = np.ascontiguousarray(chain).view(np.int64)[:, 0]
        row, before = note_request(self._known, np.ascontiguousarray(words), now)
        for old in (before, row):
            self._drop(old)
        self._chains[row] = chain
        self._keys += len(chain)
        while self._keys > self._kept_keys:
            self._drop(next(iter(self._chains)))

    def _drop(self, row: int) -> None:
        chain = self._chains.pop(row, None)
        if chain is not None:
            self._keys -= len(chain)

    def take_due(self, now: int) -> KeyArray | None:
        """The last chain of a conversation whose next turn is near, each once."""
        while (row := take_due(self._known, now)) != NO_ROW:
            chain = self._chains.get(row)
            if chain is not None:
                return chain
        return None

    @property
    def is_any_due(self) -> bool:
        """Whether a turn is expected at any time."""
        return self.next_due_ns != NEVER

    @property
    def next_due_ns(self) -> int:
        """When ``take_due`` is to be asked again."""
        return int(self._known.common[0]["next_due_ns"])
