"""The agent over loopback NICs, with its real worker thread: sessions from opening to end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from dpu_agent.agent import Agent, open_blocks
from dpu_agent.config import SessionsConfig, StoreConfig
from dpu_agent.control.core import AgentCore, OpenedSession, SessionNews
from dpu_agent.data.counting import LATENCY_CLASSES, Found, TenantWord
from dpu_agent.metrics.figures import AgentFigures
from dpu_agent.runtime.worker import WorkerDeadError
from kvlane.capsule import Opcode, Response
from kvlane.errors import (
    CapacityError,
    ConfigError,
    DrainingError,
    NamespaceMismatchError,
    SessionError,
    SessionNotFoundError,
    VerbsError,
)
from kvlane.namespace import Namespace
from kvlane.verbs.enums import WrOpcode
from kvlane.verbs.protocols import QpEndpoint
from tests.support.capsule_host import BLOCK_BYTES, CapsuleHost, key_array
from tests.support.loopback_verbs import LoopbackFabric

BOOT_ID = bytes(range(200, 216))
NAMESPACE = Namespace(name="llama", kv_dtype="bfloat16")
LIMIT_S = 60.0
News = AsyncGenerator[tuple[SessionNews, str], None]


@dataclass
class World:
    fabric: LoopbackFabric
    agent: Agent

    async def open(self, *, namespace: Namespace = NAMESPACE) -> tuple[CapsuleHost, OpenedSession]:
        host = CapsuleHost(self.fabric.devices[1])
        opened = await self.agent.open_session(
            "test", namespace, host.qp.endpoint, [host.remote_region], 4
        )
        host.attach(opened.endpoint, opened.session_id)
        return host, opened

    def agent_qps(self) -> int:
        return sum(qp.device is self.fabric.devices[0] for qp in self.fabric.qps.values())


@asynccontextmanager
async def running(
    limits: SessionsConfig | None = None, *, more_lanes: int = 0
) -> AsyncIterator[World]:
    fabric = LoopbackFabric(devices=2 + more_lanes)
    devices = [fabric.devices[0], *fabric.devices[2:]]
    store = StoreConfig(capacity_bytes=16 * BLOCK_BYTES, block_bytes=BLOCK_BYTES)
    agent = Agent(
        open_blocks(devices, store, index_seed=1),
        limits or SessionsConfig(),
        boot_id=BOOT_ID,
        clock=time.monotonic_ns,
    )
    try:
        yield World(fabric, agent)
    finally:
        await agent.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), LIMIT_S)


async def answers(host: CapsuleHost, count: int) -> list[Response]:
    seen: list[Response] = []

    def enough() -> bool:
        seen.extend(host.responses())
        return len(seen) >= count

    await eventually(enough)
    return seen


async def test_commands_of_an_open_session_are_served() -> None:
    async with running() as world:
        core: AgentCore = world.agent  # the protocol is met
        host, _ = await world.open()
        host.send(Opcode.STORE, key_array(1), host.descriptors(0))
        (response,) = await answers(host, 1)
        assert (response.result, response.boot_id) == (1, BOOT_ID)
        stats = await core.stats()
        assert (stats.store.stored, stats.sessions, stats.commands) == (1, 1, {"STORE": 1})
        assert stats.namespaces == [(NAMESPACE, 1)]


async def test_the_depth_granted_is_the_smaller_one() -> None:
    async with running(SessionsConfig(max_queue_depth=2)) as world:
        _, opened = await world.open()
        assert opened.queue_depth == 2


async def test_a_closed_session_is_gone_from_both_planes() -> None:
    async with running() as world:
        _, opened = await world.open()
        await world.agent.close_session(opened.session_id, "test")
        assert world.agent_qps() == 0
        for call in (
            world.agent.close_session(opened.session_id, "again"),
            world.agent.register_memory(opened.session_id, []),
            world.agent.deregister_memory(opened.session_id, []),
        ):
            with pytest.raises(SessionNotFoundError):
                await call


async def test_a_watcher_hears_open_first_and_closed_last() -> None:
    async with running() as world:
        _, opened = await world.open()
        async with aclosing(world.agent.watch_session(opened.session_id)) as news:
            assert await anext(news) == (SessionNews.OPEN, "")
            await world.agent.close_session(opened.session_id, "enough")
            assert [item async for item in news] == [(SessionNews.CLOSED, "enough")]


async def test_the_end_of_the_watch_ends_the_session() -> None:
    async with running() as world:
        _, opened = await world.open()
        async with aclosing(world.agent.watch_session(opened.session_id)) as news:
            await anext(news)
        assert world.agent_qps() == 0
        assert (await world.agent.stats()).sessions == 0


async def test_a_cancelled_watch_ends_the_session() -> None:
    async with running() as world:
        _, opened = await world.open()
        started = asyncio.Event()

        async def watch() -> None:
            async with aclosing(world.agent.watch_session(opened.session_id)) as news:
                async for _ in news:
                    started.set()

        task = asyncio.create_task(watch())
        await started.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await eventually(lambda: world.agent_qps() == 0)


async def test_a_session_that_nobody_watches_is_closed_and_a_watched_one_is_not() -> None:
    async with running(SessionsConfig(watch_grace_ms=1)) as world:
        _, watched = await world.open()
        async with aclosing(world.agent.watch_session(watched.session_id)) as news:
            await anext(news)
            await world.open()
            await eventually(lambda: world.agent_qps() == 1)
            stats = await world.agent.stats()
            assert stats.sessions == 1
            await world.agent.register_memory(watched.session_id, [])


async def test_a_dead_host_is_reported_to_the_watcher() -> None:
    async with running() as world:
        host, opened = await world.open()
        async with aclosing(world.agent.watch_session(opened.session_id)) as news:
            await anext(news)
            world.fabric.hold(WrOpcode.RDMA_READ)
            host.send(Opcode.STORE, key_array(1), host.descriptors(0))
            world.fabric.progress()
            world.fabric.kill(world.fabric.devices[1])
            world.fabric.release()
            state, reason = await anext(news)
        assert state is SessionNews.CLOSED
        assert "RETRY_EXC_ERR" in reason
        assert (await world.agent.stats()).sessions == 0


async def test_draining_refuses_new_sessions_and_tells_present_and_later_watchers() -> None:
    async with running() as world:
        _, first = await world.open()
        _, second = await world.open()
        early: News = world.agent.watch_session(first.session_id)
        await anext(early)
        assert await world.agent.drain() == 2
        late: News = world.agent.watch_session(second.session_id)
        await anext(late)
        for news in (early, late):
            assert (await anext(news))[0] is SessionNews.DRAINING
        with pytest.raises(DrainingError):
            await world.open()
        await world.agent.close_session(first.session_id, "done")
        assert await anext(early) == (SessionNews.CLOSED, "done")
        await late.aclose()
        await early.aclose()


async def test_stopping_tells_the_watchers() -> None:
    async with running() as world:
        _, opened = await world.open()
        news: News = world.agent.watch_session(opened.session_id)
        await anext(news)
        await world.agent.end_sessions("the agent is stopping")
        states = [state async for state, _ in news]
        assert states == [SessionNews.DRAINING, SessionNews.CLOSED]


async def test_refusals_leave_nothing_behind() -> None:
    async with running(SessionsConfig(max_sessions=1)) as world:
        host = CapsuleHost(world.fabric.devices[1])
        bad = replace(host.qp.endpoint, gid=b"short")
        with pytest.raises(VerbsError):
            await world.agent.open_session("test", NAMESPACE, bad, [], 4)
        with pytest.raises(ConfigError, match="slots"):
            await world.open(namespace=Namespace(block_bytes=BLOCK_BYTES + 1))
        await world.agent.stats()
        assert world.agent_qps() == 0
        assert (await world.agent.stats()).namespaces == []
        await world.open()
        with pytest.raises(CapacityError):
            await world.open()


async def test_another_descriptor_under_the_same_name_is_refused() -> None:
    async with running() as world:
        await world.open()
        with pytest.raises(NamespaceMismatchError, match="kv_dtype"):
            await world.open(namespace=replace(NAMESPACE, kv_dtype="float8_e4m3"))


@pytest.mark.parametrize("when", ["waiting", "running"])
async def test_an_open_that_is_cancelled_leaves_no_session(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as world:
        entered, leave = threading.Event(), threading.Event()
        server = world.agent._lanes[0].server
        server_open = server.open

        def block() -> None:
            entered.set()
            leave.wait(LIMIT_S)

        def open_after_block(*arguments: Any) -> QpEndpoint:
            block()
            return server_open(*arguments)

        if when == "waiting":
            world.agent._lanes[0].worker.call(block)
            await asyncio.to_thread(entered.wait, LIMIT_S)
        else:
            monkeypatch.setattr(server, "open", open_after_block)
        opening = asyncio.create_task(world.open())
        await asyncio.sleep(0)
        await asyncio.to_thread(entered.wait, LIMIT_S)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
        leave.set()
        assert (await world.agent.stats()).sessions == 0
        assert world.agent_qps() == 0


async def test_memory_is_taken_back_after_its_last_command() -> None:
    async with running() as world:
        host, opened = await world.open()
        world.fabric.hold(WrOpcode.RDMA_READ)
        host.send(Opcode.STORE, key_array(1), host.descriptors(0))
        await eventually(
            lambda: len(world.agent._lanes[0].server._by_id[host.session]._running()) == 1
        )
        rkeys = [host.region.rkey]
        taking = asyncio.create_task(world.agent.deregister_memory(opened.session_id, rkeys))
        await asyncio.sleep(0)  # the call is on its way
        await world.agent.stats()  # and has run, as this one came after it
        assert not taking.done()
        with pytest.raises(SessionError, match="not registered"):
            await world.agent.deregister_memory(opened.session_id, rkeys)
        world.fabric.release()
        await asyncio.wait_for(taking, LIMIT_S)
        (response,) = await answers(host, 1)
        assert response.result == 1


async def test_session_ids_differ_between_starts() -> None:
    async with running() as world:
        _, opened = await world.open()
        assert opened.session_id >> 32 == int.from_bytes(BOOT_ID[:4], "big") >> 1


async def test_blocks_longer_than_the_device_can_move_are_refused() -> None:
    (device,) = LoopbackFabric(devices=1).devices
    device.max_message_bytes = 4096
    with pytest.raises(ConfigError, match="smaller blocks"):
        open_blocks([device], StoreConfig(capacity_bytes=1 << 20, block_bytes=8192), index_seed=1)


async def test_a_dead_worker_is_reported_and_calls_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as world:
        await world.open()
        bug = RuntimeError("bug")

        def fail(spin_ns: int, limit_ns: int, wake_fd: int) -> None:
            raise bug

        monkeypatch.setattr(world.agent._lanes[0].server, "run", fail)
        assert await asyncio.wait_for(world.agent.worker_death, LIMIT_S) is bug
        with pytest.raises(WorkerDeadError):
            await world.agent.stats()


def lanes_in_use(world: World) -> list[int]:
    """Queue pairs of the agent at each of its ports."""
    ports = [lane.device for lane in world.agent._lanes]
    return [sum(qp.device is port for qp in world.fabric.qps.values()) for port in ports]


async def test_sessions_go_to_the_lane_that_has_the_fewest() -> None:
    async with running(more_lanes=2) as world:
        opened = [(await world.open())[1] for _ in range(7)]
        assert lanes_in_use(world) == [3, 2, 2]
        for index in (1, 4):
            await world.agent.close_session(opened[index].session_id, "test")
        assert lanes_in_use(world) == [3, 0, 2]
        for _ in range(2):
            await world.open()
        assert lanes_in_use(world) == [3, 2, 2]


async def test_what_one_lane_stores_the_others_retrieve_and_all_is_counted() -> None:
    async with running(more_lanes=1) as world:
        hosts = [(await world.open())[0] for _ in range(2)]
        hosts[0].fill([0])
        hosts[0].send(Opcode.STORE, key_array(1), hosts[0].descriptors(0))
        await answers(hosts[0], 1)
        hosts[1].send(Opcode.RETRIEVE, key_array(1), hosts[1].descriptors(3))
        (response,) = await answers(hosts[1], 1)
        assert response.result == 1
        assert (hosts[1].block(3) == hosts[0].block(0)).all()
        stats = await world.agent.stats()
        assert stats.commands == {"STORE": 1, "RETRIEVE": 1}
        assert (stats.store.stored, stats.store.hits, stats.store.pinned) == (1, 1, 0)


async def test_a_session_that_fails_leaves_its_lane() -> None:
    async with running(more_lanes=1) as world:
        host, _ = await world.open()
        await world.open()
        world.agent._lanes[0].server._on_failure(host.session, "it broke")
        await eventually(lambda: world.agent._lanes[0].sessions == 0)
        await world.open()
        assert world.agent._lanes[0].sessions == 1


async def test_one_dead_worker_ends_the_agent_whichever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: int) -> None:
        raise RuntimeError("out of order")

    async with running(more_lanes=1) as world:
        for lane in world.agent._lanes:
            monkeypatch.setattr(lane.server, "run", fail)
            lane.worker.call(lambda: None)
        error = await asyncio.wait_for(world.agent.worker_death, LIMIT_S)
        assert str(error) == "out of order"


async def test_figures_are_the_sums_over_lanes_and_outlive_sessions() -> None:
    async with running(more_lanes=1) as world:
        opened = [await world.open(namespace=Namespace(name=name)) for name in ("a", "b", "a")]
        for host, _ in opened:
            host.send(Opcode.EXIST, key_array(1, 2))
            await answers(host, 1)
        for _, session in opened:
            await world.agent.close_session(session.session_id, "test")
        figures = await asyncio.to_thread(world.agent.figures)
        assert figures.data.commands == {"EXIST": 3}
        assert figures.data.latencies[:, :LATENCY_CLASSES].sum() == 3
        assert figures.tenants == {0: "a", 1: "b"}
        nowhere = TenantWord.EXIST_KEYS + Found.NOWHERE
        assert figures.data.tenants[:3, nowhere].tolist() == [4, 2, 0]
        assert figures.data.nic_counters == world.agent._lanes[0].device.counters()
        assert (figures.sessions, figures.data.in_flight, figures.nvme) == (0, 0, None)


async def test_figures_are_to_be_had_while_sessions_come_and_go_and_at_the_end() -> None:
    pages: list[AgentFigures] = []
    over = threading.Event()

    def read_on() -> None:
        while not over.is_set():
            pages.append(world.agent.figures())

    async with running(more_lanes=1) as world:
        reading = asyncio.create_task(asyncio.to_thread(read_on))
        for number in range(20):
            host, session = await world.open(namespace=Namespace(name=f"n{number}"))
            host.send(Opcode.MATCH, key_array(number))
            await answers(host, 1)
            await world.agent.close_session(session.session_id, "test")
    over.set()
    await reading
    pages.append(world.agent.figures())
    assert pages[-1].data.commands == {"MATCH": 20}
    assert pages[-1].data.nic_counters == {}
    for earlier, later in pairwise(pages):
        assert (later.data.latencies >= earlier.data.latencies).all()
        assert (later.data.tenants >= earlier.data.tenants).all()
