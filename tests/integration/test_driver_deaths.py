"""Held: whichever end dies, hangs or goes away, the other is left with nothing of it.

Agent and driver are real processes; each test has an agent of its own to hurt.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import host_driver
from host_driver import DriverConfig, KeyStatus, opening
from host_driver.control import ControlClient
from host_driver.emulated import EmulatedAgent, EmulatedOptions
from kvlane.control.v1 import control_pb2
from kvlane.errors import (
    AgentUnreachableError,
    DeadlineError,
    TransferError,
    VerbsError,
)
from tests.support.driver_calls import (
    PATIENCE_S,
    chain,
    freeze,
    payload,
    start_agent,
    until,
    wait_until,
)
from tests.support.repository import SOURCE_ROOTS

SLOT = 1 << 20
SLOW_LINK = "delay_ms=20"
"""So that transfers take long enough to be met under way."""

DRIVER = """
import sys
import host_driver
dpu = host_driver.connect_sync(sys.argv[1])
keys = host_driver.block_chain(dpu.root_key, list(range(64)), 4)
blocks = dpu.alloc(16 << 20).reshape(16, 1 << 20)
print("connected", flush=True)
while True:
    dpu.store(keys, blocks)
    if sys.argv[2] == "pinned":
        while True:
            dpu.retrieve(keys, blocks)
    dpu.delete(keys)
"""


@pytest.fixture
def agent() -> Iterator[EmulatedAgent]:
    started = start_agent()
    yield started
    os.kill(started.pid, signal.SIGCONT)
    started.close()


@pytest.fixture
def slow_agent() -> Iterator[EmulatedAgent]:
    started = start_agent(EmulatedOptions(capacity=64 << 20, block_bytes=SLOT, faults=SLOW_LINK))
    yield started
    started.close()


def operator_of(agent: EmulatedAgent) -> Iterator[ControlClient]:
    client = ControlClient(agent.control)
    yield client
    client.close()


@pytest.fixture
def operator(agent: EmulatedAgent) -> Iterator[ControlClient]:
    yield from operator_of(agent)


@pytest.fixture
def slow_operator(slow_agent: EmulatedAgent) -> Iterator[ControlClient]:
    yield from operator_of(slow_agent)


def gauge(stats: control_pb2.GetStatsResponse, name: str) -> int:
    return int(getattr(stats.store, name))


# A driver dies


@pytest.mark.parametrize("held", ["writing", "pinned"])
def test_a_killed_driver_leaves_no_session_and_holds_no_block(
    held: str, slow_agent: EmulatedAgent, slow_operator: ControlClient
) -> None:
    path = os.pathsep.join(str(root) for root in SOURCE_ROOTS)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, slow_agent.control, held],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"connected\n"

        def stopped_while_it_holds() -> bool:
            if not gauge(slow_operator.stats(), held):
                return False
            freeze(driver.pid)
            if gauge(slow_operator.stats(), held):
                return True
            os.kill(driver.pid, signal.SIGCONT)
            return False

        wait_until(stopped_while_it_holds)
        assert slow_operator.stats().sessions == 1
    finally:
        driver.kill()
        driver.communicate()
    wait_until(lambda: slow_operator.stats().sessions == 0)
    stats = slow_operator.stats()
    assert (gauge(stats, "writing"), gauge(stats, "pinned")) == (0, 0)
    with host_driver.connect_sync(slow_agent.control) as dpu:
        keys = chain(dpu, 16)
        dpu.delete(keys)
        assert dpu.store(keys, payload(16, SLOT)).statuses.tolist() == [KeyStatus.OK] * 16


# An agent dies


async def test_an_agent_killed_while_blocks_move_ends_every_call_with_what_is_known(
    slow_agent: EmulatedAgent, slow_operator: ControlClient
) -> None:
    async with await host_driver.connect(slow_agent.control) as dpu:
        keys, blocks = chain(dpu, 32), payload(32, SLOT)
        assert (await dpu.store(keys[:16], blocks[:16])).ok.all()
        into = dpu.alloc(16 * SLOT).reshape(16, SLOT)
        store = asyncio.ensure_future(dpu.store(keys[16:], blocks[16:]))
        retrieve = asyncio.ensure_future(dpu.retrieve(keys[:16], into))

        def both_are_under_way() -> bool:
            stats = slow_operator.stats()
            return gauge(stats, "writing") > 0 and gauge(stats, "pinned") > 0

        for _ in range(10_000):
            if await asyncio.to_thread(both_are_under_way):
                break
        else:
            pytest.fail("no transfer was met under way")
        os.kill(slow_agent.pid, signal.SIGKILL)
        for result in await asyncio.gather(store, retrieve, return_exceptions=True):
            assert isinstance(result, (TransferError, DeadlineError))
            assert len(result.results.statuses) == 16
            assert set(result.results.statuses) <= {KeyStatus.OK, KeyStatus.ABORTED}
            assert KeyStatus.ABORTED in result.results.statuses
        into[:] = 0xAB
        await asyncio.sleep(0.05)
        assert (into == 0xAB).all()


# An agent hangs


async def test_closing_does_not_wait_for_every_region_of_an_agent_that_hangs(
    agent: EmulatedAgent,
) -> None:
    config = DriverConfig(control_timeout_ms=1000)
    dpu = await host_driver.connect(agent.control, config=config)
    buffers = [dpu.alloc(64) for _ in range(100)]
    assert (await dpu.store(chain(dpu, 100), buffers)).ok.all()
    freeze(agent.pid)
    freed = [dpu.free(buffer) for buffer in buffers]
    await asyncio.wait_for(dpu.close(), 25)  # 100 calls of 1 s in 2 threads would take 50 s
    await asyncio.gather(*freed)


# A caller goes away


def test_a_cancelled_connect_whose_loop_ends_leaves_nothing(
    agent: EmulatedAgent, operator: ControlClient
) -> None:
    async def give_up_at_once() -> None:
        connecting = asyncio.ensure_future(host_driver.connect(agent.control))
        await asyncio.sleep(0.001)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    asyncio.run(give_up_at_once())
    wait_until(lambda: operator.stats().sessions == 0)
    wait_until(lambda: not any(t.name == "kvlane-driver" for t in threading.enumerate()))


async def test_a_connect_that_is_cancelled_as_it_succeeds_leaves_nothing(
    agent: EmulatedAgent, operator: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = threading.Event()
    run = opening.Opening.run

    def run_and_tell(self: opening.Opening) -> object:
        try:
            return run(self)
        finally:
            opened.set()

    monkeypatch.setattr(opening.Opening, "run", run_and_tell)
    connecting = asyncio.ensure_future(host_driver.connect(agent.control))
    await asyncio.sleep(0)
    assert opened.wait(PATIENCE_S)  # the loop is not told before the cancellation
    assert operator.stats().sessions == 1
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await until(lambda: operator.stats().sessions == 0)


# Faults of the driver itself


async def test_a_fault_while_the_agent_is_told_of_memory_ends_the_call(
    agent: EmulatedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("Cannot invoke RPC on closed channel!")

    monkeypatch.setattr(ControlClient, "register_memory", broken)
    async with await host_driver.connect(agent.control) as dpu:
        rows = dpu.alloc(64).reshape(1, 64)
        with pytest.raises(TransferError, match="closed channel"):
            await asyncio.wait_for(dpu.store(chain(dpu, 1), rows), PATIENCE_S)
        assert await dpu.match(chain(dpu, 1)) == 0


@pytest.mark.parametrize("closing_works", [True, False])
@pytest.mark.parametrize("error", [OSError("too many open files"), VerbsError("no queue pair")])
def test_an_opening_that_fails_late_says_why_and_closes_the_session(
    error: Exception,
    closing_works: bool,
    agent: EmulatedAgent,
    operator: ControlClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: object) -> None:
        raise error

    def unreachable(*arguments: object) -> None:
        raise AgentUnreachableError("nobody there")

    monkeypatch.setattr(opening, "_start_engine", broken)
    if not closing_works:
        monkeypatch.setattr(ControlClient, "close_session", unreachable)
    with pytest.raises(type(error), match=str(error)):
        host_driver.connect_sync(agent.control)
    assert operator.stats().sessions == (0 if closing_works else 1)
