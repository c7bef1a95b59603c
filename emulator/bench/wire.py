"""``wire``: Retrieve and Store over RoCEv2 on the UDP link, against a bare UDP blast."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

import host_driver
from emulator.bench.blast import blast
from emulator.bench.report import BenchResult, summarise
from kvlane.errors import KvlaneError

BLOCK_BYTES = 1 << 20
IN_FLIGHT = 16
BLOCKS_PER_ROUND = 512
_CAPACITY_BLOCKS = 64

Step = Callable[[int, int], Awaitable[None]]


def bench_key(number: int) -> bytes:
    """The key of the benchmark's block ``number``."""
    return blake2b(number.to_bytes(8, "little"), digest_size=32).digest()


async def _rate(step: Step, blocks: int) -> float:
    """GB/s of ``blocks`` calls of ``step(lane, number)`` with ``IN_FLIGHT`` of them at a time."""
    numbers = iter(range(blocks))

    async def lane(index: int) -> None:
        for number in numbers:
            await step(index, number)

    start = time.perf_counter()
    await asyncio.gather(*(lane(index) for index in range(IN_FLIGHT)))
    return blocks * BLOCK_BYTES / (time.perf_counter() - start) / 1e9


class _Wire:
    """The two operations on one connection."""

    def __init__(self, dpu: host_driver.Dpu) -> None:
        self._dpu = dpu
        memory = dpu.alloc(IN_FLIGHT * BLOCK_BYTES)
        self._lanes: NDArray[np.uint8] = memory.reshape(IN_FLIGHT, BLOCK_BYTES)
        self._lanes[:] = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
        self._stored = 0

    async def store(self, lane: int, number: int) -> None:  # noqa: ARG002
        """One block that nobody has stored before."""
        self._stored += 1
        result = await self._dpu.store([bench_key(self._stored)], self._lanes[lane : lane + 1])
        _require_ok(result.statuses)

    async def retrieve(self, lane: int, number: int) -> None:
        """One of the blocks stored last, which are all still there."""
        key = bench_key(self._stored - number % IN_FLIGHT)
        _require_ok((await self._dpu.retrieve([key], self._lanes[lane : lane + 1])).statuses)


def _require_ok(statuses: NDArray[np.uint8]) -> None:
    if statuses.any():
        raise KvlaneError(f"a block was not moved: {statuses.tolist()}")


async def _measure(rounds: int, progress: Callable[[str], None]) -> list[BenchResult]:
    target = f"emulated:?capacity={_CAPACITY_BLOCKS * BLOCK_BYTES}&block_bytes={BLOCK_BYTES}"
    limits: list[float] = []
    stores: list[float] = []
    retrieves: list[float] = []
    async with await host_driver.connect(target) as dpu:
        wire = _Wire(dpu)
        await _rate(wire.store, 2 * IN_FLIGHT)
        await _rate(wire.retrieve, 2 * IN_FLIGHT)
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            limits.append(
                (
                    await asyncio.to_thread(blast, BLOCKS_PER_ROUND * BLOCK_BYTES)
                ).gigabytes_per_second
            )
            stores.append(await _rate(wire.store, BLOCKS_PER_ROUND))
            retrieves.append(await _rate(wire.retrieve, BLOCKS_PER_ROUND))
    reference = "UDP GSO/GRO blast between two processes"
    return [
        summarise("retrieve-udp", "GB/s", retrieves, reference, limits),
        summarise("store-udp", "GB/s", stores, reference, limits),
    ]


def run(rounds: int, progress: Callable[[str], None]) -> list[BenchResult]:
    """Measure; ``progress`` is told what is going on."""
    return asyncio.run(_measure(rounds, progress))
