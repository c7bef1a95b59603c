"""Held: what a host stores in an emulated agent comes back, and failures end with an error.

Driver and agent are two real processes that speak RoCEv2 over UDP and gRPC on 127.0.0.1.
Tests share one agent, each with a namespace of its own; those that hurt it start another.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import host_driver
from host_driver import Dpu, DriverConfig, KeyStatus, Namespace
from host_driver.control import ControlClient
from host_driver.emulated import EmulatedAgent, EmulatedOptions
from kvlane.errors import (
    AgentUnreachableError,
    ConfigError,
    DeadlineError,
    DrainingError,
    NamespaceMismatchError,
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


async def test_blocks_of_every_kind_come_back(dpu: Dpu) -> None:
    keys = chain(dpu, 3)
    numbers = np.arange(100, dtype=np.int64)
    blocks = [b"some bytes", bytearray(b"more bytes"), numbers]
    assert (await dpu.store(keys, blocks)).statuses.tolist() == [KeyStatus.OK] * 3
    came = np.zeros(100, np.int64)
    into = [bytearray(10), memoryview(bytearray(10)), came]
    result = await dpu.retrieve(keys, into)
    assert result.ok.all()
    assert result.lengths.tolist() == [10, 10, 800]
    assert bytes(into[0]) == b"some bytes"
    assert bytes(into[1]) == b"more bytes"
    assert np.array_equal(came, numbers)


async def test_registered_memory_serves_both_ways(dpu: Dpu) -> None:
    keys = chain(dpu, 16)
    source = dpu.alloc(16 * BLOCK).reshape(16, BLOCK)
    source[:] = payload(16)
    own = np.zeros((16, BLOCK // 2), np.uint16)
    dpu.register(own)
    assert (await dpu.store(keys, source)).ok.all()
    assert (await dpu.retrieve(keys[::-1], own)).ok.all()
    assert np.array_equal(own.view(np.uint8)[::-1], source)
    await dpu.free(own)
    await dpu.free(source)
    own[:] = 0
    assert (await dpu.retrieve(keys, own)).ok.all()  # through staging now
    assert np.array_equal(own.view(np.uint8), payload(16))


async def test_memory_is_registered_once_and_freed_once(dpu: Dpu) -> None:
    memory = dpu.alloc(BLOCK)
    with pytest.raises(ConfigError, match="overlaps"):
        dpu.register(memory[100:200])
    dpu.free(memory)
    with pytest.raises(ConfigError, match="no registered memory"):
        dpu.free(memory)
    with pytest.raises(ConfigError, match="allocate 0 bytes"):
        dpu.alloc(0)


async def test_more_keys_than_a_capsule_holds(dpu: Dpu) -> None:
    count = 1500
    keys, blocks = chain(dpu, count), payload(count, 128)
    assert await dpu.match(keys) == 0
    assert (await dpu.store(keys, blocks)).ok.all()
    assert await dpu.match(keys) == count
    assert await dpu.match(keys[:1100]) == 1100
    into = np.zeros_like(blocks)
    assert (await dpu.retrieve(keys, into)).ok.all()
    assert np.array_equal(into, blocks)
    await dpu.delete(keys[1200:1201])
    assert await dpu.match(keys) == 1200
    assert (~await dpu.exist(keys)).nonzero()[0].tolist() == [1200]


async def test_many_calls_at_once(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 300), payload(300)
    into = np.zeros_like(blocks)
    parts = [slice(start, start + 3) for start in range(0, 300, 3)]
    await asyncio.gather(*(dpu.store(keys[part], blocks[part]) for part in parts))
    await asyncio.gather(*(dpu.retrieve(keys[part], into[part]) for part in parts))
    assert np.array_equal(into, blocks)


async def test_a_partial_hit_is_told_key_by_key(dpu: Dpu) -> None:
    keys, blocks = chain(dpu, 6), payload(6)
    held = [0, 1, 3]
    await dpu.store([keys[i] for i in held], [blocks[i] for i in held])
    into = np.full_like(blocks, 0xEE)
    result = await dpu.retrieve(keys, into)
    assert result.ok.nonzero()[0].tolist() == held
    assert set(result.statuses[[2, 4, 5]].tolist()) == {KeyStatus.NOT_FOUND}
    assert np.array_equal(into[held], blocks[held])
    assert (into[[2, 4, 5]] == 0xEE).all()
    assert await dpu.match(keys) == 2


async def test_the_first_writer_of_a_key_wins(dpu: Dpu) -> None:
    (key,) = chain(dpu, 1)
    await dpu.store([key], [b"first"])
    second = await dpu.store([key], [b"other"])
    assert second.statuses.tolist() == [KeyStatus.EXISTS]
    assert second.ok.all()
    into = bytearray(5)
    await dpu.retrieve([key], [into])
    assert bytes(into) == b"first"


async def test_wrong_lengths_are_told_key_by_key(dpu: Dpu) -> None:
    keys = chain(dpu, 2)
    result = await dpu.store(keys, [bytes(SLOT + 1), bytes(SLOT)])
    assert result.statuses.tolist() == [KeyStatus.BAD_LENGTH, KeyStatus.OK]
    short = await dpu.retrieve(keys[1:], [bytearray(100)])
    assert short.statuses.tolist() == [KeyStatus.BAD_LENGTH]
    assert short.lengths.tolist() == [SLOT]


async def test_deleted_blocks_are_gone(dpu: Dpu) -> None:
    keys = chain(dpu, 3)
    await dpu.store(keys, payload(3))
    statuses = await dpu.delete([keys[1], b"\0" * 32])
    assert statuses.tolist() == [KeyStatus.OK, KeyStatus.NOT_FOUND]
    assert (await dpu.exist(keys)).tolist() == [True, False, True]


async def test_without_keys_there_is_nothing_to_do(dpu: Dpu) -> None:
    assert await dpu.match([]) == 0
    assert len((await dpu.store([], [])).ok) == 0
    assert len(await dpu.exist(np.zeros((0, 32), np.uint8))) == 0


async def test_two_hosts_see_each_others_blocks(agent: EmulatedAgent, namespace: Namespace) -> None:
    async with (
        await host_driver.connect(agent.control, namespace=namespace) as writer,
        await host_driver.connect(agent.control, namespace=namespace) as reader,
    ):
        keys, blocks = chain(writer, 40), payload(40)
        await writer.store(keys, blocks)
        into = np.zeros_like(blocks)
        assert await reader.match(chain(reader, 40)) == 40
        await reader.retrieve(keys, into)
        assert np.array_equal(into, blocks)


async def test_another_tenant_cannot_name_a_block(
    agent: EmulatedAgent, namespace: Namespace, dpu: Dpu
) -> None:
    await dpu.store(chain(dpu, 4), payload(4))
    async with await host_driver.connect(
        agent.control, namespace=namespace, salt=b"tenant"
    ) as other:
        assert await other.match(chain(other, 4)) == 0


async def test_another_layout_under_the_same_name_is_refused(
    agent: EmulatedAgent, dpu: Dpu, namespace: Namespace
) -> None:
    with pytest.raises(NamespaceMismatchError, match="kv_dtype") as caught:
        await host_driver.connect(
            agent.control, namespace=Namespace(name=namespace.name, kv_dtype="fp8")
        )
    assert caught.value.field == "kv_dtype"


async def test_blocks_of_another_size_than_the_namespaces_are_refused(
    agent: EmulatedAgent, namespace: Namespace
) -> None:
    sized = Namespace(name=namespace.name, block_bytes=100)
    async with await host_driver.connect(agent.control, namespace=sized) as dpu:
        keys = chain(dpu, 2)
        with pytest.raises(ConfigError, match=r"blocks\[1\] has 99 bytes"):
            await dpu.store(keys, [bytes(100), bytes(99)])
        with pytest.raises(ConfigError, match=r"into\[0\] has 99 bytes"):
            await dpu.retrieve(keys, [bytearray(99), bytearray(100)])
        assert not (await dpu.exist(keys)).any()


async def test_a_namespace_whose_blocks_fit_no_slot_is_refused(agent: EmulatedAgent) -> None:
    with pytest.raises(SessionError, match="block_bytes"):
        await host_driver.connect(
            agent.control, namespace=Namespace(name="too large", block_bytes=SLOT + 1)
        )


async def test_arguments_that_do_not_fit_are_refused(dpu: Dpu) -> None:
    keys = chain(dpu, 2)
    with pytest.raises(ConfigError, match="2 keys, but blocks has 1"):
        await dpu.store(keys, [b"x"])
    with pytest.raises(ConfigError, match=r"into\[1\] is read-only"):
        await dpu.retrieve(keys, [bytearray(1), b"x"])
    assert await dpu.match(keys) == 0


async def test_checksums_pass_over_sound_memory(agent: EmulatedAgent, namespace: Namespace) -> None:
    config = DriverConfig(verify_checksums=True)
    async with await host_driver.connect(agent.control, namespace=namespace, config=config) as dpu:
        keys, blocks = chain(dpu, 20), payload(20)
        assert (await dpu.store(keys, blocks)).ok.all()
        into = dpu.alloc(20 * BLOCK).reshape(20, BLOCK)
        assert (await dpu.retrieve(keys, into)).ok.all()
        assert np.array_equal(into, blocks)


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


def test_the_blocking_client_does_the_same(agent: EmulatedAgent, namespace: Namespace) -> None:
    with host_driver.connect_sync(agent.control, namespace=namespace) as dpu:
        keys, blocks = chain(dpu, 60), payload(60)
        assert dpu.store(keys, blocks).ok.all()
        assert dpu.match(keys) == 60
        into = dpu.alloc(60 * BLOCK).reshape(60, BLOCK)
        assert dpu.retrieve(keys, into).ok.all()
        assert np.array_equal(into, blocks)
        dpu.free(into)
        assert dpu.delete(keys[:1]).tolist() == [KeyStatus.OK]
        assert dpu.exist(keys[:2]).tolist() == [False, True]
        assert dpu.stats().store.block_bytes == SLOT
    with pytest.raises(SessionError):
        dpu.match(keys)


def test_threads_share_a_blocking_client(agent: EmulatedAgent, namespace: Namespace) -> None:
    with host_driver.connect_sync(agent.control, namespace=namespace) as dpu:
        wrong: list[object] = []

        def work(number: int) -> None:
            keys, blocks = chain(dpu, 5, 1000 * number), payload(5, seed=number)
            for _ in range(20):
                into = np.zeros_like(blocks)
                stored, got = dpu.store(keys, blocks).ok, dpu.retrieve(keys, into).ok
                if not (stored.all() and got.all() and np.array_equal(into, blocks)):
                    wrong.append((number, stored, got))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


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
