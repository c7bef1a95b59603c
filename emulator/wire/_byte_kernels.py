"""Numbers in network order at an address, as all headers have them."""

from __future__ import annotations

from kvlane.jit import kernel
from kvlane.rawmem import bytes_at


@kernel
def put_be(address: int, value: int, nbytes: int) -> None:
    """Store the low ``nbytes`` bytes of ``value``, at most 8."""
    out = bytes_at(address, nbytes)
    for i in range(nbytes):
        out[i] = (value >> (8 * (nbytes - 1 - i))) & 0xFF


@kernel
def get_be(address: int, nbytes: int) -> int:
    """Load an unsigned number of at most 7 bytes."""
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
    """Load 8 bytes as a signed number, as all 64-bit fields are kept."""
    return signed(get_be(address, 4), get_be(address + 4, 4))
