"""Words of 8 bytes in host order, as atomics work on them."""

from __future__ import annotations

import numpy as np

from emulator.wire._byte_kernels import signed
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

_word_at = record_accessor(np.dtype([("value", "<i8")]))
_LOW = 0xFFFFFFFF


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
