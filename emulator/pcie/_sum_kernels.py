"""The checksum that a READ makes on its way: see ``sum_addr`` of ``SEND_WR``."""

from __future__ import annotations

import numpy as np

from kvlane.atomics import full_fence
from kvlane.jit import kernel
from kvlane.rawmem import array_accessor, copy, copy_past_cache, crc32

_STRIDE_BYTES = 16 << 10
"""Little enough to be in the first cache still when it is summed, and much for one copy."""

_words_at = array_accessor(np.dtype(np.uint32))


@kernel
def sum_so_far(word: int) -> int:
    """The sum in the 32-bit word at an address."""
    return int(_words_at(word, 1)[0])


@kernel
def set_sum(word: int, crc: int) -> None:
    """Put a sum into the 32-bit word at an address."""
    _words_at(word, 1)[0] = crc


@kernel
def sum_over(word: int, address: int, nbytes: int) -> None:
    """Continue the sum in the word at ``word``, if that is one, over bytes that have come."""
    if word != 0:
        set_sum(word, crc32(sum_so_far(word), address, nbytes))


@kernel
def copy_and_sum(crc: int, destination: int, source: int, length: int) -> int:
    """Copy, and continue a CRC-32 over what is copied.

    By way of a buffer in the cache, so that what is summed is what is stored, whatever the owner of
    the source does to it meanwhile; and from there past the cache, since nobody looks at it soon.
    """
    buffer = np.empty(_STRIDE_BYTES, np.uint8)
    at = buffer.ctypes.data
    value, done = np.int64(crc), np.int64(0)
    while done < length:
        nbytes = min(_STRIDE_BYTES, length - done)
        copy(at, source + done, nbytes)
        value = np.int64(crc32(value, at, nbytes))
        copy_past_cache(destination + done, at, nbytes)
        done += nbytes
    full_fence()
    return int(value)
