"""``index``: memory that the agent takes for a block, outside the payload."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.store import BlockStore
from emulator.bench.report import Better, Goal, Report, summarise
from emulator.bench.rounds import Progress
from kvlane.errors import KvlaneError
from kvlane.limits import KEY_BYTES, MIN_BLOCK_BYTES

NAME = "index"
BLOCKS = 10_000_000
GOAL = Goal(64, Better.LOWER)
_BATCH_KEYS = 4096
"""Stored at once: what a batch takes in passing is nothing beside what is measured."""
_SEED = 1


def resident_bytes() -> int:
    """Memory of this process that is in use, and not shared with a file."""
    pages, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(pages) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def filled_store(blocks: int) -> BlockStore:
    """A store whose every slot has a published block under a random key; there is no payload.

    ``KvlaneError`` when a key was not taken or is not found again.
    """
    store = BlockStore(
        capacity_blocks=blocks, block_bytes=MIN_BLOCK_BYTES, policy=LruPolicy(blocks), seed=_SEED
    )
    rng = np.random.default_rng(_SEED)
    for first in range(0, blocks, _BATCH_KEYS):
        count = min(_BATCH_KEYS, blocks - first)
        keys = rng.integers(0, 256, (count, KEY_BYTES), np.uint8)
        slots, _ = store.reserve(keys, np.full(count, MIN_BLOCK_BYTES))
        store.publish(slots, np.zeros(count, np.uint32), now=first)
        if store.match(keys) != count:
            raise KvlaneError(f"{count} keys were stored, but not all of them are found")
    if store.stats().blocks != blocks:
        raise KvlaneError(f"the store holds {store.stats().blocks} blocks of {blocks}")
    return store


def bytes_per_block(blocks: int) -> float:
    """By how much the process grows for each block of a full store: index, slots, order of
    eviction, and what the allocator adds. Millions: small arrays may lie in memory that was freed.
    """
    filled_store(1)  # Kernels are compiled or loaded before the first look.
    before = resident_bytes()
    store = filled_store(blocks)
    grown = resident_bytes() - before
    return grown / store.capacity_blocks


def run(rounds: int, progress: Progress, link: str, blocks: int = BLOCKS) -> Report:  # noqa: ARG001
    """Fill one store; it takes the same in every round and over every link."""
    progress(f"filling a store of {blocks} blocks")
    value = bytes_per_block(blocks)
    return Report([summarise(NAME, "bytes", [value], "one block", [1.0], GOAL)])
