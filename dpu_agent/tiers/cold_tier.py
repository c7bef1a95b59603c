"""A tier on a medium: which key lies where on it, and what leaves it when it is full.

The block store keeps the books, as it does for memory; a slot here is a row of metadata, and beside
it stands where the block lies on the medium.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._demotion_kernels import choose_leaving, let_go
from dpu_agent.cache.policy.base import SlotArray
from dpu_agent.cache.store import BlockStore
from dpu_agent.segments.locations import NOWHERE
from dpu_agent.segments.requests import Completion, Kept, Read, Record
from dpu_agent.tiers.medium import Medium
from dpu_agent.tiers.recent_moves import RecentMoves
from dpu_agent.tiers.removal import Removals
from kvlane.capsule import KeyArray, KeyStatus

_LEAVING_FOR_ONE = 2
"""Blocks that leave for each that comes while the medium runs short: what they took is only room
again when all else near them has left too."""


class ColdTier:
    """Metadata and medium of one tier. Its methods are called from one thread."""

    def __init__(
        self,
        store: BlockStore,
        medium: Medium,
        full: Callable[[], None] = lambda: None,
        is_short: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """``full()`` is called when the medium has no room left for what it is asked.
        ``is_short(nbytes)`` says of that many, which are about to be written, whether others should
        leave for them, though there are rows."""
        self.store = store
        self.medium = medium
        self.removals = Removals(medium, full)
        self._is_short = is_short
        self._locations = np.full(store.capacity_blocks, NOWHERE, np.int64)
        self._moves = RecentMoves()
        self._turns: dict[int, int] = {}
        """When a ticket of which it is not known yet how it ended was begun, for ``_moves``."""

    def load(self, kept: Iterable[Kept], now: int) -> int:
        """Take in what the medium has from earlier; how many there was no room for. These it is
        told to forget."""
        useless = []
        for each in kept:
            key = np.frombuffer(each.key, np.uint8).reshape(1, -1)
            fits = each.length <= self.store.block_bytes and self.store.free_blocks > 0
            slot = int(self.reserve(key, np.array([each.length]))[0]) if fits else -1
            if slot < 0:
                useless.append(each.location)
            else:
                self.publish(slot, each.location, each.checksum, now)
        self.removals.begin(useless)
        return len(useless)

    def follow(self, moved: Sequence[tuple[int, int]]) -> None:
        """Learn where the medium has moved blocks to."""
        new_of = dict(moved)
        self._moves.tell(moved)
        for slot in np.flatnonzero(np.isin(self._locations, list(new_of))):
            place = int(self._locations[slot])
            while place in new_of:  # moved more than once
                place = new_of[place]
            self._locations[slot] = place

    def reserve(self, keys: KeyArray, lengths: NDArray[np.int64]) -> SlotArray:
        """A row for each key, -1 where it has one already or none is to be had.

        What had to leave for that is removed from the medium.
        """
        if len(keys) and self._is_short(int(lengths.sum())):
            self._evict(_LEAVING_FOR_ONE * len(keys))
        slots, _ = self.store.reserve(keys, lengths)
        self._vacate(slots[slots >= 0])
        return slots

    def publish(self, slot: int, location: int, checksum: int, now: int) -> None:
        """The block of a reserved row lies at a location now."""
        self._locations[slot] = location
        self.store.publish(np.array([slot]), np.array([checksum], np.uint32), now)

    def abort(self, slot: int) -> None:
        """The block of a reserved row will not come."""
        self.store.abort(np.array([slot]))

    def find(self, keys: KeyArray, now: int) -> SlotArray:
        """Pin the rows of some keys, -1 where there are none."""
        return self.store.pin(keys, now)

    def leave(self, slot: int, generation: int) -> None:
        """Give a pin back."""
        self.store.unpin(np.array([slot]), np.array([generation], np.uint32))

    def generation(self, slot: int) -> int:
        """Of a row that is pinned or reserved."""
        return int(self.store.generations(np.array([slot]))[0])

    def length(self, slot: int) -> int:
        """Bytes of the block of a row that is pinned."""
        return int(self.store.lengths(np.array([slot]))[0])

    def checksum(self, slot: int) -> int:
        """CRC-32 of the block of a row that is pinned."""
        return int(self.store.checksums(np.array([slot]))[0])

    def location(self, slot: int) -> int:
        """Where the block of a row that is pinned lies."""
        return int(self._locations[slot])

    def write(self, records: Sequence[Record], *, durable: bool) -> int:
        """A ticket of the medium; once it has ended, ``written``."""
        turn = self._moves.begin()
        ticket = self.medium.append(records, durable=durable)
        self._turns[ticket] = turn
        return ticket

    def written(self, done: Completion) -> list[int]:
        """Where the blocks of a ticket that has ended are by now."""
        places = [self._moves.newest(location) for location in done.locations]
        self._moves.end(self._turns.pop(done.ticket))
        return places

    def read(self, reads: Sequence[Read]) -> int:
        """A ticket of the medium."""
        return self.medium.read(reads)

    def delete(self, keys: KeyArray, now: int) -> list[int]:
        """Take keys out of sight; where their blocks lie, for the caller to remove."""
        slots = self.store.pin(keys, now)
        held = slots[slots >= 0]
        locations = self._locations[held].tolist()
        generations = self.store.generations(held)
        statuses = self.store.delete(keys)
        self.store.unpin(held, generations)
        self._locations[held] = NOWHERE
        assert int((statuses == KeyStatus.OK).sum()) <= len(locations)
        return [location for location in dict.fromkeys(locations) if location != NOWHERE]

    def _evict(self, most: int) -> None:
        """Let the most dispensable blocks leave."""
        leaving = choose_leaving(self.store.arrays, most)
        self._vacate(leaving.slots)
        let_go(self.store.arrays, leaving.slots, leaving.generations, True)

    def _vacate(self, slots: SlotArray) -> None:
        """Rows that begin anew or are given up: what they stood for has been evicted."""
        left = self._locations[slots]
        self._locations[slots] = NOWHERE
        self.removals.begin(left[left != NOWHERE].tolist())
