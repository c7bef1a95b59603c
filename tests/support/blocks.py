"""Random block keys."""

from __future__ import annotations

import numpy as np

from kvlane.capsule import KeyArray
from kvlane.limits import KEY_BYTES


def random_keys(count: int, seed: int = 1) -> KeyArray:
    """``count`` different keys; the same ones for the same seed."""
    return np.random.default_rng(seed).integers(0, 256, (count, KEY_BYTES), dtype=np.uint8)
