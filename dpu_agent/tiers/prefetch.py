"""Blocks that are brought into memory before anybody asks for them.

Two things say that a block will be asked for: a MATCH that has found it in a colder tier, and a
conversation whose next turn is near. Neither may cost those who ask: a guess is followed only while
nobody waits for the colder tier, into slots that are free, within a budget of bytes, and as long as
few guesses are open.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from dpu_agent.cache.store import BlockStore
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.demotion import reserve_blocks
from dpu_agent.tiers.figures import TierFigures
from dpu_agent.tiers.next_turn import NextTurns
from dpu_agent.tiers.pacing import TokenBucket
from dpu_agent.tiers.promotion import Promotions
from kvlane.capsule import KeyArray, KeyStatus

_MOST_UNDER_WAY = 16
_MOST_WAITING = 4096
_LATEST_NS = 5_000_000_000
"""A guess that could not be followed for so long is given up."""
_OPEN_PART = 8
"""At most one slot of memory in so many holds a block on a guess that is open."""


class PrefetchMode(Enum):
    """What guesses are made from."""

    NONE = "none"
    MATCH = "match"
    """From a MATCH that has found blocks in a colder tier."""
    NEXT_TURN = "next_turn"
    """And from the think times of conversations."""


class Prefetches:
    """Guesses that wait, and the ones that are followed. Sans-IO."""

    def __init__(
        self,
        hot: BlockStore,
        cold: ColdTier,
        promotions: Promotions,
        mode: PrefetchMode,
        budget: TokenBucket,
        figures: TierFigures,
    ) -> None:
        self._hot = hot
        self._cold = cold
        self._promotions = promotions
        self._is_on = mode is not PrefetchMode.NONE
        self._turns = NextTurns() if mode is PrefetchMode.NEXT_TURN else None
        self._budget = budget
        self._figures = figures
        self._waiting: dict[bytes, int] = {}
        """Since when, in nanoseconds; the oldest first."""
        self._kept_free = reserve_blocks(hot.capacity_blocks) // 2
        self._most_open = max(1, hot.capacity_blocks // _OPEN_PART)

    def notice(self, chain: KeyArray, now: int) -> None:
        """A MATCH has asked for a chain: what of it lies colder will be wanted."""
        if not self._is_on:
            return
        if self._turns is not None:
            self._turns.asked(chain, now)
        self._guess(chain, now)

    def _guess(self, chain: KeyArray, now: int) -> None:
        """Wait with the blocks of a chain, up to the first that is nowhere, that lie colder."""
        in_memory = self._hot.exist(chain) == KeyStatus.OK
        colder = self._cold.store.exist(chain) == KeyStatus.OK
        gaps = np.flatnonzero(~in_memory & ~colder)
        end = int(gaps[0]) if len(gaps) else len(chain)
        for row in np.flatnonzero(~in_memory[:end]).tolist():
            if len(self._waiting) == _MOST_WAITING:
                self._figures.prefetch_skipped += 1
            else:
                self._waiting.setdefault(chain[row].tobytes(), now)

    def forget(self, key: bytes) -> None:
        """A block was deleted."""
        self._waiting.pop(key, None)

    def step(self, now: int) -> None:
        """Follow the guesses that can be followed now."""
        while self._turns is not None and (chain := self._turns.take_due(now)) is not None:
            self._guess(chain, now)
        while self._waiting and self._may_follow(now):
            key = next(iter(self._waiting))
            since = self._waiting.pop(key)
            if now - since > _LATEST_NS:
                self._figures.prefetch_skipped += 1
                continue
            self._budget.take(self._promotions.guess(key, now))

    def _may_follow(self, now: int) -> bool:
        under_way = self._promotions.guesses_under_way
        return (
            under_way < _MOST_UNDER_WAY
            and not self._promotions.has_wishes
            and self._hot.free_blocks > self._kept_free
            and self._hot.guessed_blocks + under_way < self._most_open
            and self._budget.is_open(now)
        )

    def next_step_in_ns(self, now: int) -> int | None:
        """When ``step`` is to be called though nothing has happened; None is never."""
        waits = []
        if self._waiting:
            # Room and wishes tell by themselves; the budget and a guess that is too late do not.
            waits.append(max(self._budget.opens_in_ns(), _LATEST_NS // 50))
        if self._turns is not None and self._turns.is_any_due:
            waits.append(max(self._turns.next_due_ns - now, 0))
        return min(waits, default=None)
