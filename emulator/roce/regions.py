"""Memory regions and windows of a NIC."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.roce.state import MR, MR_REGION, MR_WINDOW_1, MR_WINDOW_2
from kvlane.errors import CapacityError, VerbsError
from kvlane.seams import Rng
from kvlane.verbs.enums import AccessFlags, MwType
from kvlane.verbs.records import new_records

_REMOTE_WRITERS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC


class RegionTable:
    """Keys, and what they open. A key's lower 8 bits change with every use of its entry."""

    def __init__(self, capacity: int, rng: Rng) -> None:
        self.table = new_records(MR, capacity)
        self._tags = np.zeros(capacity, np.uint8)
        self._owners: dict[int, Any] = {}
        """What the addresses belong to, kept alive while it is registered."""
        self._rng = rng

    def register(
        self, addr: int, length: int, access: int, pd: int, owner: Any, iova: int | None = None
    ) -> int:
        """Register ``length`` bytes at ``addr``; return the key, lkey and rkey in one.

        ``iova`` is the address by which peers and work requests name the first byte.
        """
        _require_sensible(access)
        key = self._new_key(MR_REGION, pd)
        mr = self.table[key >> 8]
        mr.host_addr = addr
        mr.addr = _first_address(access, addr if iova is None else iova)
        mr.length = length
        mr.access = int(access)
        mr.key = key
        self._owners[key] = owner
        return key

    def deregister(self, key: int) -> None:
        """Forget a region: its key opens nothing from now on."""
        self._entry(key, "region").key = 0
        self._close_windows(key)
        self._owners.pop(key, None)

    def change(
        self,
        key: int,
        *,
        access: int | None = None,
        pd: int | None = None,
        memory: tuple[int, int, Any] | None = None,
    ) -> None:
        """Change parts of a region in place (``ibv_rereg_mr``); the key stays.

        ``memory`` is address, length and owner. Addresses count from nought for as long as
        the access says so: a change of access that adds or drops that renames them.
        """
        mr = self._entry(key, "region")
        if access is not None:
            _require_sensible(access)
            if (int(mr.access) ^ access) & AccessFlags.ZERO_BASED:
                mr.addr = _first_address(access, int(mr.host_addr))
            mr.access = int(access)
        if pd is not None:
            mr.pd = pd
        if memory is not None:
            addr, length, owner = memory
            mr.host_addr = addr
            mr.addr = _first_address(int(mr.access), addr)
            mr.length = length
            self._owners[key] = owner
            self._close_windows(key)

    def _close_windows(self, key: int) -> None:
        """A window opens memory of its region: with that gone it must open nothing."""
        bound = self.table.region == key
        for field in ("access", "length", "region"):
            self.table[field][bound] = 0

    def alloc_window(self, pd: int, kind: MwType) -> int:
        """A window that is bound to nothing; return its key."""
        key = self._new_key(MR_WINDOW_1 if kind == MwType.TYPE_1 else MR_WINDOW_2, pd)
        self.table[key >> 8].key = key
        return key

    def dealloc_window(self, key: int) -> None:
        """Free a window by its key at allocation or any later one; its index is what counts."""
        index = key >> 8
        if not 0 < index < len(self.table) or self.table[index].kind == MR_REGION:
            raise VerbsError(f"0x{key:x} is no memory window")
        self.table[index].key = 0

    def current_key(self, key: int) -> int:
        """The key that the window of this (earlier) key has now."""
        return int(self.table[key >> 8].key)

    def _entry(self, key: int, what: str) -> Any:
        index = key >> 8
        if not 0 < index < len(self.table) or self.table[index].key != key:
            raise VerbsError(f"0x{key:x} is the key of no {what}")
        return self.table[index]

    def _new_key(self, kind: int, pd: int) -> int:
        free = np.flatnonzero(self.table.key[1:] == 0)
        if not len(free):
            raise CapacityError(
                f"all {len(self.table) - 1} memory regions are in use; "
                "register few large buffers instead of many small ones"
            )
        index = int(free[0]) + 1
        # Never the tag that this entry had last: its old key must open nothing.
        tag = (int(self._tags[index]) + self._rng.randrange(1, 256)) & 0xFF
        self._tags[index] = tag
        self.table[index] = np.zeros((), MR)
        self.table[index].kind = kind
        self.table[index].pd = pd
        return (index << 8) | tag


def _first_address(access: int, addr: int) -> int:
    """How peers and work requests name the first byte."""
    return 0 if access & AccessFlags.ZERO_BASED else addr


def _require_sensible(access: int) -> None:
    """Remote write and atomic need local write (IBTA 1.7 section 11.2.8.2), and memory of a
    process persists nowhere."""
    if access & AccessFlags.FLUSH_PERSISTENT:
        raise VerbsError("no memory here outlasts its process; FLUSH_GLOBAL is what there is")
    if access & _REMOTE_WRITERS and not access & AccessFlags.LOCAL_WRITE:
        raise VerbsError("remote write or atomic access needs local write access besides")
