"""A segment file: whole reads and writes of pages at an offset, past the page cache or not."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dpu_agent.segments.layout import PAGE_BYTES

Transfer = Callable[[int, Sequence[Any], int], int]
"""``os.preadv`` or ``os.pwritev``."""


class SegmentFile(Protocol):
    """What the log asks of a file. Offsets and lengths are whole pages, buffers page-aligned."""

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill all buffers from ``offset`` on; ``OSError`` where that much is not there."""

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Write all buffers from ``offset`` on, or ``OSError``."""

    def sync(self) -> None:
        """All that was written is on stable storage when this returns (fdatasync)."""

    def nbytes(self) -> int:
        """Length of the file."""

    def close(self) -> None:
        """Give the descriptor back."""


def memory_at(address: int, nbytes: int) -> memoryview:
    """Memory by address, for a system call; it is the caller's, and stays so."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def aligned_buffer(nbytes: int) -> memoryview:
    """Zeroed memory of our own that begins at a page."""
    return memoryview(mmap.mmap(-1, max(nbytes, PAGE_BYTES)))[:nbytes]


def transfer_all(transfer: Transfer, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Move all buffers, however short each system call stops.

    What stops inside a page goes on at its begin: O_DIRECT takes whole pages only.
    """
    left = [buffer for buffer in buffers if len(buffer)]
    while left:
        moved = transfer(fd, left, offset)
        wanted = sum(map(len, left))
        if moved <= 0:
            raise OSError(errno.EIO, f"{wanted} bytes at {offset} cannot be moved: the file ends")
        if moved < wanted:
            moved -= moved % PAGE_BYTES
            if not moved:
                raise OSError(errno.EIO, f"less than a page moved at {offset}")
        offset += moved
        left = _after(left, moved)


def _after(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """What is left of the buffers behind ``nbytes``."""
    for index, buffer in enumerate(buffers):
        if nbytes < len(buffer):
            return [buffer[nbytes:], *buffers[index + 1 :]]
        nbytes -= len(buffer)
    return []


class DescriptorFile:
    """A segment file on a descriptor, which it owns."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """One preadv, or as many as it takes."""
        transfer_all(os.preadv, self._fd, buffers, offset)

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        """One pwritev, or as many as it takes."""
        transfer_all(os.pwritev, self._fd, buffers, offset)

    def sync(self) -> None:
        """fdatasync."""
        os.fdatasync(self._fd)

    def nbytes(self) -> int:
        """By fstat."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
