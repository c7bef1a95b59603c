"""Memory that processes share: sealed memfds, and mappings of them.

A peer's file is mapped only when it is sealed against shrinking, so that no later truncation
by the peer can kill this process (SIGBUS); its size is taken once, from the file.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import ProtocolError, VerbsError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10  # fcntl has no name for it
_MAP_POPULATE = 0x8000
_MADV_HUGEPAGE = 14
_HUGE_PAGE_BYTES = 2 << 20
_POPULATE_UP_TO_BYTES = 1 << 30
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
    """A range of this process's addresses, until ``close``."""

    def __init__(
        self, fd: int, nbytes: int, *, writable: bool = True, populate: bool = False
    ) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | (_MAP_POPULATE if populate else 0)
        address = _libc.mmap(None, nbytes, protection, flags, fd, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"cannot map {nbytes} bytes")
        self.address = int(address)
        self.nbytes = nbytes

    def words(self) -> NDArray[np.int64]:
        """All of it as 64-bit integers; valid until ``close``."""
        memory: Any = (ctypes.c_int64 * (self.nbytes // 8)).from_address(self.address)
        return np.frombuffer(memory, np.int64)

    def close(self) -> None:
        """Unmap."""
        if self.nbytes:
            _libc.munmap(self.address, self.nbytes)
            self.nbytes = 0


class SharedFile:
    """A sealed memfd of this process, mapped."""

    def __init__(
        self, name: str, nbytes: int, *, peers_only_read: bool = False, in_huge_pages: bool = False
    ) -> None:
        """``nbytes`` are whole pages, of the size that is asked for; ``OSError`` without them."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.fd = os.memfd_create(name, flags | (os.MFD_HUGETLB if in_huge_pages else 0))
        try:
            os.ftruncate(self.fd, nbytes)
            self.mapping = Mapping(self.fd, nbytes)
            seals = _SEALS | (_SEAL_FUTURE_WRITE if peers_only_read else 0)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Unmap and forget; peers that have it mapped keep theirs."""
        if self.fd >= 0:
            self.mapping.close()
            os.close(self.fd)
            self.fd = -1


def _whole(nbytes: int, page_bytes: int) -> int:
    return -(-nbytes // page_bytes) * page_bytes


def shared_memory(nbytes: int) -> SharedFile:
    """Zeroed memory that peers may map, in huge pages where the system has them.

    ``VerbsError`` when there is none: out of memory, or of descriptors.
    """
    try:
        if nbytes >= _HUGE_PAGE_BYTES:
            try:
                return SharedFile(_NAME, _whole(nbytes, _HUGE_PAGE_BYTES), in_huge_pages=True)
            except OSError:
                pass  # none are reserved: ordinary pages, then
        shared = SharedFile(_NAME, _whole(max(nbytes, 1), mmap.PAGESIZE))
    except OSError as error:
        raise VerbsError(f"cannot allocate {nbytes} bytes: {error.strerror}") from error
    if nbytes >= _HUGE_PAGE_BYTES:
        _libc.madvise(shared.mapping.address, shared.mapping.nbytes, _MADV_HUGEPAGE)
    return shared


def map_of_peer(fd: int, nbytes: int | None = None, *, writable: bool = True) -> Mapping:
    """Map a file that a peer has sent, of exactly ``nbytes`` if they are given.

    ``ProtocolError`` unless it is sealed and has that size.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
        if seals & _SEALS != _SEALS or size == 0 or (nbytes is not None and size != nbytes):
            raise ProtocolError(f"a peer's shared memory is not sealed, or has {size} bytes")
        populate = nbytes is None and size <= _POPULATE_UP_TO_BYTES
        return Mapping(fd, size, writable=writable, populate=populate)
    except OSError as error:
        raise ProtocolError(f"a peer's shared memory cannot be used: {error}") from error
