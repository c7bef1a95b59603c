"""Moving blocks, ours and the others': what the benchmarks of Retrieve and Store share."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

import host_driver
from emulator.bench.clock import rate_gbps
from emulator.bench.peers.interface import Store
from emulator.bench.rounds import Measure
from emulator.bench.workload import (
    MIB,
    STORED_BLOCKS,
    Lanes,
    bench_keys,
    driver_config,
    emulated_target,
    random_bytes,
    require_moved,
)

GBPS = "GB/s"
OURS = "ours"
OURS_CONCURRENT = "ours as concurrent calls"


@dataclass(frozen=True, slots=True)
class Size:
    """How much a turn moves; tests make it small."""

    block_bytes: int = MIB
    depth: int = 16
    """Blocks in flight."""
    stored: int = STORED_BLOCKS
    repeat: int = 32
    """Times that a turn goes around all stored blocks: 0.1 s and more of ours, so that what the
    turns of others left in the caches is soon over."""

    @property
    def slots(self) -> int:
        """Blocks that the agent has room for: it evicts in peace, and those stored last stay."""
        return 2 * self.stored

    @property
    def turn_blocks(self) -> int:
        """Blocks of one turn."""
        return self.stored * self.repeat

    @property
    def turn_bytes(self) -> int:
        """Bytes of one turn."""
        return self.block_bytes * self.turn_blocks

    @property
    def turn_batches(self) -> int:
        """Batches of one turn."""
        return self.turn_blocks // self.depth


def open_lanes(link: str, size: Size, undo: ExitStack) -> Lanes:
    """A private agent that holds ``size.stored`` blocks, and lanes to move them with."""
    target = emulated_target(link, size.slots, size.block_bytes)
    dpu = undo.enter_context(
        host_driver.connect_sync(target, config=driver_config(link, size.depth))
    )
    lanes = Lanes(dpu, size.block_bytes, size.depth)
    lanes.store(lanes.new_keys(size.stored // size.depth))
    return lanes


def our_retrieve(lanes: Lanes, size: Size) -> Measure:
    """Calls of one batch each."""
    batches = lanes.stored_keys(size.stored)
    return lambda: rate_gbps(lambda: lanes.retrieve(batches, size.repeat))


def our_store(lanes: Lanes, size: Size) -> Measure:
    """Calls of one batch each, of blocks that are all new."""

    def measure() -> float:
        batches = lanes.new_keys(size.turn_batches)
        return rate_gbps(lambda: lanes.store(batches))

    return measure


class ConcurrentLanes:
    """The same retrieves as ``depth`` tasks of one block each, on a loop that outlives a turn."""

    def __init__(self, link: str, size: Size, undo: ExitStack) -> None:
        self._size = size
        self._loop = asyncio.new_event_loop()
        undo.callback(self._loop.close)
        target = emulated_target(link, size.slots, size.block_bytes)
        config = driver_config(link, size.depth)
        self._dpu = self._loop.run_until_complete(host_driver.connect(target, config=config))
        undo.callback(lambda: self._loop.run_until_complete(self._dpu.close()))
        rows = self._dpu.alloc(size.depth * size.block_bytes)
        self._rows = rows.reshape(size.depth, size.block_bytes)
        self._keys = bench_keys(0, size.stored)
        self._loop.run_until_complete(self._fill())

    async def _fill(self) -> None:
        depth = self._size.depth
        self._rows[:] = random_bytes(self._size.block_bytes)
        for first in range(0, self._size.stored, depth):
            result = await self._dpu.store(self._keys[first : first + depth], self._rows)
            require_moved(result.statuses)

    def measure(self) -> float:
        """GB/s of one turn."""
        return rate_gbps(lambda: self._loop.run_until_complete(self._turn()))

    async def _turn(self) -> int:
        total = self._size.stored * self._size.repeat
        numbers = iter(range(total))

        async def lane(index: int) -> None:
            for number in numbers:
                at = number % self._size.stored
                row = self._rows[index : index + 1]
                require_moved((await self._dpu.retrieve(self._keys[at : at + 1], row)).statuses)

        await asyncio.gather(*(lane(index) for index in range(self._size.depth)))
        return total * self._size.block_bytes


class StoreTurns:
    """A peer's turns, over the same number of blocks of the same length."""

    def __init__(self, store: Store, size: Size) -> None:
        self._store, self._size = store, size
        self._filled = False
        self._seconds = 0.0
        self._rows = np.ones((size.depth, size.block_bytes), np.uint8)
        self._rows[:] = random_bytes(size.block_bytes)
        self._batches = [
            [bytes(key) for key in bench_keys(first, size.depth)]
            for first in range(0, size.stored, size.depth)
        ]

    def get_gbps(self) -> float:
        """Rate of one turn of gets, by the time that the peer says it took."""
        self.get()
        return self._size.turn_bytes / self._seconds / 1e9

    def get(self) -> int:
        """One turn of gets; the first stores the blocks before. Bytes moved."""
        if not self._filled:
            for keys in self._batches:
                self._store.put(keys, self._rows)
            self._filled = True
        self._seconds = sum(
            self._store.get(keys, self._rows)
            for _ in range(self._size.repeat)
            for keys in self._batches
        )
        return self._size.turn_bytes

    def put_gbps(self) -> float:
        """One turn of puts of new blocks; making room for them is not counted."""
        seconds = 0.0
        for _ in range(self._size.repeat):
            self._store.clear()
            seconds += sum(self._store.put(keys, self._rows) for keys in self._batches)
        return self._size.turn_bytes / seconds / 1e9
