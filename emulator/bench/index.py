"""``index``: bytes of metadata that the agent keeps for a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.store import BlockStore
from emulator.bench.report import Better, Goal, Report, summarise
from emulator.bench.rounds import Progress
from kvlane.limits import MIN_BLOCK_BYTES

NAME = "index"
BLOCKS = 10_000_000
GOAL = Goal(64, Better.LOWER)


def bytes_per_block(blocks: int) -> float:
    """Of a store's index, slots and order of eviction; they are as large empty as full."""
    store = BlockStore(
        capacity_blocks=blocks, block_bytes=MIN_BLOCK_BYTES, policy=LruPolicy(blocks), seed=1
    )
    held = [*_arrays(store.arrays), *_arrays(store.policy)]
    return sum(array.nbytes for array in held) / blocks


def _arrays(owner: object) -> Iterator[np.ndarray[Any, Any]]:
    """Every array in an object, and in the tuples that it consists of."""
    parts = owner if isinstance(owner, tuple) else vars(owner).values()
    for part in parts:
        if isinstance(part, np.ndarray):
            yield part
        elif isinstance(part, tuple):
            yield from _arrays(part)


def run(rounds: int, progress: Progress, link: str, blocks: int = BLOCKS) -> Report:  # noqa: ARG001
    """Add up; it is the same in every round and over every link."""
    progress(f"{blocks} blocks")
    value = bytes_per_block(blocks)
    return Report([summarise(NAME, "bytes", [value], "one block", [1.0], GOAL)])
