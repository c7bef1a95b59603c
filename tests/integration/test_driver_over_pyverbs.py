"""Held: agent and driver do over pyverbs what they do over the emulated NIC's own backend.

Both are configured with ``verbs: pyverbs``, and pyverbs is the drop-in. Everything between the
driver's API and the calls of pyverbs is what runs on hardware.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
import pytest_asyncio

import host_driver
from dpu_agent.config import StoreConfig
from emulator.pyverbs.config import FabricConfig
from emulator.pyverbs.loader import installed
from host_driver import Dpu, DriverConfig, KeyStatus, Namespace
from host_driver.control import ControlClient
from kvlane.errors import DeadlineError, TransferError, VerbsError
from tests.support.driver_calls import BLOCK, chain, payload, start_agent, wait_until
from tests.support.pyverbs_agent import (
    ForeignAgent,
    agent_elsewhere,
    agent_here,
    driver_elsewhere,
)

SLOT = 65536
AGENT_DEVICE, DRIVER_DEVICE = "kvlane0", "kvlane1"
DRIVER = DriverConfig(verbs="pyverbs", device_options={"device": DRIVER_DEVICE})


@pytest.fixture(scope="module")
def devices() -> Iterator[None]:
    with installed(FabricConfig(devices=2)):
        yield


@pytest.fixture(scope="module")
def control(devices: None) -> Iterator[str]:
    store = StoreConfig(capacity_bytes=128 << 20, block_bytes=SLOT)
    with agent_here(AGENT_DEVICE, store) as address:
        yield address


@pytest.fixture
def foreign_agent(devices: None) -> Iterator[ForeignAgent]:
    with agent_elsewhere() as agent:
        yield agent


@pytest_asyncio.fixture
async def dpu(control: str, request: pytest.FixtureRequest) -> AsyncIterator[Dpu]:
    namespace = Namespace(name=request.node.name)
    async with await host_driver.connect(control, namespace=namespace, config=DRIVER) as connected:
        yield connected


async def test_blocks_are_stored_found_fetched_and_deleted(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 100), payload(100, SLOT)
    assert await dpu.match(keys) == 0
    assert (await dpu.store(keys, blocks)).statuses.tolist() == [KeyStatus.OK] * 100
    assert await dpu.match(keys) == 100
    assert (await dpu.exist(keys)).all()
    into = np.zeros_like(blocks)
    result = await dpu.retrieve(keys, into)
    assert result.ok.all()
    assert np.array_equal(into, blocks)
    await dpu.delete(keys[40:41])
    assert await dpu.match(keys) == 40
    assert (~await dpu.exist(keys)).nonzero()[0].tolist() == [40]


async def test_registered_memory_serves_both_ways(dpu: Dpu) -> None:
    keys = chain(dpu, 16)
    source = dpu.alloc(16 * BLOCK).reshape(16, BLOCK)
    source[:] = payload(16)
    own = np.zeros((16, BLOCK), np.uint8)
    dpu.register(own)
    assert (await dpu.store(keys, source)).ok.all()
    assert (await dpu.retrieve(keys[::-1], own)).ok.all()
    assert np.array_equal(own[::-1], source)
    await dpu.free(own)


async def test_more_keys_than_a_send_queue_holds(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 1500), payload(1500, 128)
    assert (await dpu.store(keys, blocks)).ok.all()
    into = np.zeros_like(blocks)
    assert (await dpu.retrieve(keys, into)).ok.all()
    assert np.array_equal(into, blocks)


async def test_many_calls_at_once(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 300), payload(300)
    into = np.zeros_like(blocks)
    parts = [slice(start, start + 3) for start in range(0, 300, 3)]
    await asyncio.gather(*(dpu.store(keys[part], blocks[part]) for part in parts))
    await asyncio.gather(*(dpu.retrieve(keys[part], into[part]) for part in parts))
    assert np.array_equal(into, blocks)


def test_a_caller_without_a_loop_is_served(control: str) -> None:
    with host_driver.connect_sync(control, config=DRIVER) as dpu:
        keys, blocks = chain(dpu, 8), payload(8, SLOT)
        assert dpu.store(keys, blocks).ok.all()
        into = np.zeros_like(blocks)
        assert dpu.retrieve(keys, into).ok.all()
        assert np.array_equal(into, blocks)


def test_the_agent_names_its_device(foreign_agent: ForeignAgent) -> None:
    assert "kvlane0 port 1, GID 0: " in foreign_agent.device
    assert "(RoCE v2)" in foreign_agent.device


async def test_an_agent_that_dies_ends_every_call(foreign_agent: ForeignAgent) -> None:
    async with await host_driver.connect(foreign_agent.control, config=DRIVER) as dpu:
        keys, blocks = chain(dpu, 64), payload(64, SLOT)
        assert (await dpu.store(keys, blocks)).ok.all()
        into = np.zeros_like(blocks)
        assert (await dpu.retrieve(keys, into)).ok.all()
        assert np.array_equal(into, blocks)
        os.kill(foreign_agent.process.pid, signal.SIGSTOP)
        calls = [asyncio.ensure_future(dpu.retrieve(keys, into)) for _ in range(3)]
        await asyncio.sleep(0)
        foreign_agent.process.kill()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, (TransferError, DeadlineError))
        into[:] = 0xAB
        await asyncio.sleep(0.05)
        assert (into == 0xAB).all()


def test_a_driver_that_dies_leaves_no_session_and_no_block_in_use(control: str) -> None:
    operator = ControlClient(control)
    with driver_elsewhere(control) as driver:
        wait_until(lambda: operator.stats().store.pinned > 0)
        driver.kill()
        wait_until(lambda: operator.stats().sessions == 0)
    store = operator.stats().store
    operator.close()
    assert (store.writing, store.pinned) == (0, 0)
    with host_driver.connect_sync(control, config=DRIVER) as dpu:
        assert dpu.store(chain(dpu, 4), payload(4)).ok.all()


def test_an_agent_elsewhere_than_at_the_roce_port_is_refused_with_what_to_do() -> None:
    agent = start_agent()  # on the emulator's own backend, at any port
    try:
        with installed(FabricConfig(addressing="ipv4")), pytest.raises(VerbsError, match="4791"):
            host_driver.connect_sync(agent.control, config=DriverConfig(verbs="pyverbs"))
    finally:
        agent.close()
