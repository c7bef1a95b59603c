"""What moves blocks between memory and a colder tier, one thing after the other.

Nothing here waits: ``step`` does what is due. In an agent ``TierThread`` calls it, when the medium
has done something, when a lane hands something over or memory runs short.
"""

from __future__ import annotations

from collections.abc import Callable

from dpu_agent.cache.store import BlockStore
from dpu_agent.segments.requests import Completion
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.demotion import Demotions
from dpu_agent.tiers.figures import TierFigures
from dpu_agent.tiers.promotion import Promotions, Wish
from dpu_agent.tiers.removal import Told
from kvlane.capsule import KeyArray


class TierMover:
    """All of its methods are called from one thread."""

    def __init__(self, hot: BlockStore, cold: ColdTier, address: int) -> None:
        """``address`` is where the memory of the hot store's slots begins."""
        self.figures = TierFigures()
        self._cold = cold
        self._promotions = Promotions(hot, cold, address, self.figures)
        self._demotions = Demotions(hot, cold, address, self.figures)

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
        for row in keys:
            self._promotions.forget(row.tobytes())
        locations = self._cold.delete(keys, now)
        if locations:
            self._cold.removals.begin(locations, durable=True, told=told)
        else:
            told(True)

    def step(self, now: int) -> bool:
        """Take in what the medium has done, and begin what is due; whether there was anything."""
        self._cold.removals.try_again()
        worked = self._take_in(now)
        while self._demotions.is_due() and self._demotions.begin():
            worked = True
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
