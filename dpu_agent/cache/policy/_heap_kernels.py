"""A binary heap of slots by a pair of numbers, the least first; each slot knows its place.

Where the least is pinned, the search for the least of the others goes below pinned slots only: it
costs in proportion to these, whatever the size of the heap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy.base import NO_VICTIM
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

_HEAP = np.dtype([("entries", "i8"), ("places", "i8"), ("filled", "i8")])
_ENTRY = np.dtype([("major", "i8"), ("minor", "i8"), ("slot", "i8")])
"""In the order of the heap, the numbers beside the slot: comparing looks nowhere else."""
_PLACE = np.dtype([("place", "i4")])
_heap_at = record_accessor(_HEAP)
_entry_at = record_accessor(_ENTRY)
_place_at = record_accessor(_PLACE)


class SlotHeap:
    """Room for all slots."""

    def __init__(self, capacity_blocks: int) -> None:
        self._entries = np.zeros(capacity_blocks, _ENTRY)
        self._places = np.zeros(capacity_blocks, _PLACE)
        self._heap = np.zeros(1, _HEAP)
        self._heap[0] = (self._entries.ctypes.data, self._places.ctypes.data, 0)
        self.address = int(self._heap.ctypes.data)

    def ordered(self) -> NDArray[np.int64]:
        """All slots in it, the least first."""
        entries = self._entries[: self._heap["filled"][0]]
        order = np.lexsort((entries["minor"], entries["major"]))
        slots: NDArray[np.int64] = entries["slot"][order]
        return slots


@kernel
def _is_less(entries: int, place: int, major: int, minor: int) -> bool:
    """Whether the entry at a place goes before a rank."""
    entry = _entry_at(entries, place)
    return bool(entry.major < major or (entry.major == major and entry.minor < minor))


@kernel
def _put(heap: int, place: int, slot: int, major: int, minor: int) -> None:
    state = _heap_at(heap, 0)
    entry = _entry_at(state.entries, place)
    entry.slot = slot
    entry.major = major
    entry.minor = minor
    _place_at(state.places, slot).place = place


@kernel
def _copy(heap: int, target: int, source: int) -> None:
    entry = _entry_at(_heap_at(heap, 0).entries, source)
    _put(heap, target, np.int64(entry.slot), np.int64(entry.major), np.int64(entry.minor))


@kernel
def _rise(heap: int, place: int, major: int, minor: int) -> int:
    """Move the gap at a place up to where a rank belongs."""
    entries = np.int64(_heap_at(heap, 0).entries)
    while place > 0 and not _is_less(entries, (place - 1) >> 1, major, minor):
        _copy(heap, place, (place - 1) >> 1)
        place = (place - 1) >> 1
    return place


@kernel
def _lesser_child(heap: int, place: int) -> int:
    """The place of the lesser of those below, or beyond the size where there are none."""
    state = _heap_at(heap, 0)
    child = 2 * place + 1
    if child + 1 < state.filled:
        first = _entry_at(state.entries, child)
        if _is_less(state.entries, child + 1, np.int64(first.major), np.int64(first.minor)):
            child += 1
    return child


@kernel
def _sink(heap: int, place: int, major: int, minor: int) -> int:
    """Move the gap at a place down to where a rank belongs."""
    state = _heap_at(heap, 0)
    child = _lesser_child(heap, place)
    while child < state.filled and _is_less(state.entries, child, major, minor):
        _copy(heap, place, child)
        place = child
        child = _lesser_child(heap, place)
    return place


@kernel
def _sink_through(heap: int, place: int) -> int:
    """Move the gap at a place down to the end: one comparison a level instead of two."""
    size = np.int64(_heap_at(heap, 0).filled)
    child = _lesser_child(heap, place)
    while child < size:
        _copy(heap, place, child)
        place = child
        child = _lesser_child(heap, place)
    return place


@kernel
def push(heap: int, slot: int, major: int, minor: int) -> None:
    """Add a slot that is not there."""
    state = _heap_at(heap, 0)
    state.filled += 1
    _put(heap, _rise(heap, state.filled - 1, major, minor), slot, major, minor)


@kernel
def major_of(heap: int, slot: int) -> int:
    """The first number of a slot."""
    state = _heap_at(heap, 0)
    place = np.int64(_place_at(state.places, slot).place)
    return int(np.int64(_entry_at(state.entries, place).major))


@kernel
def change(heap: int, slot: int, major: int, minor: int) -> None:
    """Give a slot that is there another rank."""
    place = np.int64(_place_at(_heap_at(heap, 0).places, slot).place)
    place = _sink(heap, _rise(heap, place, major, minor), major, minor)
    _put(heap, place, slot, major, minor)


@kernel
def discard(heap: int, slot: int) -> None:
    """Take a slot out."""
    state = _heap_at(heap, 0)
    place = np.int64(_place_at(state.places, slot).place)
    state.filled -= 1
    if place == state.filled:
        return
    last = _entry_at(state.entries, state.filled)
    major, minor = np.int64(last.major), np.int64(last.minor)
    # What was last belongs near the end of any path, so it is sought from there.
    place = _rise(heap, _sink_through(heap, place), major, minor)
    _put(heap, place, np.int64(last.slot), major, minor)


@kernel
def _beside(place: int) -> int:
    """The next place, depth first, that is not below this one; 0 when there is none."""
    while place > 0 and place & 1 == 0:
        place = (place - 1) >> 1
    return place + 1 if place > 0 else 0


@kernel
def least_unpinned(heap: int, slot_table: int) -> int:
    """The slot of least rank without a pin, or ``NO_VICTIM``."""
    state = _heap_at(heap, 0)
    least = np.int64(NO_VICTIM)
    major, minor = np.int64(0), np.int64(0)
    place = 0
    while True:
        if place < state.filled:
            entry = _entry_at(state.entries, place)
            # Nothing below a slot has a lesser rank, so beneath one that may go lies no better.
            if is_pinned_at(slot_table, np.int64(entry.slot)):
                place = 2 * place + 1
                continue
            if least == NO_VICTIM or _is_less(state.entries, place, major, minor):
                least = np.int64(entry.slot)
                major, minor = np.int64(entry.major), np.int64(entry.minor)
        place = _beside(place)
        if place == 0:
            return int(least)
