"""What moves blocks between memory and a colder tier, one thing after the other.

Nothing here waits: ``step`` does what is due. In an agent ``TierThread`` calls it, when the medium
has done something, when a lane hands something over or memory runs short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dpu_agent.cache.store import BlockStore
from dpu_agent.segments.requests import Completion
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.demotion import Demotions
from dpu_agent.tiers.figures import TierFigures
from dpu_agent.tiers.pacing import UNLIMITED, TokenBucket
from dpu_agent.tiers.prefetch import Prefetches, PrefetchMode
from dpu_agent.tiers.promotion import Promotions, Wish
from dpu_agent.tiers.removal import Told
from kvlane.capsule import KeyArray


@dataclass(frozen=True, slots=True)
class Pace:
    """What moves by itself, and how fast it may; rates in bytes a second, 0 is no limit."""

    prefetch: PrefetchMode = PrefetchMode.NONE
    prefetch_bytes_per_s: int = UNLIMITED
    demote_bytes_per_s: int = UNLIMITED


_UNHURRIED = Pace()


class TierMover:
    """All of its methods are called from one thread."""

    def __init__(
        self,
        hot: BlockStore,
        cold: ColdTier,
        address: int,
        pace: Pace = _UNHURRIED,
    ) -> None:
        """``address`` is where the memory of the hot store's slots begins."""
        self.figures = TierFigures()
        self._cold = cold
        self._promotions = Promotions(hot, cold, address, self.figures)
        limit = TokenBucket(pace.demote_bytes_per_s)
        self._demotions = Demotions(hot, cold, address, limit, self.figures)
        budget = TokenBucket(pace.prefetch_bytes_per_s)
        self._prefetches = Prefetches(
            hot, cold, self._promotions, pace.prefetch, budget, self.figures
        )

    def want(self, keys: KeyArray, tell: Callable[[Wish], None], now: int) -> None:
        """Bring blocks into memory; ``tell(wish)`` once all have come that will, maybe at once.
        They stay there until ``end(wish)``."""
        self._promotions.begin(Wish(keys, tell), now)

    def end(self, wish: Wish) -> None:
        """Blocks that were wanted may leave memory again."""
        self._promotions.end(wish)

    def keep(self, keys: KeyArray, tell: Callable[[], None]) -> None:
        """Have blocks written so that they survive a crash; ``tell()`` once those do that can."""
        self._demotions.keep(keys, tell)

    def delete(self, keys: KeyArray, told: Told, now: int) -> None:
        """Forget blocks for good; ``told(True)`` once not even a crash brings them back, or
        ``told(False)`` when that cannot be had."""
        for key in (row.tobytes() for row in keys):
            self._promotions.forget(key)
            self._prefetches.forget(key)
        self._cold.removals.begin(self._cold.delete(keys, now))
        # A copy that is under way is useless when it is there, and to be removed too.
        self._demotions.after_copies(keys, partial(self._cold.removals.fence, told))

    def notice(self, chain: KeyArray, now: int) -> None:
        """A MATCH has asked for a chain."""
        self._prefetches.notice(chain, now)

    def next_step_in_ns(self, now: int) -> int | None:
        """When ``step`` is to be called though nothing has happened; None is never."""
        waits = (self._demotions.next_step_in_ns(), self._prefetches.next_step_in_ns(now))
        return min((wait for wait in waits if wait is not None), default=None)

    def step(self, now: int) -> bool:
        """Take in what the medium has done, and begin what is due; whether there was anything."""
        self._cold.removals.try_again()
        worked = self._take_in(now)
        while self._demotions.is_due(now) and self._demotions.begin():
            worked = True
        self._prefetches.step(now)
        return worked

    def _take_in(self, now: int) -> bool:
        """Learn what the medium has done and moved; whether there was anything.

        A block may be moved before it is known where it was written. So what was done is asked for
        after what was moved: it is older, and the move is followed then. And until nothing has
        moved, for by asking again the medium hears that the last moves have been followed.
        """
        worked = False
        while True:
            moved = self._cold.medium.moved()
            for done in self._cold.medium.poll():
                worked = True
                self._finish(done, now)
            if not moved:
                return worked
            self._cold.follow(moved)

    def _finish(self, done: Completion, now: int) -> None:
        if not (self._promotions.finish(done, now) or self._demotions.finish(done, now)):
            self._cold.removals.finish(done)
