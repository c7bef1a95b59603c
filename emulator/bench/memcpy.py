"""The limit of everything that copies once: memcpy in one thread."""

from __future__ import annotations

import numpy as np

from emulator.bench.workload import random_bytes


class Memcpy:
    """Blocks that are copied to others, each around as many as a benchmark goes."""

    def __init__(self, block_bytes: int, sources: int, targets: int) -> None:
        self._sources = random_bytes(sources * block_bytes).reshape(sources, block_bytes)
        self._targets = np.ones((targets, block_bytes), np.uint8)

    def copy(self, blocks: int) -> int:
        """Copy so many blocks; bytes copied."""
        for number in range(blocks):
            source = self._sources[number % len(self._sources)]
            self._targets[number % len(self._targets)] = source
        return blocks * int(self._sources[0].nbytes)
