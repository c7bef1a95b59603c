"""Memory by address, for kernels: copy, checksum, records, and ordered loads and stores.

An RDMA NIC is handed addresses, not objects. These few functions are the only way in
which kernels turn an address into bytes; whoever calls them has checked the range.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from kvlane.jit import JIT_ENABLED, external, kernel

_memmove = external("memmove", types.int64(types.int64, types.int64, types.int64))


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_typing_context: Any, _address: Any) -> Any:
    """Reinterpret an integer as a pointer."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@kernel
def copy(destination: int, source: int, length: int) -> None:
    """Copy ``length`` bytes between two addresses; the ranges may overlap."""
    if length > 0:
        _memmove(destination, source, length)


_LINE_BYTES = 64


@intrinsic  # type: ignore[untyped-decorator]
def _stream_line(_typing_context: Any, _destination: Any, _source: Any) -> Any:
    """Copy 64 bytes to an aligned address, by a store that takes no cache line for them."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), _LINE_BYTES // 8).as_pointer()
        value = builder.load(builder.inttoptr(args[1], line), align=1)
        stored = builder.store(value, builder.inttoptr(args[0], line), align=_LINE_BYTES)
        once = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        stored.set_metadata("nontemporal", once)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


if JIT_ENABLED:

    @kernel
    def copy_past_cache(destination: int, source: int, length: int) -> None:
        """Copy to where nobody will look soon: the cache keeps what it has, and memory is not read
        to be overwritten. The ranges may not overlap.

        Others see the bytes after ``kvlane.atomics.full_fence``, and not before.
        """
        head = min(-destination & (_LINE_BYTES - 1), length)
        copy(destination, source, head)
        lines_end = head + ((length - head) & ~(_LINE_BYTES - 1))
        for at in range(head, lines_end, _LINE_BYTES):
            _stream_line(destination + at, source + at)
        copy(destination + lines_end, source + lines_end, length - lines_end)

else:

    def copy_past_cache(destination: int, source: int, length: int) -> None:
        """The same bytes, by the interpreter."""
        copy(destination, source, length)


@intrinsic  # type: ignore[untyped-decorator]
def _release(_typing_context: Any) -> Any:
    """A fence behind which no earlier store is put off."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("release")
        return context.get_dummy_value()

    return types.none(), codegen


if JIT_ENABLED:

    @kernel
    def bytes_at(address: int, length: int) -> Any:
        """The bytes at an address as a ``uint8`` array that owns nothing."""
        return carray(_pointer(address), length, np.uint8)

    @kernel
    def publish() -> None:
        """Whoever sees a store after this sees all stores before it."""
        _release()

else:

    def bytes_at(address: int, length: int) -> Any:
        """The bytes at an address as a ``uint8`` array that owns nothing."""
        if length <= 0:
            return np.empty(0, np.uint8)
        memory: Any = (ctypes.c_uint8 * int(length)).from_address(int(address))
        return np.frombuffer(memory, np.uint8)

    def publish() -> None:
        """Whoever sees a store after this sees all stores before it: so the interpreter has it."""


def _named_for(accessor: Callable[[int, int], Any], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Give an accessor a name that no accessor of another dtype has.

    Machine code is linked by names that count functions within a process. Those of two processes
    meet in the kernel cache, and closures of one name would be taken for each other.
    """
    digest = blake2b(repr(dtype).encode(), digest_size=8).hexdigest()
    accessor.__name__ = accessor.__qualname__ = f"{accessor.__name__}_{digest}"
    return accessor


def record_accessor(dtype: np.dtype[Any]) -> Callable[[int, int], Any]:
    """A kernel ``(table address, index) -> record`` for a table of ``dtype``.

    The record is a reference: assigning to its fields writes to the table.
    """
    size = dtype.itemsize
    if JIT_ENABLED:

        def record_at(table: int, index: int) -> Any:
            return carray(_pointer(table + index * size), 1, dtype)[0]

        return kernel(_named_for(record_at, dtype))

    def record_at_plain(table: int, index: int) -> Any:
        memory: Any = (ctypes.c_uint8 * size).from_address(int(table) + int(index) * size)
        return np.frombuffer(memory, dtype).view(np.recarray)[0]

    return record_at_plain


def array_accessor(dtype: np.dtype[Any]) -> Callable[[int, int], Any]:
    """A kernel ``(address, count) -> array`` over memory that holds ``count`` of ``dtype``."""
    size = dtype.itemsize
    if JIT_ENABLED:

        def array_at(address: int, count: int) -> Any:
            return carray(_pointer(address), count, dtype)

        return kernel(_named_for(array_at, dtype))

    def array_at_plain(address: int, count: int) -> Any:
        if count <= 0:
            return np.empty(0, dtype)
        memory: Any = (ctypes.c_uint8 * (size * int(count))).from_address(int(address))
        array = np.frombuffer(memory, dtype)
        return array.view(np.recarray) if dtype.names else array

    return array_at_plain


words_at = array_accessor(np.dtype(np.int64))
"""64-bit words at an address."""


def _isal_crc32_address() -> int | None:
    """ISA-L's CRC-32 inside the ``isal`` wheel, if it is there and right.

    It is no promised interface of that package, so a known vector decides.
    """
    try:
        from isal import isal_zlib

        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (ImportError, OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    function.restype = ctypes.c_uint32
    probe = bytes(range(256)) * 5
    if function(0, probe, len(probe)) != zlib.crc32(probe):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _crc_tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Tables for slicing-by-8: table[k][b] is the CRC of byte b followed by k zero bytes."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        previous = tables[k - 1]
        tables[k] = (previous >> np.uint32(8)) ^ tables[0][previous & np.uint32(0xFF)]
    return tables


_TABLES = _crc_tables()


@kernel
def crc32_sliced(seed: int, address: int, length: int) -> int:
    """CRC-32 by slicing-by-8, for machines where ISA-L is not to be had."""
    data = bytes_at(address, length)
    crc = np.int64(seed) ^ 0xFFFFFFFF
    i = 0
    while i + 8 <= length:
        low = crc ^ (
            np.int64(data[i])
            | np.int64(data[i + 1]) << 8
            | np.int64(data[i + 2]) << 16
            | np.int64(data[i + 3]) << 24
        )
        crc = np.int64(
            _TABLES[7, low & 0xFF]
            ^ _TABLES[6, (low >> 8) & 0xFF]
            ^ _TABLES[5, (low >> 16) & 0xFF]
            ^ _TABLES[4, (low >> 24) & 0xFF]
            ^ _TABLES[3, data[i + 4]]
            ^ _TABLES[2, data[i + 5]]
            ^ _TABLES[1, data[i + 6]]
            ^ _TABLES[0, data[i + 7]]
        )
        i += 8
    while i < length:
        crc = np.int64(_TABLES[0, (crc ^ np.int64(data[i])) & 0xFF]) ^ (crc >> 8)
        i += 1
    result: int = crc ^ 0xFFFFFFFF
    return result


_CRC32_ADDRESS = _isal_crc32_address()

if not JIT_ENABLED:

    def crc32(seed: int, address: int, length: int) -> int:
        """CRC-32 (zlib's) of ``length`` bytes at ``address``, continued from ``seed``."""
        return zlib.crc32(bytes_at(address, length).tobytes(), int(seed))

elif _CRC32_ADDRESS is not None:
    _crc32_isal = external(
        "kvlane_isal_crc32",
        types.uint32(types.uint32, types.int64, types.uint64),
        _CRC32_ADDRESS,
    )

    @kernel
    def crc32(seed: int, address: int, length: int) -> int:
        """CRC-32 (zlib's) of ``length`` bytes at ``address``, continued from ``seed``."""
        result: int = np.int64(_crc32_isal(np.uint32(seed), address, np.uint64(length)))
        return result

else:
    crc32 = crc32_sliced
