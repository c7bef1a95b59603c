"""Memory by address: the C library's allocators, and access without any check."""

from __future__ import annotations

import ctypes
import errno
import mmap as _mmap
import os

from emulator.pyverbs.base import PyverbsRDMAErrno

PROT_EXEC_ = _mmap.PROT_EXEC
PROT_READ_ = _mmap.PROT_READ
PROT_WRITE_ = _mmap.PROT_WRITE
PROT_NONE_ = 0

# Of linux/mman.h; Python's mmap module does not have all of them.
MAP_PRIVATE_ = _mmap.MAP_PRIVATE
MAP_SHARED_ = _mmap.MAP_SHARED
MAP_FIXED_ = 0x10
MAP_ANONYMOUS_ = _mmap.MAP_ANONYMOUS
MAP_GROWSDOWN_ = 0x100
MAP_LOCKED_ = 0x2000
MAP_NORESERVE_ = 0x4000
MAP_POPULATE_ = 0x8000
MAP_STACK_ = 0x20000
MAP_HUGETLB_ = 0x40000

_MADV_DONTNEED = 4
_MAP_FAILED = ctypes.c_void_p(-1).value

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
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.posix_memalign.argtypes = [
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
    ctypes.c_size_t,
]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: int = 0,
    offset: int = 0,
) -> int:
    """Map memory; return its address. ``MemoryError`` when the system refuses."""
    address: int | None = _libc.mmap(addr, length, prot, flags, fd, offset)
    if address is None or address == _MAP_FAILED:
        raise MemoryError(f"Failed to mmap memory: {os.strerror(ctypes.get_errno())}")
    return address


def munmap(addr: int, length: int) -> None:
    """Unmap memory; ``MemoryError`` when the system refuses."""
    if _libc.munmap(addr, length):
        raise MemoryError(f"Failed to munmap memory: {os.strerror(ctypes.get_errno())}")


def madvise(addr: int, length: int, flags: int = _MADV_DONTNEED) -> None:
    """Advise the system about memory, which by default it may forget."""
    if _libc.madvise(addr, length, flags):
        raise PyverbsRDMAErrno("Failed to madvise memory", ctypes.get_errno())


def malloc(size: int) -> int:
    """Allocate; return the address. ``MemoryError`` when there is no memory."""
    address: int | None = _libc.malloc(size)
    if not address:
        raise MemoryError(f"Failed to allocate {size} bytes")
    return address


def posix_memalign(size: int, alignment: int = 8) -> int:
    """Allocate zeroed memory at a multiple of ``alignment``, a power of two; its address."""
    pointer = ctypes.c_void_p()
    code = _libc.posix_memalign(ctypes.byref(pointer), alignment, size)
    if code or not pointer.value:
        reason = os.strerror(code or errno.ENOMEM)
        raise MemoryError(f"Failed to allocate {size} bytes aligned to {alignment}: {reason}")
    ctypes.memset(pointer.value, 0, size)
    return pointer.value


def free(ptr: int) -> None:
    """Give back what ``malloc`` or ``posix_memalign`` has allocated."""
    _libc.free(ptr)


def write(addr: int, data: str | bytes, length: int, offset: int = 0) -> None:
    """Copy the first ``length`` bytes of ``data`` to an address."""
    data = data.encode() if isinstance(data, str) else bytes(data)
    if length > len(data):
        raise ValueError(f"{length} bytes are to be written, and the data has {len(data)}")
    ctypes.memmove(addr + offset, data, length)


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """The bytes at an address."""
    return ctypes.string_at(addr + offset, length)


def read32(addr: int, offset: int = 0) -> int:
    """The 32-bit number at an address; ``offset`` counts numbers."""
    return ctypes.c_uint32.from_address(addr + 4 * offset).value


def read64(addr: int, offset: int = 0) -> int:
    """The 64-bit number at an address; ``offset`` counts numbers."""
    return ctypes.c_uint64.from_address(addr + 8 * offset).value


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """Write a 32-bit number, most significant byte first; ``offset`` counts numbers."""
    ctypes.memmove(addr + 4 * offset, (val & 0xFFFFFFFF).to_bytes(4, "big"), 4)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """Write a 64-bit number, most significant byte first; ``offset`` counts numbers."""
    ctypes.memmove(addr + 8 * offset, (val & 0xFFFFFFFF_FFFFFFFF).to_bytes(8, "big"), 8)
