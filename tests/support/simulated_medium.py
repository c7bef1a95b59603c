"""A medium in memory that does what it was asked when it is told to, in any order, or fails."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from dpu_agent.segments.locations import NOWHERE
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record

Result = tuple[ItemStatus, int, int]
"""Status, location and length of an item."""


class SimulatedMedium:
    """Blocks by location. Nothing is done before ``perform``."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[bytes, bytes, int]] = {}
        """Key, bytes and checksum at each location."""
        self.pending: list[tuple[int, Any]] = []
        self.fails = False
        """Whether writes and reads do."""
        self.delete_fails_with: ItemStatus | None = None
        self.removed: list[tuple[int, bool]] = []
        self._moves: list[tuple[int, int]] = []
        self._done: list[Completion] = []
        self._tickets = 0
        self._locations = 100

    def append(self, records: Sequence[Record], *, durable: bool) -> int:
        return self._ask([partial(self._write, record) for record in records])

    def read(self, reads: Sequence[Read]) -> int:
        return self._ask([partial(self._read, read) for read in reads])

    def delete(self, locations: Sequence[int], *, durable: bool) -> int:
        self.removed += [(location, durable) for location in locations]
        return self._ask([partial(self._delete, location) for location in locations])

    def poll(self) -> Sequence[Completion]:
        done, self._done = self._done, []
        return done

    def moved(self) -> Sequence[tuple[int, int]]:
        moves, self._moves = self._moves, []
        return moves

    def move_all(self) -> None:
        """As compaction does."""
        for location in list(self.blocks):
            self._locations += 1
            self.blocks[self._locations] = self.blocks.pop(location)
            self._moves.append((location, self._locations))

    def _ask(self, items: Sequence[Any]) -> int:
        self._tickets += 1
        self.pending.append((self._tickets, items))
        return self._tickets

    def perform(self, position: int = 0) -> None:
        """Do one of the things that were asked for."""
        ticket, items = self.pending.pop(position)
        results: list[Result] = [item() for item in items]
        statuses, locations, lengths = zip(*results, strict=True)
        self._done.append(Completion(ticket, statuses, locations, lengths))

    def perform_part(self, count: int, position: int = 0) -> None:
        """Do only the first items of something that was asked for."""
        ticket, items = self.pending[position]
        done = [item() for item in items[:count]]
        ended = [partial(_as_it_was, result) for result in done]
        self.pending[position] = (ticket, [*ended, *items[count:]])

    def perform_all(self) -> None:
        """Do all, in order."""
        while self.pending:
            self.perform()

    def _write(self, record: Record) -> Result:
        if self.fails:
            return ItemStatus.IO_ERROR, NOWHERE, 0
        self._locations += 1
        content = ctypes.string_at(record.address, record.length)
        self.blocks[self._locations] = (record.key, content, record.checksum)
        return ItemStatus.OK, self._locations, record.length

    def _read(self, read: Read) -> Result:
        if self.fails:
            return ItemStatus.IO_ERROR, NOWHERE, 0
        if read.location not in self.blocks:
            return ItemStatus.NOT_FOUND, NOWHERE, 0
        _, content, checksum = self.blocks[read.location]
        ctypes.memmove(read.address, content, min(len(content), read.capacity))
        is_right = zlib.crc32(content) == checksum
        status = ItemStatus.OK if is_right else ItemStatus.BAD_CHECKSUM
        return status, read.location, len(content)

    def _delete(self, location: int) -> Result:
        if self.delete_fails_with is not None:
            return self.delete_fails_with, NOWHERE, 0
        self.blocks.pop(location, None)
        return ItemStatus.OK, location, 0


def _as_it_was(result: Result) -> Result:
    return result
