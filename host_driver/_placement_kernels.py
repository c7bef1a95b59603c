"""Where the blocks of a transfer lie: the region around each, and the staging that others need.

A call of a few blocks would spend more time in numpy's functions than in moving them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel

Words = NDArray[np.int64]

NOWHERE = -1
"""No region holds all of a block."""
SEVERAL = -2
"""Not all blocks lie in one region."""


@kernel
def _region_of(starts: Words, ends: Words, addr: int, length: int) -> int:
    """The region that holds all of a range, by bisection; or ``NOWHERE``."""
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        if starts[middle] <= addr:
            low = middle + 1
        else:
            high = middle
    if low == 0 or addr + length > ends[low - 1]:
        return NOWHERE
    return low - 1


@kernel
def locate_blocks(starts: Words, ends: Words, addrs: Words, lengths: Words, found: Words) -> int:
    """Write the region of each block, or ``NOWHERE``, into ``found``.

    Returns what all of them have in common, or ``SEVERAL``.
    """
    common = NOWHERE
    for i in range(len(addrs)):
        found[i] = _region_of(starts, ends, addrs[i], lengths[i])
        if i == 0:
            common = found[i]
        elif found[i] != common:
            common = SEVERAL
    return int(common)


@kernel
def sum_room(rkeys: Words, lengths: Words, alignment: int, room_before: Words) -> int:
    """Staging that the blocks without a remote key need: before each of them, and in all."""
    total = 0
    for i in range(len(rkeys)):
        room_before[i] = total
        if rkeys[i] < 0:
            total += (lengths[i] + alignment - 1) // alignment * alignment
    room_before[len(rkeys)] = total
    return total


@kernel
def list_rows(first: int, step: int, nbytes: int, addrs: Words, lengths: Words) -> None:
    """Blocks of one length, each ``step`` bytes behind the one before it."""
    for i in range(len(addrs)):
        addrs[i] = first + i * step
        lengths[i] = nbytes
