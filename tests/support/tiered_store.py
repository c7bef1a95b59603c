"""A store of two tiers from its real parts, of which each thing happens when a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.segments.segment_log import SegmentLog
from dpu_agent.segments.segment_table import Life
from dpu_agent.tiers.cold_tier import ColdTier
from dpu_agent.tiers.mover import TierMover
from kvlane.capsule import KeyArray, KeyStatus
from kvlane.rawmem import crc32
from tests.support.faulty_volume import Faults
from tests.support.segment_blocks import Memory, fetch, key_of, payload_of
from tests.support.turns import SlowVolume, Turns

BLOCK_BYTES = 12 << 10
SEGMENT_BYTES = 72 << 10
SEGMENTS = 5
NUMBERS = 7
"""Blocks that may exist."""
LENGTHS = (100, 4095, 4096, 4097, BLOCK_BYTES)
"""Of blocks: the bytes of each name its version, so there are enough of them."""


@dataclass(frozen=True)
class Sizes:
    """Of one life."""

    hot_blocks: int
    cold_blocks: int
    hot_policy: str = "lru"
    cold_policy: str = "lru"


def config_for(folder: Path) -> SegmentLogConfig:
    """Small segments in two directories, so that they are opened, sealed and freed all the time."""
    paths = (folder / "a", folder / "b")
    for path in paths:
        path.mkdir(exist_ok=True)
    return SegmentLogConfig(
        paths,
        SEGMENTS * SEGMENT_BYTES,
        segment_bytes=SEGMENT_BYTES,
        max_block_bytes=BLOCK_BYTES,
        direct="off",
    )


def keys_of(*numbers: int) -> KeyArray:
    return np.frombuffer(b"".join(map(key_of, numbers)), np.uint8).reshape(-1, 32)


def length_of(version: int) -> int:
    return LENGTHS[version % len(LENGTHS)]


@lru_cache(maxsize=4096)
def block_of(number: int, version: int) -> tuple[bytes, int]:
    """Bytes and checksum."""
    payload = payload_of(number, version, length_of(version))
    return payload.tobytes(), crc32(0, int(payload.ctypes.data), len(payload))


class WatchedLog:
    """The medium of a tier, and what has become of what it was asked."""

    def __init__(self, log: SegmentLog, appended: Callable[[Record], None]) -> None:
        """``appended(record)`` as soon as a record may be in the files."""
        self.log = log
        self.failed: Counter[ItemStatus] = Counter()
        self._appended = appended
        self._appends: dict[int, list[Record]] = {}
        self.doubtful: list[Record] = []
        """Their append failed, and they may be in the files all the same."""

    def append(self, records: Sequence[Record], *, durable: bool) -> int:
        assert durable
        for record in records:
            self._appended(record)
        ticket = self.log.append(records, durable=durable)
        self._appends[ticket] = list(records)
        return ticket

    def read(self, reads: Sequence[Read]) -> int:
        return self.log.read(reads)

    def delete(self, locations: Sequence[int], *, durable: bool) -> int:
        return self.log.delete(locations, durable=durable)

    def poll(self) -> list[Completion]:
        done = self.log.poll()
        for each in done:
            self.failed.update(status for status in each.statuses if status is not ItemStatus.OK)
            records = self._appends.pop(each.ticket, [])
            for record, status in zip(records, each.statuses[: len(records)], strict=True):
                if status is ItemStatus.IO_ERROR:
                    self.doubtful.append(record)
        return done

    def moved(self) -> list[tuple[int, int]]:
        return self.log.moved()


class TieredStore:
    """One life of it, from opening the files to their end."""

    def __init__(
        self, config: SegmentLogConfig, sizes: Sizes, appended: Callable[[Record], None]
    ) -> None:
        self.config, self.sizes = config, sizes
        self.faults, self.turns = Faults(), Turns()
        self.hot = _new_store(sizes.hot_blocks, sizes.hot_policy, seed=1)
        self.cold = _new_store(sizes.cold_blocks, sizes.cold_policy, seed=2)
        self.memory = Memory(sizes.hot_blocks * BLOCK_BYTES)
        open_volume = partial(SlowVolume, faults=self.faults, turns=self.turns)
        self.log = SegmentLog.open(config, open_volume, self.turns.workers())
        self.kept = list(self.log.records())
        self.medium = WatchedLog(self.log, appended)
        self.is_full = False
        self.tier = ColdTier(self.cold, self.medium, self._note_full)
        self.now = 1
        self.unfit = self.tier.load(self.kept, self.now)
        self.mover = TierMover(self.hot, self.tier, self.memory.address)

    def _note_full(self) -> None:
        self.is_full = True

    def tick(self) -> int:
        self.now += 1
        return self.now

    def bytes_in(self, slot: int, nbytes: int) -> bytes:
        """Of a slot of memory."""
        at = slot * BLOCK_BYTES
        return self.memory.bytes[at : at + nbytes].tobytes()

    def put(self, slot: int, payload: bytes) -> None:
        """What a host would write by RDMA."""
        at = slot * BLOCK_BYTES
        self.memory.bytes[at : at + BLOCK_BYTES] = 0xEE
        self.memory.bytes[at : at + len(payload)] = np.frombuffer(payload, np.uint8)

    def slots_of(self, store: BlockStore) -> dict[int, int]:
        """Slot of each number that is published; a test is no reader, and leaves no trace."""
        found = store.exist(keys_of(*range(NUMBERS))) == KeyStatus.OK
        keys = store.arrays.by_key.keys.view(np.uint8).reshape(-1, 32)
        held = store.arrays.table["hold"] & 3 == 2
        by_key = {keys[slot].tobytes(): slot for slot in np.flatnonzero(held).tolist()}
        return {int(n): by_key[key_of(int(n))] for n in np.flatnonzero(found)}

    def block_at(self, slot: int) -> tuple[bytes, int, int]:
        """Key, checksum and generation of a slot of memory."""
        row = self.hot.arrays.table[slot]
        key = self.hot.arrays.by_key.keys[slot].tobytes()
        return key, int(row["checksum"]), int(row["generation"])

    def is_readable(self, location: int, number: int) -> bool:
        """Whether a location leads to the record of a block."""
        table = self.log._log.table
        found = table.find(location)
        is_there = found is not None and found[1]["life"] in (Life.LIVE, Life.MOVED)
        return is_there and found[1]["key"].tobytes() == key_of(number)

    def read_files(self, location: int) -> bytes | None:
        """The bytes at a location, None where they cannot be had; the log does all it has to."""
        status, payload = fetch(self.log, location, BLOCK_BYTES)
        return payload if status is ItemStatus.OK else None


def _new_store(blocks: int, policy: str, seed: int) -> BlockStore:
    return BlockStore(
        capacity_blocks=blocks,
        block_bytes=BLOCK_BYTES,
        policy=make_policy(policy, blocks),
        seed=seed,
    )


def slots(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)
