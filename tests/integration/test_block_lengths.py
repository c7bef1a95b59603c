"""Blocks of every length come back whole and with the right checksum, however the agent parts
their payload while it moves."""

from __future__ import annotations

import zlib
from contextlib import closing

import numpy as np
import pytest

import host_driver
from dpu_agent.data.state import CHUNK_BYTES
from host_driver import DriverConfig, KeyStatus, Namespace
from host_driver.emulated import EmulatedOptions
from tests.support.driver_calls import start_agent

LENGTHS = (
    1,
    CHUNK_BYTES - 1,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    3 * CHUNK_BYTES + 5,
    7,
    4 * CHUNK_BYTES,
)
SLOT_BYTES = max(LENGTHS)
CAPACITY_BLOCKS = 2 * len(LENGTHS)


@pytest.mark.parametrize("link", ["udp", "pcie"])
@pytest.mark.parametrize("verify", [False, True])
def test_blocks_around_a_chunk_and_keys_between_them_that_do_not_move(
    link: str, verify: bool
) -> None:
    options = EmulatedOptions(
        capacity=CAPACITY_BLOCKS * SLOT_BYTES, block_bytes=SLOT_BYTES, link=link
    )
    config = DriverConfig(device_options={"link": link}, verify_checksums=verify)
    rng = np.random.default_rng(3)
    blocks = [rng.integers(0, 256, length, np.uint8) for length in LENGTHS]
    with (
        closing(start_agent(options)) as agent,
        host_driver.connect_sync(
            agent.control, namespace=Namespace(name="n"), config=config
        ) as dpu,
    ):
        keys = np.arange(32 * len(LENGTHS), dtype=np.uint8).reshape(-1, 32)
        there_before = [1, 4]
        first = dpu.store(keys[there_before], [blocks[i] for i in there_before])
        assert first.ok.all()
        stored = dpu.store(keys, blocks)
        expected = [KeyStatus.OK] * len(LENGTHS)
        for i in there_before:
            expected[i] = KeyStatus.EXISTS
        assert stored.statuses.tolist() == expected
        into = [np.zeros(length, np.uint8) for length in LENGTHS]
        came = dpu.retrieve(keys, into)
        assert came.lengths.tolist() == list(LENGTHS)
        assert came.checksums.tolist() == [zlib.crc32(block.tobytes()) for block in blocks]
        for block, copy in zip(blocks, into, strict=True):
            assert np.array_equal(block, copy)
