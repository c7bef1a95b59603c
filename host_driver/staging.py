"""Registered memory through which the blocks of buffers that are not registered are copied."""

from __future__ import annotations

from bisect import bisect_left, insort

from host_driver.memory import Region

ALIGNMENT_BYTES = 64
"""Pieces start on cache lines."""


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Staging:
    """First-fit allocator over one region.

    There are never more pieces than commands in flight, so lists are short.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.capacity_bytes = region.length // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._gaps: list[tuple[int, int]] = [(0, self.capacity_bytes)]
        """(offset, bytes), ordered, never adjacent."""
        self._pieces: dict[int, int] = {}
        """Offset -> bytes."""

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        return sum(self._pieces.values())

    def allocate(self, nbytes: int) -> int | None:
        """Address of ``nbytes`` of room, or None while others hold it."""
        wanted = aligned(nbytes)
        for index, (offset, size) in enumerate(self._gaps):
            if size >= wanted:
                rest = [(offset + wanted, size - wanted)] if size > wanted else []
                self._gaps[index : index + 1] = rest
                self._pieces[offset] = wanted
                return self.region.addr + offset
        return None

    def release(self, addr: int) -> None:
        """Give back what ``allocate`` returned."""
        offset = addr - self.region.addr
        size = self._pieces.pop(offset)
        index = bisect_left(self._gaps, (offset, 0))
        if index < len(self._gaps) and self._gaps[index][0] == offset + size:
            size += self._gaps.pop(index)[1]
        if index and sum(self._gaps[index - 1]) == offset:
            offset, previous = self._gaps.pop(index - 1)
            size += previous
        insort(self._gaps, (offset, size))
