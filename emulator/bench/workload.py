"""What our side of a benchmark runs on: a private emulated agent, keys, and lanes of blocks."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

import host_driver
from host_driver.emulated import EmulatedAgent, parse_emulated
from kvlane.errors import KvlaneError

UDP = "udp"
PCIE = "pcie"
LINKS = (PCIE, UDP)

MIB = 1 << 20
STORED_BLOCKS = 64
"""Blocks that a retrieve goes around, more than a cache holds of 1 MiB each."""
START_TIMEOUT_MS = 300_000


def emulated_target(
    link: str, capacity_blocks: int, block_bytes: int, spin_us: int | None = None
) -> str:
    """The target of a private agent."""
    options = {"link": link, "capacity": capacity_blocks * block_bytes, "block_bytes": block_bytes}
    if link == UDP:
        del options["link"]
    if spin_us is not None:
        options["spin_us"] = spin_us
    return "emulated:?" + "&".join(f"{name}={value}" for name, value in options.items())


def driver_config(link: str, queue_depth: int) -> host_driver.DriverConfig:
    """How to connect to such an agent."""
    options = {"link": link} if link != UDP else {}
    return host_driver.DriverConfig(queue_depth=queue_depth, device_options=options)


def start_agent(link: str, capacity_blocks: int, block_bytes: int) -> EmulatedAgent:
    """An agent that many connections share."""
    target = emulated_target(link, capacity_blocks, block_bytes)
    return EmulatedAgent(parse_emulated(target), START_TIMEOUT_MS)


def bench_keys(first: int, count: int) -> NDArray[np.uint8]:
    """Keys of the blocks ``first`` and on, one a row."""
    digests = (
        blake2b(number.to_bytes(8, "little"), digest_size=32).digest()
        for number in range(first, first + count)
    )
    return np.frombuffer(b"".join(digests), np.uint8).reshape(count, 32)


def random_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Bytes without a pattern, the same in every run."""
    return np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)


def require_moved(statuses: NDArray[np.uint8]) -> None:
    """``KvlaneError`` when a key is not OK: such a round measured nothing."""
    if statuses.any():
        raise KvlaneError(f"a block was not moved: {statuses.tolist()}")


class Lanes:
    """Blocks in registered memory and a connection that moves them, ``depth`` at a time."""

    def __init__(self, dpu: host_driver.SyncDpu, block_bytes: int, depth: int) -> None:
        self._dpu = dpu
        self.block_bytes, self.depth = block_bytes, depth
        self.rows = dpu.alloc(depth * block_bytes).reshape(depth, block_bytes)
        self.rows[:] = random_bytes(block_bytes)
        self._stored = 0

    def new_keys(self, batches: int) -> list[NDArray[np.uint8]]:
        """Batches of keys that nobody has stored before."""
        firsts = range(self._stored, self._stored + batches * self.depth, self.depth)
        self._stored = firsts.stop
        return [bench_keys(first, self.depth) for first in firsts]

    def store(self, batches: list[NDArray[np.uint8]]) -> int:
        """Store the rows under each batch of keys; bytes moved."""
        for keys in batches:
            require_moved(self._dpu.store(keys, self.rows).statuses)
        return len(batches) * self.rows.nbytes

    def stored_keys(self, blocks: int) -> list[NDArray[np.uint8]]:
        """Batches of keys of the ``blocks`` blocks stored last."""
        firsts = range(self._stored - blocks, self._stored, self.depth)
        return [bench_keys(first, self.depth) for first in firsts]

    def retrieve(self, batches: list[NDArray[np.uint8]], repeat: int) -> int:
        """Fetch all batches ``repeat`` times; bytes moved."""
        for _ in range(repeat):
            for keys in batches:
                require_moved(self._dpu.retrieve(keys, self.rows).statuses)
        return repeat * len(batches) * self.rows.nbytes
