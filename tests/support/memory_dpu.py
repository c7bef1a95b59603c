"""The driver's API over a dictionary: what a replay needs of an agent, and ways to go wrong."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from host_driver.results import RetrieveResult, StoreResult
from kvlane.capsule import KeyArray, KeyStatus


class MemoryDpu:
    """Stores blocks in a dictionary, evicting the least recently used beyond a capacity.

    Every call gives way to other tasks a number of times drawn from ``seed``, before
    and after it acts, so that calls in flight overtake each other.
    """

    def __init__(self, *, capacity_blocks: int | None = None, seed: int = 0) -> None:
        self.root_key = bytes(range(32))
        self.blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self.capacity_blocks = capacity_blocks
        self.allocated: dict[int, NDArray[np.uint8]] = {}
        """Memory that was not freed, by address."""
        self.evicted = 0
        self.retransmitted = 0
        self.calls: list[tuple[str, int]] = []
        """Command and number of keys, in order of arrival."""
        self.on_match: Callable[[list[bytes]], None] = lambda keys: None
        """Called with the keys of a match after it was answered."""
        self.on_retrieved: Callable[[NDArray[np.uint8]], None] = lambda rows: None
        """Called with the rows of a retrieve after they were written."""
        self.store_statuses: list[KeyStatus] = []
        """Statuses to answer the next stored blocks with, without storing them."""
        self._rng = random.Random(seed)

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        memory = np.zeros(nbytes, np.uint8)
        self.allocated[memory.ctypes.data] = memory
        return memory

    async def free(self, memory: NDArray[np.uint8]) -> None:
        del self.allocated[memory.ctypes.data]

    def counters(self) -> dict[str, int]:
        return {"retransmitted_packets": self.retransmitted}

    async def stats(self) -> SimpleNamespace:
        return SimpleNamespace(
            store=SimpleNamespace(evicted=self.evicted),
            device_counters={"retransmitted_packets": 10 * self.retransmitted},
        )

    async def match(self, keys: KeyArray) -> int:
        names = await self._arrive("match", keys)
        matched = 0
        while matched < len(names) and names[matched] in self.blocks:
            matched += 1
        self.on_match(names)
        await self._give_way()
        return matched

    async def retrieve(self, keys: KeyArray, into: NDArray[np.uint8]) -> RetrieveResult:
        names = await self._arrive("retrieve", keys)
        statuses = np.full(len(names), KeyStatus.NOT_FOUND, np.uint8)
        lengths = np.zeros(len(names), np.uint32)
        for index, name in enumerate(names):
            if name in self.blocks:
                self.blocks.move_to_end(name)
                block = np.frombuffer(self.blocks[name], np.uint8)
                into[index, : len(block)] = block
                statuses[index] = KeyStatus.OK
                lengths[index] = len(block)
        self.on_retrieved(into)
        await self._give_way()
        return RetrieveResult(statuses, lengths, np.zeros(len(names), np.uint32))

    async def store(self, keys: KeyArray, blocks: NDArray[np.uint8]) -> StoreResult:
        names = await self._arrive("store", keys)
        statuses = np.zeros(len(names), np.uint8)
        for index, name in enumerate(names):
            if self.store_statuses:
                statuses[index] = self.store_statuses.pop(0)
            elif name in self.blocks:
                statuses[index] = KeyStatus.EXISTS
            else:
                self.blocks[name] = blocks[index].tobytes()
                self._make_room()
        await self._give_way()
        return StoreResult(statuses)

    def _make_room(self) -> None:
        while self.capacity_blocks is not None and len(self.blocks) > self.capacity_blocks:
            self.blocks.popitem(last=False)
            self.evicted += 1

    async def _arrive(self, command: str, keys: KeyArray) -> list[bytes]:
        self.calls.append((command, len(keys)))
        names = [key.tobytes() for key in keys]
        await self._give_way()
        return names

    async def _give_way(self) -> None:
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)
