"""The limit of everything that copies once: memcpy in one thread."""

from __future__ import annotations

import numpy as np

from emulator.bench.workload import random_bytes


class Memcpy:
    """As many blocks as a benchmark goes around, copied into as many lanes."""

    def __init__(self, block_bytes: int, stored: int, depth: int) -> None:
        self._stored = random_bytes(stored * block_bytes).reshape(stored, block_bytes)
        self._lanes = np.ones((depth, block_bytes), np.uint8)

    def copy(self, repeat: int) -> int:
        """Copy every stored block into a lane, ``repeat`` times; bytes copied."""
        depth = len(self._lanes)
        for _ in range(repeat):
            for number, block in enumerate(self._stored):
                self._lanes[number % depth] = block
        return repeat * self._stored.nbytes
