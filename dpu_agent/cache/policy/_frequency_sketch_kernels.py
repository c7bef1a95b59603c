"""How often keys were seen lately, in 4 bits: a count-min sketch that halves itself.

Four rows of counters (Cormode and Muthukrishnan 2005), two in a byte. A key has one counter in each
row; an addition raises only the least of the four (minimal increment, Cohen and Matias 2003), and
the least is the estimate, never too low. After ``sample`` additions all counters are halved, so
that what was frequent long ago is forgotten (Einziger, Friedman and Manes 2017).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel
from kvlane.rawmem import bytes_at, record_accessor

_SKETCH = np.dtype([("counters", "i8"), ("row_width", "i8"), ("sample", "i8"), ("additions", "i8")])
_sketch_at = record_accessor(_SKETCH)
ROWS = 4
MAX_COUNT = 15
_COUNTERS_PER_BLOCK = 4
"""In a row, at least: with a sample of ten times the blocks, few keys share all four counters."""
_SAMPLE_PER_BLOCK = 10
_MIN_WIDTH = 256
_STEP_SHIFT = 31
_HALF_MASK = 0x77
"""What is left of both counters of a byte after a shift by one."""


class FrequencySketch:
    """Sized for a cache of so many blocks."""

    def __init__(self, capacity_blocks: int) -> None:
        wanted = max(_COUNTERS_PER_BLOCK * capacity_blocks, _MIN_WIDTH)
        width = 1 << (wanted - 1).bit_length()
        self._counters: NDArray[np.uint8] = np.zeros(ROWS * width // 2, np.uint8)
        self._state = np.zeros(1, _SKETCH)
        sample = _SAMPLE_PER_BLOCK * capacity_blocks
        self._state[0] = (self._counters.ctypes.data, width, sample, 0)
        self.address = int(self._state.ctypes.data)


@kernel
def _place_of(key: int, row: int, width: int) -> int:
    """The counter of a key in a row: from one half of the key, in steps of the other."""
    step = (key >> _STEP_SHIFT) | 1
    return row * width + ((key + row * step) & (width - 1))


@kernel
def estimate(sketch: int, key: int) -> int:
    """Up to ``MAX_COUNT``, and not below the additions of the key that are not forgotten."""
    state = _sketch_at(sketch, 0)
    width = np.int64(state.row_width)
    counters = bytes_at(state.counters, ROWS * width >> 1)
    least = MAX_COUNT
    for row in range(ROWS):
        place = _place_of(key, row, width)
        count = (np.int64(counters[place >> 1]) >> 4 * (place & 1)) & MAX_COUNT
        least = min(least, int(count))
    return least


@kernel
def _halve(sketch: int) -> None:
    state = _sketch_at(sketch, 0)
    counters = bytes_at(state.counters, ROWS * np.int64(state.row_width) >> 1)
    for i in range(len(counters)):
        counters[i] = (np.int64(counters[i]) >> 1) & _HALF_MASK
    state.additions >>= 1


@kernel
def add(sketch: int, key: int) -> None:
    """Count a key once more."""
    state = _sketch_at(sketch, 0)
    least = estimate(sketch, key)
    if least < MAX_COUNT:
        width = np.int64(state.row_width)
        counters = bytes_at(state.counters, ROWS * width >> 1)
        for row in range(ROWS):
            place = _place_of(key, row, width)
            shift = 4 * (place & 1)
            both = np.int64(counters[place >> 1])
            if (both >> shift) & MAX_COUNT == least:
                counters[place >> 1] = both + (1 << shift)
    state.additions += 1
    if state.additions >= state.sample:
        _halve(sketch)
