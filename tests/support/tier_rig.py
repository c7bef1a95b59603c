"""A hot store, a colder tier on a simulated medium, and what moves blocks between them."""

from __future__ import annotations

import zlib

import numpy as np

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.mover import Pace, TierMover
from kvlane.capsule import KeyStatus
from tests.support.capsule_host import key_array
from tests.support.simulated_medium import SimulatedMedium

BLOCK_BYTES = 4096
HOT_BLOCKS = 8


class Rig:
    """A hot store with memory, a colder tier, and what moves blocks between them."""

    def __init__(self, *, hot: int = HOT_BLOCKS, cold: int = 64, pace: Pace | None = None) -> None:
        self.hot = self._store(hot, seed=1)
        self.cold = self._store(cold, seed=2)
        self.memory = np.zeros(hot * BLOCK_BYTES, np.uint8)
        self.medium = SimulatedMedium()
        self.full = 0
        self.is_short = False
        self.tier = ColdTier(self.cold, self.medium, self._note_full, lambda _: self.is_short)
        self.mover = TierMover(self.hot, self.tier, int(self.memory.ctypes.data), pace or Pace())
        self.now = 0

    def _note_full(self) -> None:
        self.full += 1

    def _store(self, blocks: int, seed: int) -> BlockStore:
        return BlockStore(
            capacity_blocks=blocks,
            block_bytes=BLOCK_BYTES,
            policy=make_policy("lru", blocks),
            seed=seed,
        )

    def store(self, *keys: int) -> None:
        for key in keys:
            self.now += 1
            slots, statuses = self.hot.reserve(key_array(key), np.array([BLOCK_BYTES]))
            assert statuses[0] == KeyStatus.OK
            self._payload(int(slots[0]))[:] = key
            checksum = zlib.crc32(bytes([key]) * BLOCK_BYTES)
            self.hot.publish(slots, np.array([checksum], np.uint32), self.now)

    def _payload(self, slot: int) -> np.ndarray:
        return self.memory[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES]

    def step(self) -> None:
        """Everything that is due, until nothing is."""
        self.now += 1
        while self.mover.step(self.now) or self.medium.pending:
            self.medium.perform_all()

    def content(self, key: int) -> int | None:
        """The byte that fills a block in memory."""
        slot = int(self.hot.pin(key_array(key), self.now)[0])
        if slot < 0:
            return None
        self.hot.unpin(np.array([slot]), self.hot.generations(np.array([slot])))
        (value,) = set(self._payload(slot).tolist())
        return int(value)

    def places(self, key: int) -> tuple[bool, bool]:
        """Whether a key is in memory, and whether it lies colder."""
        in_memory, colder = self.hot.exist(key_array(key)), self.cold.exist(key_array(key))
        return bool(in_memory[0] == KeyStatus.OK), bool(colder[0] == KeyStatus.OK)

    def free(self) -> int:
        return self.hot.free_blocks
