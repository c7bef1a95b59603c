"""Memory of the process's own for a NIC to work on."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 << 20


def anonymous_memory(nbytes: int) -> NDArray[np.uint8]:
    """Page-aligned zeroed memory; in huge pages, where there are any, if it fills one.

    A NIC goes through blocks from end to end: with small pages every 4 KiB costs a walk through
    the page tables, since the kernel's work in between has taken the TLB.
    """
    if nbytes < HUGE_PAGE_BYTES:
        return np.frombuffer(_private(max(nbytes, 1)), np.uint8)[:nbytes]
    # Room to begin where a huge page can; what is not touched costs no memory.
    area = _private(nbytes + HUGE_PAGE_BYTES)
    with suppress(OSError):  # a kernel without them
        area.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(area, np.uint8)
    start = -int(memory.ctypes.data) % HUGE_PAGE_BYTES
    return memory[start : start + nbytes]


def _private(nbytes: int) -> mmap.mmap:
    """Not shared, as ``mmap`` makes it by itself: shared memory has huge pages of its own rules,
    and a forked child would write into what the parent has registered."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
