"""Blocks on their way from a colder tier into memory, and the commands that await them.

A block is read straight into the slot that it will have, which is reserved meanwhile, so readers
see nothing of it until its checksum was found right. Several commands may await one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dpu_agent.cache._demotion_kernels import hold
from dpu_agent.cache.index import key_words
from dpu_agent.cache.store import BlockStore
from dpu_agent.segments.requests import Completion, ItemStatus, Read
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.figures import TierFigures
from kvlane.capsule import KeyArray, KeyStatus


@dataclass(slots=True)
class Wish:
    """Keys that somebody wants in memory."""

    keys: KeyArray
    tell: Callable[[Wish], None]
    """Called with the wish once all have come that will; the blocks stay in memory until
    ``Promotions.end``."""
    missing: int = 0
    pins: list[tuple[int, int]] = field(default_factory=list)
    """Slot and generation of what has come and is held."""


@dataclass(slots=True)
class _Reading:
    """A block that is being read."""

    key: bytes
    slot: int
    cold_slot: int
    cold_generation: int
    checksum: int
    length: int
    wishes: list[Wish]
    """Of a block that is read on a guess there are none, unless somebody wants it meanwhile."""
    is_guess: bool = False
    is_unwanted: bool = False
    """It was deleted meanwhile."""


class Promotions:
    """Sans-IO but for the tickets that it gives the medium."""

    def __init__(self, hot: BlockStore, cold: ColdTier, address: int, figures: TierFigures) -> None:
        """``address`` is where the memory of the hot store's slots begins."""
        self._hot = hot
        self._cold = cold
        self._address = address
        self._figures = figures
        self._readings: dict[bytes, _Reading] = {}
        self._tickets: dict[int, list[_Reading]] = {}

    def begin(self, wish: Wish, now: int) -> None:
        """Have the blocks of a wish brought into memory; those that cannot come are left out."""
        begun: list[_Reading] = []
        reads: list[Read] = []
        keys = dict.fromkeys(row.tobytes() for row in wish.keys)
        # What has come for another wish meanwhile stays, and makes no room for the rest of this.
        for key in [key for key in keys if not self._hold(wish, key)]:
            reading = self._readings.get(key)
            if reading is None:
                reading = self._reserve(key, now)
                if reading is None:
                    continue
                begun.append(reading)
                reads.append(self._read_of(reading))
            reading.wishes.append(wish)
            wish.missing += 1
        if begun:
            self._tickets[self._cold.read(reads)] = begun
        if wish.missing == 0:
            wish.tell(wish)

    @property
    def has_wishes(self) -> bool:
        """Whether anybody waits for a block."""
        return any(reading.wishes for reading in self._readings.values())

    @property
    def guesses_under_way(self) -> int:
        """Blocks that are being read on a guess."""
        return sum(reading.is_guess for reading in self._readings.values())

    def guess(self, key: bytes, now: int) -> int:
        """Have a block brought into memory that nobody has asked for; its length, or 0 where it
        cannot come, or is here or on its way."""
        if key in self._readings or self._hot.exist(_one_key(key))[0] == KeyStatus.OK:
            return 0
        reading = self._reserve(key, now)
        if reading is None:
            return 0
        reading.is_guess = True
        self._tickets[self._cold.read([self._read_of(reading)])] = [reading]
        return reading.length

    def _reserve(self, key: bytes, now: int) -> _Reading | None:
        """A slot in memory for a block that the colder tier has."""
        row = _one_key(key)
        cold_slot = int(self._cold.find(row, now)[0])
        if cold_slot < 0:
            return None
        generation, length = self._cold.generation(cold_slot), self._cold.length(cold_slot)
        slots, statuses = self._hot.reserve(row, np.array([length]))
        if statuses[0] != KeyStatus.OK:
            self._figures.no_room += int(statuses[0] == KeyStatus.NO_SPACE)
            self._cold.leave(cold_slot, generation)
            return None
        reading = _Reading(
            key=key,
            slot=int(slots[0]),
            cold_slot=cold_slot,
            cold_generation=generation,
            checksum=self._cold.checksum(cold_slot),
            length=length,
            wishes=[],
        )
        self._readings[key] = reading
        return reading

    def _read_of(self, reading: _Reading) -> Read:
        address = self._address + self._hot.slot_offset(reading.slot)
        return Read(self._cold.location(reading.cold_slot), address, reading.length)

    def finish(self, done: Completion, now: int) -> bool:
        """Take in what was read; whether the ticket was one of these."""
        readings = self._tickets.pop(done.ticket, None)
        if readings is None:
            return False
        for reading, status, length in zip(readings, done.statuses, done.lengths, strict=True):
            del self._readings[reading.key]
            was_read = status is ItemStatus.OK and length == reading.length
            self._take_in(reading, was_read, now)
        return True

    def _take_in(self, reading: _Reading, was_read: bool, now: int) -> None:
        slots = np.array([reading.slot])
        if was_read and not reading.is_unwanted:
            self._publish(reading, now)
            self._figures.promoted += 1
            self._figures.promoted_bytes += reading.length
        else:
            self._hot.abort(slots)
        self._cold.leave(reading.cold_slot, reading.cold_generation)
        if not was_read:
            self._forget_damaged(reading, now)
        for wish in reading.wishes:
            self._hold(wish, reading.key)
            wish.missing -= 1
            if wish.missing == 0:
                wish.tell(wish)

    def _publish(self, reading: _Reading, now: int) -> None:
        if reading.is_guess:
            self._hot.publish_guess(reading.slot, reading.checksum, now)
            self._figures.prefetched += 1
            self._figures.prefetched_bytes += reading.length
        else:
            checksums = np.array([reading.checksum], np.uint32)
            self._hot.publish(np.array([reading.slot]), checksums, now)

    def _forget_damaged(self, reading: _Reading, now: int) -> None:
        self._figures.damaged += 1
        self._cold.removals.begin(self._cold.delete(_one_key(reading.key), now))

    def _hold(self, wish: Wish, key: bytes) -> bool:
        """Keep a block in memory until the wish has ended; whether it is there."""
        slot = int(hold(self._hot.arrays, key_words(_one_key(key)))[0])
        if slot >= 0:
            wish.pins.append((slot, int(self._hot.generations(np.array([slot]))[0])))
        return slot >= 0

    def end(self, wish: Wish) -> None:
        """Whoever awaited the blocks has them."""
        if wish.pins:
            slots, generations = zip(*wish.pins, strict=True)
            self._hot.unpin(np.array(slots), np.array(generations, np.uint32))
            wish.pins.clear()

    def forget(self, key: bytes) -> None:
        """A block was deleted: what is being read of it is not to be seen."""
        reading = self._readings.get(key)
        if reading is not None:
            reading.is_unwanted = True


def _one_key(key: bytes) -> KeyArray:
    return np.frombuffer(key, np.uint8).reshape(1, len(key))
