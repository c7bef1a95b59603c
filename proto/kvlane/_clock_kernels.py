"""The monotonic clock for loops that do not come back to Python to ask for it."""

from __future__ import annotations

import time

from numba import types

from kvlane.jit import external, kernel
from kvlane.rawmem import words_at

_clock_gettime = external("clock_gettime", types.int32(types.int32, types.int64))
_MONOTONIC = int(time.CLOCK_MONOTONIC)
SCRATCH_WORDS = 2
"""What ``monotonic_ns`` needs for itself: a ``struct timespec``."""


@kernel
def monotonic_ns(scratch: int) -> int:
    """What ``time.monotonic_ns`` says; ``scratch`` is the address of ``SCRATCH_WORDS`` words."""
    _clock_gettime(_MONOTONIC, scratch)
    spec = words_at(scratch, SCRATCH_WORDS)
    return int(spec[0]) * 1_000_000_000 + int(spec[1])
