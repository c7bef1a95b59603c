"""Memory of a device: what it allocates for sharing, and the board that tells peers the keys."""

from __future__ import annotations

import bisect
import ctypes
import secrets
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.driving._sleep_kernels import store_word
from emulator.nic import registrable
from emulator.pcie.layout import (
    BOARD_BYTES,
    BOARD_MAGIC,
    BOARD_REGIONS,
    MAP_CAPACITY,
    NO_MAP,
    REGION,
    REGION_CAPACITY,
    REGION_INDEX_MASK,
)
from emulator.pcie.mapping import SharedFile, shared_memory
from kvlane.errors import CapacityError, VerbsError
from kvlane.verbs.enums import AccessFlags

REMOTE = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
_INDEX_BITS = REGION_INDEX_MASK.bit_length()
_TAG_BITS = 15


def require_registrable(buffer: NDArray[np.uint8], access: AccessFlags) -> None:
    """``VerbsError`` unless this memory can be registered for this, on this link."""
    registrable.require_registrable(buffer, access)
    if access & (AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC) and not (
        access & AccessFlags.LOCAL_WRITE
    ):
        raise VerbsError("remote write or atomic access needs local write as well")


class Allocation:
    """Memory that this device has allocated, and peers may map."""

    def __init__(self, shared: SharedFile, map_id: int) -> None:
        self.shared = shared
        self.map_id = map_id
        self.announced = False
        """Whether peers are told of it: only when they may reach it."""

    @property
    def start(self) -> int:
        """Its first address."""
        return self.shared.mapping.address

    def offset_of(self, addr: int, length: int) -> int | None:
        """Where a range lies in it; ``None`` when it is not inside."""
        offset = addr - self.start
        inside = 0 <= offset <= self.shared.mapping.nbytes - length
        return offset if inside else None


class Allocations:
    """All that is allocated and not yet freed by the garbage collector."""

    def __init__(self) -> None:
        self._by_start: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self._free_ids = deque(range(MAP_CAPACITY))
        self._collected: deque[int] = deque()
        self._closed = False

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed pages; they are freed after the last array over them is gone."""
        if not self._free_ids:
            raise CapacityError(
                f"{MAP_CAPACITY} allocations are in use; allocate fewer and larger ones"
            )
        shared = shared_memory(nbytes)
        allocation = Allocation(shared, self._free_ids.popleft())
        bisect.insort(self._starts, allocation.start)
        self._by_start[allocation.start] = allocation
        carrier: Any = (ctypes.c_uint8 * max(nbytes, 1)).from_address(allocation.start)
        weakref.finalize(carrier, self._note_collected, allocation.start).atexit = False
        return np.frombuffer(carrier, np.uint8)[:nbytes]

    def _note_collected(self, start: int) -> None:
        """A finaliser runs in any thread at any time: it only leaves a note, unless nobody is
        there any more to read it."""
        if self._closed:
            self._by_start.pop(start).shared.mapping.close()
        else:
            self._collected.append(start)

    def find(self, addr: int, length: int) -> tuple[Allocation, int] | None:
        """The allocation that holds a range, and where in it."""
        index = bisect.bisect_right(self._starts, addr) - 1
        if index < 0:
            return None
        allocation = self._by_start[self._starts[index]]
        offset = allocation.offset_of(addr, length)
        return None if offset is None else (allocation, offset)

    def announced(self) -> list[Allocation]:
        """Those that peers are told of."""
        return [a for a in self._by_start.values() if a.announced]

    def sweep(self) -> list[int]:
        """Free what was collected; ids of those that peers have mapped."""
        told: list[int] = []
        while self._collected:
            start = self._collected.popleft()
            allocation = self._by_start.pop(start)
            self._starts.remove(start)
            allocation.shared.close()
            self._free_ids.append(allocation.map_id)
            if allocation.announced:
                told.append(allocation.map_id)
        return told

    def close(self) -> None:
        """Nobody will map any of it: arrays stay as long as they are in use, descriptors go."""
        self._closed = True
        self.sweep()
        for allocation in list(self._by_start.values()):
            allocation.shared.close_file()

    def abandon(self) -> None:
        """In a child of the device's process: arrays stay mapped, and nothing else is kept."""
        for allocation in self._by_start.values():
            allocation.shared.close_file()
        self._by_start.clear()
        self._starts.clear()


class Board:
    """The keys of a device, in memory that peers read and only this process can write."""

    def __init__(self) -> None:
        self._shared = SharedFile("kvlane-board", BOARD_BYTES, peers_only_read=True)
        self.address = self._shared.mapping.address
        words = self._shared.mapping.words()
        words[0] = BOARD_MAGIC
        table = words[BOARD_REGIONS // 8 :].view(REGION)
        self._regions = table
        self._free = deque(range(1, REGION_CAPACITY))

    @property
    def fd(self) -> int:
        """The file, to hand to peers."""
        return self._shared.fd

    def add(self, addr: int, length: int, access: AccessFlags, place: tuple[int, int]) -> int:
        """Publish a region; its key. ``place`` is the map it lies in and where."""
        if not self._free:
            raise CapacityError(f"{REGION_CAPACITY - 1} regions are registered; close some")
        index = self._free.popleft()
        key = (1 + secrets.randbelow((1 << _TAG_BITS) - 1)) << _INDEX_BITS | index
        region = self._regions[index]
        region["addr"] = addr
        region["length"] = length
        region["access"] = int(access)
        region["map_id"], region["map_offset"] = place
        store_word(self._key_address(index), key)
        return key

    def revoke(self, key: int) -> None:
        """Take a key back. Who looks from now on finds nothing; others may still be copying."""
        store_word(self._key_address(key & REGION_INDEX_MASK), 0)

    def forget(self, key: int) -> None:
        """Nobody copies by a revoked key any more: its entry may be used again."""
        self._free.append(key & REGION_INDEX_MASK)

    def _key_address(self, index: int) -> int:
        return self.address + BOARD_REGIONS + index * REGION.itemsize

    def close(self) -> None:
        """Unmap."""
        self._shared.close()


NOWHERE = (NO_MAP, 0)
"""The place of a region in memory that is not shared."""
