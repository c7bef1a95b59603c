"""Held: what a host stores in an emulated agent comes back, and failures end with an error.

Driver and agent are two real processes that speak RoCEv2 over UDP and gRPC on 127.0.0.1.
Tests share one agent, each with a namespace of its own; those that hurt it start another.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import host_driver
from host_driver import Dpu, DriverConfig, Namespace
from host_driver.control import ControlClient
from host_driver.emulated import EmulatedAgent, EmulatedOptions
from kvlane.errors import (
    AgentUnreachableError,
    ConfigError,
    DeadlineError,
    DrainingError,
    SessionError,
    TransferError,
)
from tests.support.driver_calls import BLOCK, chain, freeze, payload, start_agent, until

SLOT = 65536


@pytest.fixture(scope="module")
def agent() -> Iterator[EmulatedAgent]:
    started = start_agent(EmulatedOptions(capacity=256 << 20, block_bytes=SLOT))
    yield started
    started.close()


@pytest.fixture
def mortal_agent() -> Iterator[EmulatedAgent]:
    """An agent that a test may stop and kill."""
    started = start_agent()
    yield started
    os.kill(started.pid, signal.SIGCONT)
    started.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Namespace:
    return Namespace(name=request.node.name)


@pytest_asyncio.fixture
async def dpu(agent: EmulatedAgent, namespace: Namespace) -> AsyncIterator[Dpu]:
    async with await host_driver.connect(agent.control, namespace=namespace) as connected:
        yield connected


async def test_a_lossy_link_loses_nothing(namespace: Namespace) -> None:
    target = "emulated:?capacity=16MiB&faults=drop=0.02,dup=0.02,reorder=0.02&seed=7"
    config = DriverConfig(verify_checksums=True)
    async with await host_driver.connect(target, namespace=namespace, config=config) as dpu:
        keys, blocks = chain(dpu, 100), payload(100)
        assert (await dpu.store(keys, blocks)).ok.all()
        into = np.zeros_like(blocks)
        assert (await dpu.retrieve(keys, into)).ok.all()
        assert np.array_equal(into, blocks)


async def test_state_can_be_asked_for(dpu: Dpu) -> None:
    keys = chain(dpu, 5)
    before = (await dpu.stats()).store.stored
    await dpu.store(keys, payload(5))
    stats = await dpu.stats()
    assert stats.store.stored - before == 5
    assert stats.store.block_bytes == SLOT
    assert sum(dpu.counters().values()) > 0


async def test_nobody_listening_says_how_to_start_an_agent() -> None:
    with pytest.raises(AgentUnreachableError, match="kvlane emulate"):
        await host_driver.connect("127.0.0.1:1")


@pytest.mark.parametrize("target", ["", "host", "emulated:?size=1"])
async def test_a_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        await host_driver.connect(target)


async def test_a_closed_connection_refuses_everything(
    agent: EmulatedAgent, namespace: Namespace
) -> None:
    dpu = await host_driver.connect(agent.control, namespace=namespace)
    keys, memory = chain(dpu, 1), dpu.alloc(BLOCK)
    await dpu.close()
    await dpu.close()
    calls = [
        dpu.match(keys),
        dpu.exist(keys),
        dpu.delete(keys),
        dpu.store(keys, [b"x"]),
        dpu.retrieve(keys, [bytearray(1)]),
        dpu.stats(),
    ]
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, SessionError)
    for call in (dpu.counters, lambda: dpu.alloc(1), lambda: dpu.free(memory)):
        with pytest.raises(SessionError, match="connect again"):
            call()


async def test_calls_in_flight_end_when_the_connection_is_closed(
    mortal_agent: EmulatedAgent,
) -> None:
    config = DriverConfig(control_timeout_ms=200)
    dpu = await host_driver.connect(mortal_agent.control, config=config)
    keys, blocks = chain(dpu, 50), payload(50)
    freeze(mortal_agent.pid)
    calls = [asyncio.ensure_future(dpu.store(keys, blocks)) for _ in range(40)]
    await asyncio.sleep(0)
    await dpu.close()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, (SessionError, TransferError))


async def test_a_killed_agent_fails_what_is_in_flight_and_a_new_one_serves(
    mortal_agent: EmulatedAgent, namespace: Namespace
) -> None:
    dpu = await host_driver.connect(mortal_agent.control, namespace=namespace)
    keys, blocks = chain(dpu, 200), payload(200)
    await dpu.store(keys[:100], blocks[:100])
    freeze(mortal_agent.pid)  # so that the calls are surely under way
    calls: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(dpu.retrieve(keys[:100], np.zeros_like(blocks[:100])))
        for _ in range(3)
    ]
    calls.append(asyncio.ensure_future(dpu.store(keys[100:], blocks[100:])))
    await asyncio.sleep(0)
    os.kill(mortal_agent.pid, signal.SIGKILL)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, (TransferError, DeadlineError))
    with pytest.raises(TransferError, match="connect anew"):
        await dpu.match(keys)
    await dpu.close()
    async with await host_driver.connect("emulated:", namespace=namespace) as again:
        assert (await again.store(keys, blocks)).ok.all()
        assert await again.match(keys) == 200


async def test_an_agent_that_hangs_costs_a_deadline_and_not_for_ever(
    mortal_agent: EmulatedAgent,
) -> None:
    config = DriverConfig(operation_timeout_ms=200, control_timeout_ms=200)
    dpu = await host_driver.connect(mortal_agent.control, config=config)
    freeze(mortal_agent.pid)
    with pytest.raises(DeadlineError, match="MATCH did not end in time"):
        await dpu.match(chain(dpu, 2))
    with pytest.raises(TransferError, match="given up"):
        await dpu.match(chain(dpu, 2))
    await dpu.close()


async def test_a_cancelled_call_keeps_its_buffer_until_the_transfer_has_ended(
    mortal_agent: EmulatedAgent,
) -> None:
    async with await host_driver.connect(mortal_agent.control) as dpu:
        keys, blocks = chain(dpu, 2), payload(2)
        await dpu.store(keys, blocks)
        freeze(mortal_agent.pid)
        buffer = np.zeros(BLOCK, np.uint8)
        alive = weakref.ref(buffer)
        call = asyncio.ensure_future(dpu.retrieve(keys[:1], [buffer]))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        del buffer, call
        gc.collect()
        assert alive() is not None
        os.kill(mortal_agent.pid, signal.SIGCONT)
        into = np.zeros_like(blocks)
        assert (await dpu.retrieve(keys, into)).ok.all()  # answered after the cancelled one
        assert np.array_equal(into, blocks)
        gc.collect()
        assert alive() is None


async def test_draining_is_told_and_stops_newcomers(mortal_agent: EmulatedAgent) -> None:
    operator = ControlClient(mortal_agent.control)
    async with await host_driver.connect(mortal_agent.control) as dpu:
        assert not dpu.draining
        assert operator.drain() == 1
        await until(lambda: dpu.draining)
        with pytest.raises(DrainingError):
            await host_driver.connect(mortal_agent.control)
        assert (await dpu.store(chain(dpu, 1), [b"x"])).ok.all()  # what is open may finish
    operator.close()


async def test_an_agent_that_is_stopped_ends_the_session_at_once(
    mortal_agent: EmulatedAgent,
) -> None:
    dpu = await host_driver.connect(mortal_agent.control)
    keys = chain(dpu, 3)

    async def ask_for_ever() -> None:
        while True:
            await dpu.match(keys)

    os.kill(mortal_agent.pid, signal.SIGTERM)
    with pytest.raises((TransferError, SessionError)):
        await ask_for_ever()
    await dpu.close()


def test_a_blocking_call_hears_of_a_killed_agent(mortal_agent: EmulatedAgent) -> None:
    dpu = host_driver.connect_sync(mortal_agent.control)
    keys = chain(dpu, 3)
    os.kill(mortal_agent.pid, signal.SIGKILL)

    def ask_for_ever() -> None:
        while True:
            dpu.match(keys)

    with pytest.raises((TransferError, DeadlineError)):
        ask_for_ever()
    dpu.close()


def test_an_emulated_agent_stops_by_itself_with_its_driver() -> None:
    started = start_agent()
    started.close()
    with pytest.raises(ProcessLookupError):
        os.kill(started.pid, 0)
