"""Held: blocks longer than the staging travel, however many and beside whatever is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

import host_driver
from host_driver import DriverConfig, Namespace
from host_driver.emulated import EmulatedAgent, EmulatedOptions
from host_driver.memory import CALLER_REGIONS
from kvlane.errors import CapacityError
from kvlane.limits import MAX_REGIONS_PER_SESSION
from tests.support.driver_calls import BLOCK, chain, payload, start_agent

SMALL_STAGING = DriverConfig(staging_bytes=BLOCK)
TOO_LONG = 2 * BLOCK


@pytest.fixture(scope="module")
def agent() -> Iterator[EmulatedAgent]:
    started = start_agent(EmulatedOptions(capacity=64 << 20, block_bytes=TOO_LONG))
    yield started
    started.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Namespace:
    return Namespace(name=request.node.name)


def test_one_call_after_another_never_runs_out_of_regions(
    agent: EmulatedAgent, namespace: Namespace
) -> None:
    with host_driver.connect_sync(agent.control, namespace=namespace, config=SMALL_STAGING) as dpu:
        keys, blocks = chain(dpu, 100), payload(100, TOO_LONG)
        assert dpu.store(keys, list(blocks)).ok.all()
        for _ in range(25):
            into = np.zeros_like(blocks)
            assert dpu.retrieve(keys, into).ok.all()
            assert np.array_equal(into, blocks)


async def test_one_call_may_have_more_blocks_than_a_session_has_regions(
    agent: EmulatedAgent, namespace: Namespace
) -> None:
    async with await host_driver.connect(
        agent.control, namespace=namespace, config=SMALL_STAGING
    ) as dpu:
        count = 2 * MAX_REGIONS_PER_SESSION + 1
        keys, blocks = chain(dpu, count), payload(count, TOO_LONG)
        mixed = [row if i % 3 else row[:100] for i, row in enumerate(blocks)]
        assert (await dpu.store(keys, mixed)).ok.all()
        into = [bytearray(len(block)) for block in mixed]
        assert (await dpu.retrieve(keys, into)).ok.all()
        assert [bytes(block) for block in into] == [block.tobytes() for block in mixed]


async def test_many_such_calls_at_once_beside_small_ones(
    agent: EmulatedAgent, namespace: Namespace
) -> None:
    async with await host_driver.connect(
        agent.control, namespace=namespace, config=SMALL_STAGING
    ) as dpu:
        keys, blocks = chain(dpu, 800), payload(800, TOO_LONG)
        parts = [slice(start, start + 100) for start in range(0, 800, 100)]
        stores = [dpu.store(keys[part], list(blocks[part])) for part in parts]
        small_keys = chain(dpu, 50, 10**6)
        small = [dpu.store([key], [bytes(100)]) for key in small_keys]
        for result in await asyncio.gather(*stores, *small):
            assert result.ok.all()
        assert (await dpu.exist(small_keys)).all()
        assert await dpu.match(keys) == 800


def test_every_region_of_a_caller_can_be_used_beside_large_blocks(
    agent: EmulatedAgent, namespace: Namespace
) -> None:
    with host_driver.connect_sync(agent.control, namespace=namespace, config=SMALL_STAGING) as dpu:
        buffers = [dpu.alloc(64) for _ in range(CALLER_REGIONS)]
        keys = chain(dpu, CALLER_REGIONS + 100)
        large = list(payload(100, TOO_LONG))
        assert dpu.store(keys, [*buffers, *large]).ok.all()
        with pytest.raises(CapacityError, match="few large"):
            dpu.alloc(64)
        dpu.free(buffers[0])
        dpu.alloc(64)
