"""Which appends a sync makes durable: the state of one segment that is written to.

Batches of a segment are written side by side, but recovery goes from one to the next. So a batch
counts as durable only when all before it are written too, and a sync that began after that ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Place(Generic[T]):
    end: int
    batch: T | None = None
    """Who waits for a sync, once it is written."""
    written: bool = False


class GroupCommit(Generic[T]):
    """Offsets only grow: given, written without a gap, synced."""

    def __init__(self, start: int) -> None:
        self.given = self.written_through = self.synced_through = start
        self.broken = False
        self._places: dict[int, _Place[T]] = {}
        self._order: deque[int] = deque()
        self._waiting: deque[_Place[T]] = deque()
        self._syncing = False

    @property
    def in_flight(self) -> int:
        """Batches whose write has not ended, or that wait for one before them."""
        return len(self._places)

    @property
    def idle(self) -> bool:
        """Nobody waits for anything here."""
        return not self._places and not self._waiting and not self._syncing

    def begin(self, nbytes: int) -> int:
        """Give room to a batch; its offset."""
        offset = self.given
        self.given += nbytes
        self._places[offset] = _Place(self.given)
        self._order.append(offset)
        return offset

    def wrote(self, offset: int, waits: T | None) -> None:
        """A batch is written; ``waits`` is to be released by a sync, None where nobody asks."""
        place = self._places[offset]
        place.written, place.batch = True, waits
        while self._order and self._places[self._order[0]].written:
            done = self._places.pop(self._order.popleft())
            self.written_through = done.end
            if done.batch is not None:
                self._waiting.append(done)

    def fail(self) -> list[T]:
        """The segment takes no more; those who wait, and now do so in vain."""
        self.broken = True
        lost = [place.batch for place in self._waiting if place.batch is not None]
        lost += [place.batch for place in self._places.values() if place.batch is not None]
        self._waiting.clear()
        for offset in [at for at, place in self._places.items() if place.written]:
            self.drop(offset)
        return lost

    def drop(self, offset: int) -> None:
        """A write of a broken segment has ended, well or not."""
        self._places.pop(offset, None)
        if offset in self._order:
            self._order.remove(offset)

    def sync_wanted(self) -> int | None:
        """Where a sync that is to begin now reaches to, if one is wanted and none is under way."""
        if self._syncing or not self._waiting:
            return None
        self._syncing = True
        return self.written_through

    def synced(self, mark: int) -> list[T]:
        """The sync that was to reach ``mark`` has ended well; who is released."""
        self._syncing = False
        self.synced_through = max(self.synced_through, mark)
        released: list[T] = []
        while self._waiting and self._waiting[0].end <= mark:
            batch = self._waiting.popleft().batch
            if batch is not None:
                released.append(batch)
        return released

    def sync_failed(self) -> list[T]:
        """It has not: what the device holds is unknown, for a second sync may lie."""
        self._syncing = False
        return self.fail()
