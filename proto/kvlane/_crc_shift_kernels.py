"""CRC-32 of bytes that were summed apart: what comes behind moves a sum on without its bytes.

A CRC is linear over GF(2), so to append n zero bytes is to multiply by a matrix that depends on n
alone; there is one for every power of two. The sum of A then B is the sum of A, moved on by the
length of B, xor the sum of B (as ``crc32_combine`` of zlib has it).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel

_POLYNOMIAL = 0xEDB88320
_BITS = 32
_LENGTH_BITS = 40
_NIBBLES = 8
_NIBBLE_VALUES = 16


def _product(matrix: list[int], vector: int) -> int:
    result = 0
    for bit, column in enumerate(matrix):
        if vector >> bit & 1:
            result ^= column
    return result


def _squared(matrix: list[int]) -> list[int]:
    return [_product(matrix, column) for column in matrix]


def _products(matrix: list[int]) -> list[list[int]]:
    """What each value of each nibble of a vector comes to."""
    return [
        [_product(matrix, value << 4 * nibble) for value in range(_NIBBLE_VALUES)]
        for nibble in range(_NIBBLES)
    ]


def _tables() -> NDArray[np.int64]:
    """Products with the matrix for 2**k bytes, shape (_LENGTH_BITS, 8, 16)."""
    matrix = [_POLYNOMIAL] + [1 << bit for bit in range(_BITS - 1)]  # for one bit
    for _ in range(3):
        matrix = _squared(matrix)
    tables = []
    for _ in range(_LENGTH_BITS):
        tables.append(_products(matrix))
        matrix = _squared(matrix)
    return np.array(tables, np.int64)


_TABLES = _tables()


@kernel
def moved_on(crc: int, nbytes: int) -> int:
    """The share of a sum in that of ``nbytes`` more bytes (fewer than 2**40)."""
    value, left, power = np.int64(crc), np.int64(nbytes), 0
    while left != 0:
        while left & 1 == 0:
            left >>= 1
            power += 1
        product = np.int64(0)
        for nibble in range(_NIBBLES):
            product ^= _TABLES[power, nibble, (value >> 4 * nibble) & 15]
        value = product
        left >>= 1
        power += 1
    return int(value)


@kernel
def appended(crc: int, part: int, nbytes: int) -> int:
    """The CRC-32 of some bytes and then ``nbytes`` others, whose own CRC-32 is ``part``."""
    return int(moved_on(crc, nbytes) ^ part)
