"""What an nvme tier finds in its files, and what it does when they are full."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore
from dpu_agent.config import NvmeConfig
from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import ItemStatus, Record
from dpu_agent.segments.segment_log import SegmentLog
from dpu_agent.tiers.nvme import NvmeTier
from dpu_agent.tiers.room import Room
from kvlane.capsule import KeyStatus
from kvlane.errors import ConfigError, StorageFormatError
from tests.support.cold_payloads import BlockMemory, numbers
from tests.support.segment_blocks import TIMEOUT_S, Memory, append, delete, key_of

BLOCK_BYTES = 64 << 10
SEGMENT_BYTES = 512 << 10
SEGMENTS = 8
BLOCKS = 6


@contextmanager
def opened(folder: Path, compression: str) -> Iterator[NvmeTier]:
    """A tier that moves nothing."""
    hot = BlockStore(
        capacity_blocks=1, block_bytes=BLOCK_BYTES, policy=make_policy("lru", 1), seed=1
    )
    config = NvmeConfig(
        directories=str(folder),
        capacity_bytes=SEGMENTS * SEGMENT_BYTES,
        segment_bytes=SEGMENT_BYTES,
        compression=compression,
    )
    tier = NvmeTier(config, hot, 0, seed=2, clock=time.monotonic_ns)
    try:
        yield tier
    finally:
        tier.close()


def keys() -> np.ndarray:
    return np.frombuffer(b"".join(map(key_of, range(BLOCKS))), np.uint8).reshape(BLOCKS, -1)


def write(folder: Path, compression: str) -> list[int]:
    """Have some blocks appended; their checksums."""
    memory = BlockMemory(BLOCKS, BLOCK_BYTES)
    records = [memory.record(n, n, numbers(n, BLOCK_BYTES)) for n in range(BLOCKS)]
    with opened(folder, compression) as tier:
        medium = tier._medium
        ticket = medium.append(records, durable=True)
        deadline = time.monotonic() + TIMEOUT_S
        while ticket not in [done.ticket for done in medium.poll()]:
            assert time.monotonic() < deadline
    return [record.checksum for record in records]


@pytest.mark.parametrize("before", ["none", "zstd"])
@pytest.mark.parametrize("after", ["none", "zstd"])
def test_blocks_are_known_after_a_restart_as_they_were_stored(
    tmp_path: Path, before: str, after: str
) -> None:
    checksums = write(tmp_path, before)
    with opened(tmp_path, after) as tier:
        slots = tier.store.pin(keys(), 0)
        assert (slots >= 0).all()
        assert tier.store.lengths(slots).tolist() == [BLOCK_BYTES] * BLOCKS
        assert tier.store.checksums(slots).tolist() == checksums


def test_there_are_more_rows_where_blocks_are_or_were_compressed(tmp_path: Path) -> None:
    def rows(compression: str) -> int:
        with opened(tmp_path, compression) as tier:
            return tier.store.capacity_blocks

    plain = rows("none")
    assert plain == SEGMENTS * SEGMENT_BYTES // BLOCK_BYTES
    assert rows("zstd") == 2 * plain
    assert rows("none") == plain
    write(tmp_path, "zstd")
    assert rows("none") == 2 * plain


def test_compressed_blocks_are_refused_where_the_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "zstd")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        for setting in ("none", "zstd"):
            with pytest.raises(ConfigError, match="pip install"), opened(tmp_path, setting):
                pass
    with opened(tmp_path, "none") as tier:
        assert (tier.store.exist(keys()) == KeyStatus.OK).all()


def test_without_compressed_blocks_the_library_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "none")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with opened(tmp_path, "none") as tier:
        assert (tier.store.exist(keys()) == KeyStatus.OK).all()


def test_a_tier_that_cannot_read_its_blocks_gives_the_directory_back(tmp_path: Path) -> None:
    log = SegmentLog.open(log_config(tmp_path))
    memory = Memory(4096)
    done = append(log, [Record(key_of(1), memory.address, 10, 0, encoding=77)])
    log.close()
    with pytest.raises(StorageFormatError, match="encoding 77"), opened(tmp_path, "none"):
        pass
    log = SegmentLog.open(log_config(tmp_path))
    delete(log, list(done.locations))
    log.close()
    with opened(tmp_path, "none") as tier:
        assert tier.store.stats().blocks == 0


def log_config(folder: Path) -> SegmentLogConfig:
    return SegmentLogConfig(
        (folder,), SEGMENTS * SEGMENT_BYTES, SEGMENT_BYTES, max_block_bytes=BLOCK_BYTES
    )


def test_room_is_short_before_the_log_is_full_and_not_when_it_was_made(tmp_path: Path) -> None:
    log = SegmentLog.open(log_config(tmp_path))
    hurried: list[int] = []
    room = Room(log, log_config(tmp_path), lambda: hurried.append(1))
    memory = Memory(BLOCK_BYTES)
    locations: list[int] = []
    while not room.is_short(BLOCK_BYTES):
        done = append(log, [memory.record(len(locations), 1, BLOCK_BYTES)])
        assert done.statuses == (ItemStatus.OK,)
        locations += done.locations
    assert hurried == [1]
    assert len(locations) * BLOCK_BYTES > SEGMENTS * SEGMENT_BYTES // 2
    assert room.is_short(SEGMENT_BYTES)
    # Once enough is dead, room is to be made of that, and no block need leave.
    delete(log, [place for number, place in enumerate(locations) if number % 3])
    assert not room.is_short(SEGMENT_BYTES)
    assert len(hurried) == 3
    for _ in range(SEGMENTS):
        log.compact_once(1 << 30)
        log.moved()
    assert not room.is_short(SEGMENT_BYTES)
    assert len(hurried) == 3
    log.close()
