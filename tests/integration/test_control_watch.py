"""A session lives and dies with its watch, whichever side goes away and however."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from dpu_agent.control.server import ControlServer, serve
from host_driver.control import ControlClient
from host_driver.session_watch import SessionState
from kvlane.control.v1 import control_pb2
from kvlane.errors import AgentUnreachableError
from tests.support.control_plane import GIVE_UP_S, NewsLog, client_of, open_session, stub_of
from tests.support.cuttable_relay import CuttableRelay
from tests.support.fake_core import FakeCore, serve_until_killed


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
async def server(core: FakeCore) -> AsyncIterator[ControlServer]:
    server = await serve(core, "127.0.0.1:0")
    yield server
    await server.stop(0)


@pytest.fixture
async def client(server: ControlServer) -> AsyncIterator[ControlClient]:
    async with client_of(server.address) as client:
        yield client


@pytest.fixture
def agent_process() -> Iterator[tuple[multiprocessing.process.BaseProcess, str]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_until_killed, args=(there,), daemon=True)
    process.start()
    yield process, here.recv()
    process.kill()
    process.join()


async def test_watch_tells_the_life_of_a_session(core: FakeCore, client: ControlClient) -> None:
    opened = await open_session(client)
    log = NewsLog()
    watch = client.watch(opened.name, log)
    assert await log.next() == (SessionState.OPEN, "opened")
    assert await asyncio.to_thread(client.drain) == 1
    assert await log.next() == (SessionState.DRAINING, "the agent is draining")
    await asyncio.to_thread(client.close_session, opened.name)
    assert await log.next() == (SessionState.CLOSED, "closed by the host")
    await asyncio.to_thread(watch.close, GIVE_UP_S * 1000)
    assert not log.has_more()


async def test_watch_of_an_unknown_session_is_closed_news(client: ControlClient) -> None:
    log = NewsLog()
    client.watch("sessions/99", log)
    state, reason = await log.next()
    assert state is SessionState.CLOSED
    assert "no session 99" in reason


async def test_session_ends_when_its_client_closes(core: FakeCore, client: ControlClient) -> None:
    log = NewsLog()
    opened = await open_session(client)
    session = core.sessions[opened.session_id]
    client.watch(opened.name, log)
    assert (await log.next())[0] is SessionState.OPEN
    await asyncio.to_thread(client.close)
    assert await log.next() == (SessionState.CLOSED, "closed by this client")
    await asyncio.wait_for(session.ended.wait(), GIVE_UP_S)
    assert core.end_reasons == {opened.session_id: "the watch ended"}
    assert not log.has_more()


async def test_session_ends_when_its_client_vanishes_without_a_word(
    core: FakeCore, server: ControlServer, client: ControlClient
) -> None:
    opened = await open_session(client)
    session = core.sessions[opened.session_id]
    relay = CuttableRelay(server.address)
    async with stub_of(await relay.start()) as stub:
        call = stub.WatchSession(control_pb2.WatchSessionRequest(name=opened.name))
        assert (await call.read()).state == control_pb2.SESSION_STATE_OPEN
        relay.cut()
        await asyncio.wait_for(session.ended.wait(), GIVE_UP_S)


async def test_stopping_the_server_ends_the_watch_and_the_session(
    core: FakeCore, server: ControlServer, client: ControlClient
) -> None:
    opened = await open_session(client)
    session = core.sessions[opened.session_id]
    log = NewsLog()
    watch = client.watch(opened.name, log)
    assert (await log.next())[0] is SessionState.OPEN
    await server.stop(0)
    assert (await log.next())[0] is SessionState.LOST
    await asyncio.wait_for(session.ended.wait(), GIVE_UP_S)
    await asyncio.to_thread(watch.close, GIVE_UP_S * 1000)
    assert not log.has_more()


async def test_killed_agent_is_lost_news_and_then_unreachable(
    agent_process: tuple[multiprocessing.process.BaseProcess, str],
) -> None:
    process, address = agent_process
    async with client_of(address) as client:
        opened = await open_session(client)
        log = NewsLog()
        watch = client.watch(opened.name, log)
        assert (await log.next())[0] is SessionState.OPEN
        process.kill()
        state, reason = await log.next()
        assert state is SessionState.LOST
        assert address in reason
        await asyncio.to_thread(watch.close, GIVE_UP_S * 1000)
        assert not log.has_more()
        with pytest.raises(AgentUnreachableError):
            await asyncio.to_thread(client.stats)


async def test_callback_may_close_its_own_watch(core: FakeCore, client: ControlClient) -> None:
    opened = await open_session(client)
    session = core.sessions[opened.session_id]
    log = NewsLog()

    def on_news(state: SessionState, reason: str) -> None:
        log(state, reason)
        client.close()

    client.watch(opened.name, on_news)
    assert (await log.next())[0] is SessionState.OPEN
    assert await log.next() == (SessionState.CLOSED, "closed by this client")
    await asyncio.wait_for(session.ended.wait(), GIVE_UP_S)


async def test_failing_callback_still_gets_the_last_news_and_ends_the_session(
    core: FakeCore, client: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_session(client)
    session = core.sessions[opened.session_id]
    log = NewsLog()
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))

    def on_news(state: SessionState, reason: str) -> None:
        log(state, reason)
        if not state.terminal:
            raise ZeroDivisionError

    watch = client.watch(opened.name, on_news)
    assert (await log.next())[0] is SessionState.OPEN
    assert (await log.next())[0] is SessionState.LOST
    await asyncio.to_thread(watch.close, GIVE_UP_S * 1000)
    assert reported == [ZeroDivisionError]
    await asyncio.wait_for(session.ended.wait(), GIVE_UP_S)
