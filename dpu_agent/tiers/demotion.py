"""Blocks on their way from memory into a colder tier: to make room there, or to survive a crash.

As soon as fewer slots are free than are kept in reserve, the policy's victims are copied, and their
slots become free when the copies are there. A Store that comes too fast for that evicts as ever,
and what it evicts is lost to the colder tier.

What is to survive a crash is copied in the same way and stays in memory. All copies are durable:
what lies in the colder tier survives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpu_agent.cache._demotion_kernels import (
    Leaving,
    are_there,
    choose_leaving,
    describe,
    hold,
    let_go,
)
from dpu_agent.cache.index import key_words
from dpu_agent.cache.store import BlockStore
from dpu_agent.segments.requests import Completion, ItemStatus, Record
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.figures import TierFigures
from dpu_agent.tiers.pacing import TokenBucket
from kvlane.capsule import KeyArray, KeyStatus
from kvlane.limits import KEY_BYTES

_BATCH = 16
"""Blocks that are chosen and written together, where so many slots are kept free."""
_MOST_UNDER_WAY = 64
_RESERVE_PART = 16
"""One slot in so many is kept free."""
_MOST_RESERVED = 256


def reserve_blocks(capacity_blocks: int) -> int:
    """Slots that are kept free in a store of some size."""
    return max(1, min(capacity_blocks // _RESERVE_PART, _MOST_RESERVED))


@dataclass(slots=True)
class _Copying:
    """Blocks that are being written; one row a block."""

    slots: np.ndarray[tuple[int], np.dtype[np.int64]]
    generations: np.ndarray[tuple[int], np.dtype[np.int64]]
    cold_slots: list[int]
    keys: list[bytes]
    lengths: list[int]
    checksums: list[int]
    evicts: bool
    """Whether the slots are to become free."""
    keepers: list[_Keeper] = field(default_factory=list)


@dataclass(slots=True)
class _Keeper:
    """Somebody who waits for copies."""

    tell: Callable[[], None]
    missing: int = 0
    """Tickets."""


class Demotions:
    """Sans-IO but for the tickets that it gives the medium."""

    def __init__(
        self,
        hot: BlockStore,
        cold: ColdTier,
        address: int,
        limit: TokenBucket,
        figures: TierFigures,
    ) -> None:
        """``address`` is where the memory of the hot store's slots begins; ``limit`` is for what
        leaves memory, not for what somebody waits for."""
        self._limit = limit
        self._hot = hot
        self._cold = cold
        self._address = address
        self._figures = figures
        self._reserve = reserve_blocks(hot.capacity_blocks)
        self._tickets: dict[int, _Copying] = {}
        self._copying_of: dict[bytes, _Copying] = {}

    @property
    def under_way(self) -> int:
        """Blocks that are being written and leave memory then."""
        return sum(len(copying.keys) for copying in self._tickets.values() if copying.evicts)

    def is_due(self, now: int) -> bool:
        """Whether more blocks should leave memory than do already."""
        return self._is_short() and self._limit.is_open(now)

    def _is_short(self) -> bool:
        under_way = self.under_way
        is_short = self._hot.free_blocks + under_way < self._reserve
        return is_short and under_way < _MOST_UNDER_WAY

    def next_step_in_ns(self) -> int | None:
        """When the limit lets blocks leave that should; None where it holds none back."""
        wait_ns = self._limit.opens_in_ns()
        return wait_ns if wait_ns and self._is_short() else None

    def begin(self) -> bool:
        """Choose what leaves next and begin to write it; False when nothing can."""
        leaving = choose_leaving(self._hot.arrays, min(_BATCH, self._reserve))
        if len(leaving.slots) == 0:
            return False
        keys = leaving.keys.view(np.uint8).reshape(-1, KEY_BYTES)
        known = self._cold.store.exist(keys) == KeyStatus.OK
        self._drop(leaving, known)
        new = ~known
        cold_slots = self._cold.reserve(keys[new], leaving.lengths[new])
        fits = np.flatnonzero(new)[cold_slots >= 0]
        unfit = np.flatnonzero(new)[cold_slots < 0]
        self._figures.dropped += len(unfit)
        self._drop(leaving, unfit)
        if len(fits):
            self._limit.take(int(leaving.lengths[fits].sum()))
            self._write(leaving, fits, cold_slots[cold_slots >= 0].tolist(), evicts=True)
        return True

    def keep(self, keys: KeyArray, tell: Callable[[], None]) -> None:
        """Have blocks copied that have no copy yet; ``tell()`` once all are written that can be."""
        keeper = _Keeper(tell)
        waited_for: set[int] = set()
        uncopied = []
        for row in np.flatnonzero(self._cold.store.exist(keys) != KeyStatus.OK).tolist():
            copying = self._copying_of.get(keys[row].tobytes())
            if copying is None:
                uncopied.append(row)
            elif id(copying) not in waited_for:
                waited_for.add(id(copying))
                # It may be of a block that was deleted meanwhile, and stored anew.
                keeper.tell = partial(self.keep, keys, tell)
                self._wait_for(copying, keeper)
        if uncopied:
            begun = self._copy(np.unique(keys[uncopied], axis=0))
            if begun is not None:
                self._wait_for(begun, keeper)
        if keeper.missing == 0:
            tell()

    def after_copies(self, keys: KeyArray, tell: Callable[[], None]) -> None:
        """``tell()`` once no copy of these blocks is under way that has begun by now."""
        keeper = _Keeper(tell)
        found = (self._copying_of.get(row.tobytes()) for row in keys)
        for copying in {id(each): each for each in found if each is not None}.values():
            self._wait_for(copying, keeper)
        if keeper.missing == 0:
            tell()

    def _wait_for(self, copying: _Copying, keeper: _Keeper) -> None:
        copying.keepers.append(keeper)
        keeper.missing += 1

    def _copy(self, keys: KeyArray) -> _Copying | None:
        """Begin to copy blocks that stay in memory; ``None`` when there are none, or no room."""
        found = hold(self._hot.arrays, key_words(keys))
        slots = found[found >= 0]
        there = describe(self._hot.arrays, slots)
        cold_slots = self._cold.reserve(keys[found >= 0], there.lengths)
        fits, unfit = np.flatnonzero(cold_slots >= 0), np.flatnonzero(cold_slots < 0)
        let_go(self._hot.arrays, slots[unfit], there.generations[unfit], False)
        if not len(fits):
            return None
        return self._write(there, fits, cold_slots[fits].tolist(), evicts=False)

    def _drop(self, leaving: Leaving, which: np.ndarray[tuple[int], np.dtype[np.generic]]) -> None:
        """Evict some of them without a copy, as others have one or there is no room."""
        let_go(self._hot.arrays, leaving.slots[which], leaving.generations[which], True)

    def _write(
        self,
        leaving: Leaving,
        rows: np.ndarray[tuple[int], np.dtype[np.intp]],
        cold_slots: list[int],
        *,
        evicts: bool,
    ) -> _Copying:
        copying = _Copying(
            slots=leaving.slots[rows],
            generations=leaving.generations[rows],
            cold_slots=cold_slots,
            keys=[leaving.keys[row].tobytes() for row in rows],
            lengths=leaving.lengths[rows].tolist(),
            checksums=leaving.checksums[rows].tolist(),
            evicts=evicts,
        )
        offsets = self._hot.slot_offset(copying.slots).tolist()
        records = [
            Record(key, self._address + offset, length, checksum)
            for key, offset, length, checksum in zip(
                copying.keys, offsets, copying.lengths, copying.checksums, strict=True
            )
        ]
        self._tickets[self._cold.write(records, durable=True)] = copying
        self._copying_of.update(dict.fromkeys(copying.keys, copying))
        return copying

    def finish(self, done: Completion, now: int) -> bool:
        """Let go of what was written; whether the ticket was one of these."""
        copying = self._tickets.pop(done.ticket, None)
        if copying is None:
            return False
        # Deleted meanwhile, a block is not to come back.
        present = are_there(self._hot.arrays, copying.slots, copying.generations)
        useless = []
        for row, location in enumerate(self._cold.written(done)):
            was_written = done.statuses[row] is ItemStatus.OK
            if was_written and present[row]:
                self._cold.publish(copying.cold_slots[row], location, copying.checksums[row], now)
                self._figures.demoted += 1
                self._figures.demoted_bytes += copying.lengths[row]
                continue
            self._cold.abort(copying.cold_slots[row])
            if was_written:
                useless.append(location)
            elif copying.evicts:
                self._figures.dropped += 1
        self._cold.removals.begin(useless)
        let_go(self._hot.arrays, copying.slots, copying.generations, copying.evicts)
        self._tell_keepers(copying)
        return True

    def _tell_keepers(self, copying: _Copying) -> None:
        for key in copying.keys:
            del self._copying_of[key]
        for keeper in copying.keepers:
            keeper.missing -= 1
            if keeper.missing == 0:
                keeper.tell()
