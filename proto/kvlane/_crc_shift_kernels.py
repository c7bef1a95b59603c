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


def _product(matrix: list[int], vector: int) -> int:
    result = 0
    for bit, column in enumerate(matrix):
        if vector >> bit & 1:
            result ^= column
    return result


def _squared(matrix: list[int]) -> list[int]:
    return [_product(matrix, column) for column in matrix]


def _matrices() -> NDArray[np.int64]:
    """Columns of the matrix for 2**k bytes, shape (_LENGTH_BITS, 32)."""
    matrix = [_POLYNOMIAL] + [1 << bit for bit in range(_BITS - 1)]  # for one bit
    for _ in range(3):
        matrix = _squared(matrix)
    rows = []
    for _ in range(_LENGTH_BITS):
        rows.append(matrix)
        matrix = _squared(matrix)
    return np.array(rows, np.int64)


_MATRICES = _matrices()


@kernel
def moved_on(crc: int, nbytes: int) -> int:
    """The share of a sum in that of ``nbytes`` more bytes (fewer than 2**40)."""
    value, left, power = np.int64(crc), np.int64(nbytes), 0
    while left != 0:
        if left & 1:
            product = np.int64(0)
            for bit in range(_BITS):
                product ^= _MATRICES[power, bit] & -((value >> bit) & 1)
            value = product
        left >>= 1
        power += 1
    return int(value)


@kernel
def appended(crc: int, part: int, nbytes: int) -> int:
    """The CRC-32 of some bytes and then ``nbytes`` others, whose own CRC-32 is ``part``."""
    return int(moved_on(crc, nbytes) ^ part)
