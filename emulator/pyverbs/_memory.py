"""Buffers that memory regions allocate for themselves."""

from __future__ import annotations

from emulator.pyverbs import mem_alloc
from emulator.pyverbs.pyverbs_error import PyverbsError

HUGE_PAGE_BYTES = 0x200000


class Buffer:
    """Zeroed memory of its own pages, unmapped when nobody refers to it any more."""

    def __init__(self, length: int, *, huge_pages: bool = False) -> None:
        flags = mem_alloc.MAP_PRIVATE_ | mem_alloc.MAP_ANONYMOUS_
        self.addr = 0
        self._nbytes = length
        if huge_pages:
            flags |= mem_alloc.MAP_HUGETLB_
            self._nbytes = -(-length // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        try:
            self.addr = mem_alloc.mmap(length=self._nbytes, flags=flags, fd=-1)
        except MemoryError as error:
            raise PyverbsError(f"Failed to allocate MR buffer of size {length}") from error

    def __del__(self) -> None:
        if self.addr:
            mem_alloc.munmap(self.addr, self._nbytes)
