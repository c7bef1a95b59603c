"""Memory that processes share: sealed memfds, and mappings of them.

A peer's file is mapped only when it is sealed against shrinking, so that no later truncation
by the peer can kill this process (SIGBUS); its size is taken once, from the file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import CapacityError, ProtocolError, VerbsError

_STATUS_BLOCK_BYTES = 512
"""Of ``st_blocks`` in stat(2)."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10  # fcntl has no name for it
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
HUGE_PAGE_BYTES = 2 << 20
_POPULATE_UP_TO_BYTES = 1 << 30
"""Above this, pages come as they are touched: nobody waits for many seconds, or for memory that
is never used."""
_IN_HUGE_PAGES = os.MFD_HUGETLB | os.MFD_HUGE_2MB
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a system, that has as many open as it may."""
_NAME = "kvlane-memory"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """A range of this process's addresses, until ``close``.

    What holds a huge page begins where one can: the system may then use them, if it has any.
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool = True) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        is_large = nbytes >= HUGE_PAGE_BYTES
        wish = _free_huge_pages(nbytes) if is_large else 0
        self.address = _mmap(wish, nbytes, protection, mmap.MAP_SHARED, fd)
        self.nbytes = nbytes
        if is_large:
            _libc.madvise(self.address, nbytes, _MADV_HUGEPAGE)

    def populate(self) -> bool:
        """Have all pages there, so that no transfer waits for them.

        False when there are not enough: a touch would be killed for it. Linux before 5.14 cannot
        do this; pages come as they are touched there.
        """
        if self.nbytes > _POPULATE_UP_TO_BYTES:
            return True
        failed = _libc.madvise(self.address, self.nbytes, _MADV_POPULATE_WRITE) != 0
        return not failed or ctypes.get_errno() == errno.EINVAL

    def words(self) -> NDArray[np.int64]:
        """All of it as 64-bit integers; valid until ``close``."""
        memory: Any = (ctypes.c_int64 * (self.nbytes // 8)).from_address(self.address)
        return np.frombuffer(memory, np.int64)

    def close(self) -> None:
        """Unmap."""
        if self.nbytes:
            _libc.munmap(self.address, self.nbytes)
            self.nbytes = 0


def _whole(nbytes: int, page_bytes: int) -> int:
    return -(-nbytes // page_bytes) * page_bytes


def _mmap(wish: int, nbytes: int, protection: int, flags: int, fd: int) -> int:
    address = _libc.mmap(wish or None, nbytes, protection, flags, fd, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), f"cannot map {nbytes} bytes")
    return int(address)


def _free_huge_pages(nbytes: int) -> int:
    """Where so many bytes are free from the beginning of a huge page on, unless another thread
    takes them."""
    room = nbytes + HUGE_PAGE_BYTES
    start = _mmap(0, room, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    _libc.munmap(start, room)
    return _whole(start, HUGE_PAGE_BYTES)


class SharedFile:
    """A sealed memfd of this process, mapped."""

    def __init__(
        self, name: str, nbytes: int, *, peers_only_read: bool = False, in_huge_pages: bool = False
    ) -> None:
        """``nbytes`` are whole pages, of the size that is asked for; ``OSError`` without them."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.fd = os.memfd_create(name, flags | (_IN_HUGE_PAGES if in_huge_pages else 0))
        try:
            os.ftruncate(self.fd, nbytes)
            self.mapping = Mapping(self.fd, nbytes)
            seals = _SEALS | (_SEAL_FUTURE_WRITE if peers_only_read else 0)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        except OSError:
            mapping = getattr(self, "mapping", None)
            if mapping is not None:
                mapping.close()
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Unmap and forget; peers that have it mapped keep theirs."""
        self.mapping.close()
        self.close_file()

    def close_file(self) -> None:
        """Forget the file, and leave the memory mapped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def shared_memory(nbytes: int) -> SharedFile:
    """Zeroed memory that peers may map, in huge pages where the system has them.

    Its pages are there at once. ``VerbsError`` when there is no memory, ``CapacityError`` when
    there are no descriptors.
    """
    try:
        shared = _in_reserved_huge_pages(nbytes)
        if shared is None:
            shared = SharedFile(_NAME, _whole(max(nbytes, 1), mmap.PAGESIZE))
            if not shared.mapping.populate():
                shared.close()
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise CapacityError(
                f"cannot allocate {nbytes} bytes: each allocation holds a descriptor, and there "
                f"are none left; raise the limit (ulimit -n), or allocate fewer and larger ones"
            ) from error
        raise VerbsError(f"cannot allocate {nbytes} bytes: {error.strerror}") from error
    return shared


def _in_reserved_huge_pages(nbytes: int) -> SharedFile | None:
    """Memory out of the pool of huge pages (``vm.nr_hugepages``); ``None`` when that has none."""
    if nbytes < HUGE_PAGE_BYTES:
        return None
    try:
        shared = SharedFile(_NAME, _whole(nbytes, HUGE_PAGE_BYTES), in_huge_pages=True)
    except OSError:
        return None
    if not shared.mapping.populate():  # of a limited pool, the rest would be missed at a touch
        shared.close()
        return None
    return shared


def map_of_peer(fd: int, nbytes: int | None = None, *, writable: bool = True) -> Mapping:
    """Map a file that a peer has sent, of exactly ``nbytes`` if they are given.

    ``ProtocolError`` unless it is sealed and has that size.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        status = os.fstat(fd)
        size = status.st_size
        if seals & _SEALS != _SEALS or size == 0 or (nbytes is not None and size != nbytes):
            raise ProtocolError(f"a peer's shared memory is not sealed, or has {size} bytes")
        mapping = Mapping(fd, size, writable=writable)
        # Only what the peer has paid for: pages that are not there yet would be charged to us.
        if nbytes is None and status.st_blocks * _STATUS_BLOCK_BYTES >= size:
            mapping.populate()
        return mapping
    except OSError as error:
        raise ProtocolError(f"a peer's shared memory cannot be used: {error}") from error
