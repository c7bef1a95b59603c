"""Numbers in memory: network order for headers, host order for atomics."""

from __future__ import annotations

import numpy as np

from kvlane.jit import kernel
from kvlane.rawmem import bytes_at, record_accessor

_word_at = record_accessor(np.dtype([("value", "<i8")]))
_LOW = 0xFFFFFFFF


@kernel
def put_be(address: int, value: int, nbytes: int) -> None:
    """Store ``value`` in network order."""
    out = bytes_at(address, nbytes)
    for i in range(nbytes):
        out[i] = (value >> (8 * (nbytes - 1 - i))) & 0xFF


@kernel
def get_be(address: int, nbytes: int) -> int:
    """Load an unsigned number of at most 4 bytes in network order."""
    data = bytes_at(address, nbytes)
    value = 0
    for i in range(nbytes):
        value = (value << 8) | int(data[i])
    return int(value)


@kernel
def signed(high: int, low: int) -> int:
    """The 64-bit pattern of two unsigned halves as a signed number."""
    if high >= 1 << 31:
        high -= 1 << 32
    return (high << 32) | low


@kernel
def get_be64(address: int) -> int:
    """Load 8 bytes in network order as a signed number, as all 64-bit fields are kept."""
    return signed(get_be(address, 4), get_be(address + 4, 4))


@kernel
def load_word(address: int) -> int:
    """Load 8 bytes in host order."""
    return int(_word_at(address, 0).value)


@kernel
def store_word(address: int, value: int) -> None:
    """Store 8 bytes in host order."""
    word = _word_at(address, 0)
    word.value = value


@kernel
def add_wrapping(a: int, b: int) -> int:
    """Sum modulo 2^64 of signed numbers, without an overflow on the way."""
    low = (a & _LOW) + (b & _LOW)
    high = (a >> 32) + (b >> 32) + (low >> 32)
    return signed(high & _LOW, low & _LOW)
