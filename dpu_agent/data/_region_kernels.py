"""Which ranges of host memory a command may name."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvlane.jit import kernel
from kvlane.rawmem import words_at


@kernel
def is_inside(connection: Any, addr: int, length: int, rkey: int) -> bool:
    """Whether a range lies in the session's region of that rkey.

    Addresses are compared without sign, and no sum of address and length is formed, so none
    can wrap around.
    """
    count = connection.region_count
    rkeys = words_at(connection.region_rkeys, count)
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if rkeys[middle] < rkey:
            low = middle + 1
        else:
            high = middle
    if low == count or rkeys[low] != rkey:
        return False
    start = np.uint64(words_at(connection.region_starts, count)[low])
    size = np.uint64(words_at(connection.region_sizes, count)[low])
    begin, wanted = np.uint64(np.int64(addr)), np.uint64(length)
    return bool(begin >= start and wanted <= size and begin - start <= size - wanted)
