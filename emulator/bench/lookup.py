"""What the benchmarks of Exist and Match share: many small blocks, at ours and at the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import host_driver
from emulator.bench.peers.interface import Store
from emulator.bench.report import BenchResult, Better, Goal, summarise, unrivalled
from emulator.bench.rounds import Rounds, best
from emulator.bench.transfer import OURS
from emulator.bench.workload import require_moved
from kvlane.errors import KvlaneError
from kvlane.limits import MIN_BLOCK_BYTES

KEYS_PER_SECOND = "keys/s"
BLOCK_BYTES = MIN_BLOCK_BYTES
"""What a block holds does not matter to a lookup."""


def store_all(dpu: host_driver.SyncDpu, batches: Sequence[NDArray[np.uint8]]) -> None:
    """Store a block under every key."""
    rows = dpu.alloc(len(batches[0]) * BLOCK_BYTES).reshape(-1, BLOCK_BYTES)
    for keys in batches:
        require_moved(dpu.store(keys, rows[: len(keys)]).statuses)


def require_all(found: int, asked: int) -> None:
    """``KvlaneError`` unless every key was found: such a round measured something else."""
    if found != asked:
        raise KvlaneError(f"{found} of {asked} keys were found")


class StoreLookups:
    """A peer's turns over the same keys."""

    def __init__(
        self,
        store: Store,
        batches: Sequence[NDArray[np.uint8]],
        asked: Sequence[NDArray[np.uint8]],
        depth: int,
    ) -> None:
        """It stores ``batches`` and asks for others; blocks are put ``depth`` at a time."""
        self._store = store
        self._asked = [[bytes(key) for key in keys] for keys in asked]
        self._batches = [[bytes(key) for key in keys] for keys in batches]
        self._rows = np.ones((depth, BLOCK_BYTES), np.uint8)
        self._filled = False

    def keys_per_second(self) -> float:
        """One turn of lookups; the first stores the blocks before."""
        if not self._filled:
            self._fill()
        seconds, count = 0.0, 0
        for keys in self._asked:
            there, spent = self._store.exist(keys)
            if there != len(keys):
                raise RuntimeError(f"{there} of {len(keys)} keys are there")
            seconds, count = seconds + spent, count + len(keys)
        return count / seconds

    def _fill(self) -> None:
        depth = len(self._rows)
        for keys in self._batches:
            for first in range(0, len(keys), depth):
                part = keys[first : first + depth]
                self._store.put(part, self._rows[: len(part)])
        self._filled = True


def against_best(
    name: str, unit: str, values: Rounds, peers: Sequence[str], goal: Goal
) -> list[BenchResult]:
    """Ours against the best peer, then against the others without a goal."""
    winner = best(values, peers, lowest=goal.better is Better.LOWER)
    if winner is None:
        return [unrivalled(name, unit, values[OURS], " or ".join(peers) or "no peer", goal)]
    rows = [summarise(name, unit, values[OURS], winner, values[winner], goal)]
    others = [peer for peer in peers if peer in values and peer != winner]
    rows += [summarise(name, unit, values[OURS], peer, values[peer]) for peer in others]
    return rows
