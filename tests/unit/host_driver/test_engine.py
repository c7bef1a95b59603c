"""Held: whoever waits for an operation hears of its end, whatever breaks in who drives."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from host_driver.commands import ExistOperation, Request
from host_driver.engine import Engine
from kvlane.errors import SessionError, TransferError
from kvlane.verbs.calls import VerbCalls
from tests.support.loopback_verbs import LoopbackDevice
from tests.support.scripted_agent import Received, Rig

PATIENCE_S = 20.0
FOR_EVER_S = 3 * PATIENCE_S


class DeepSleeper:
    """A NIC that sleeps until it is woken, however short the time it was told."""

    def __init__(self, inner: LoopbackDevice) -> None:
        self._inner = inner
        inner.wait = lambda timeout_ms, wake_fd=-1: self.wait(  # type: ignore[method-assign]
            timeout_ms, wake_fd
        )
        self._kick = os.eventfd(0, os.EFD_NONBLOCK)
        self.asleep: set[threading.Thread] = set()
        self.error: Exception | None = None

    @property
    def calls(self) -> VerbCalls:
        return self._inner.calls

    def take_fault(self) -> BaseException | None:
        return self._inner.take_fault()

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        self.asleep.add(threading.current_thread())
        watched = [fd for fd in (self._kick, wake_fd) if fd >= 0]
        select.select(watched, [], [], FOR_EVER_S)
        self.asleep.discard(threading.current_thread())
        if self.error is not None:
            raise self.error

    def kick(self) -> None:
        """Sleep no more."""
        os.eventfd_write(self._kick, 1)

    def close(self) -> None:
        os.close(self._kick)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def device(rig: Rig) -> Iterator[DeepSleeper]:
    made = DeepSleeper(rig.device)
    yield made
    made.close()


@pytest.fixture
def engine(rig: Rig, device: DeepSleeper) -> Iterator[Engine]:
    started = Engine(device, rig.queue, time.monotonic_ns)  # type: ignore[arg-type]
    yield started
    device.kick()
    started.stop(SessionError("the test is over"))


def is_fast_asleep(engine: Engine, device: DeepSleeper) -> bool:
    """Whether the engine's thread sleeps, and no wake-up is under way to it."""
    if engine._thread not in device.asleep:
        return False
    return not select.select([engine._wake_fd], [], [], 0)[0]


def exist() -> ExistOperation:
    return ExistOperation(Request(np.zeros((1, 32), np.uint8), 1 << 62))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not come about")
        time.sleep(0.001)


def submitted(engine: Engine) -> tuple[ExistOperation, threading.Event]:
    operation, ended = exist(), threading.Event()
    operation.when_ended(ended.set)
    engine.submit(operation)
    return operation, ended


def first_command(rig: Rig) -> Received:
    received: list[Received] = []

    def came() -> bool:
        received.extend(rig.agent.commands())
        return bool(received)

    until(came)
    return received[0]


def test_a_driver_asleep_is_woken_for_an_operation_of_another_thread(
    rig: Rig, device: DeepSleeper, engine: Engine
) -> None:
    operations = [exist(), exist()]
    callers = [threading.Thread(target=engine.run, args=(made,)) for made in operations]
    received: list[Received] = []

    def came(count: int) -> bool:
        received.extend(rig.agent.commands())
        return len(received) == count

    for number, caller in enumerate(callers, start=1):
        caller.start()
        until(lambda number=number: came(number))  # type: ignore[misc]
        until(lambda: callers[0] in device.asleep)
    for item in received:
        rig.agent.answer(item)
    device.kick()
    for caller in callers:
        caller.join(PATIENCE_S)
    assert all(operation.result().all() for operation in operations)


def test_a_nic_that_cannot_be_waited_for_ends_what_is_in_flight(
    device: DeepSleeper, engine: Engine
) -> None:
    device.error = OSError(9, "Bad file descriptor")
    operation, ended = submitted(engine)
    assert ended.wait(PATIENCE_S)
    assert isinstance(operation.error, TransferError)
    late, late_ended = submitted(engine)
    assert late_ended.wait(PATIENCE_S)
    assert isinstance(late.error, TransferError)


def test_an_interrupt_that_loses_completions_ends_every_call(
    rig: Rig, device: DeepSleeper, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, other_ended = submitted(engine)
    received = first_command(rig)
    poll = rig.completions.poll

    def interrupted(out: Any) -> int:
        count = poll(out)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return count

    monkeypatch.setattr(rig.completions, "poll", interrupted)
    until(lambda: is_fast_asleep(engine, device))  # else its thread takes the answer
    rig.agent.answer(received)
    mine = exist()
    with pytest.raises(KeyboardInterrupt):
        engine.run(mine)
    assert other_ended.wait(PATIENCE_S)
    assert isinstance(other.error, TransferError)
    assert isinstance(mine.error, TransferError)


def test_an_interrupted_call_that_only_slept_leaves_the_connection_alone(
    rig: Rig, device: DeepSleeper, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = device.wait

    def interrupted(timeout_ms: float, wake_fd: int = -1) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        wait(timeout_ms, wake_fd)

    monkeypatch.setattr(device, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(exist())
    (received,) = rig.agent.commands()
    rig.agent.answer(received)
    device.kick()
    operation, ended = submitted(engine)
    rig.agent.answer(first_command(rig))
    assert ended.wait(PATIENCE_S)
    assert operation.error is None


def test_stopping_ends_what_is_in_flight_and_what_comes_later(
    rig: Rig, device: DeepSleeper
) -> None:
    engine = Engine(device, rig.queue, time.monotonic_ns)  # type: ignore[arg-type]
    operation, ended = submitted(engine)
    engine.stop(SessionError("closed"))
    assert ended.is_set()
    assert isinstance(operation.error, SessionError)
    late = exist()
    engine.run(late)
    assert isinstance(late.error, SessionError)


def test_news_of_another_thread_need_not_wait_for_a_driver_who_never_rests(
    rig: Rig, device: DeepSleeper, engine: Engine
) -> None:
    mine = exist()
    caller = threading.Thread(target=engine.run, args=(mine,))
    caller.start()
    first_command(rig)
    until(lambda: caller in device.asleep)
    engine.fail(TransferError("the session has ended"))
    caller.join(PATIENCE_S)
    assert isinstance(mine.error, TransferError)


def test_a_signal_handler_of_who_drives_may_stop_the_engine(
    rig: Rig, device: DeepSleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(device, rig.queue, time.monotonic_ns)  # type: ignore[arg-type]
    wait = device.wait

    def stopping(timeout_ms: float, wake_fd: int = -1) -> None:
        if threading.current_thread() is threading.main_thread():
            engine.stop(SessionError("closed"))
        else:
            wait(timeout_ms, wake_fd)

    monkeypatch.setattr(device, "wait", stopping)
    operation = exist()
    engine.run(operation)
    assert isinstance(operation.error, SessionError)


def test_a_caller_returns_while_another_still_drives(
    rig: Rig, device: DeepSleeper, engine: Engine
) -> None:
    """Who only waits is told of his end, though who drives has a long way to go."""
    driving, waiting = exist(), exist()
    callers = [threading.Thread(target=engine.run, args=(made,)) for made in (driving, waiting)]
    received: list[Received] = []

    def came(count: int) -> bool:
        received.extend(rig.agent.commands())
        return len(received) == count

    for number, caller in enumerate(callers, start=1):
        caller.start()
        until(lambda number=number: came(number))  # type: ignore[misc]
    until(lambda: engine._waiting == 1)
    rig.agent.answer(received[1])
    device.kick()
    callers[1].join(PATIENCE_S)
    assert waiting.ended
    assert not callers[1].is_alive()
    assert not driving.ended
    rig.agent.answer(received[0])
    callers[0].join(PATIENCE_S)
    assert driving.ended
    assert engine._waiting == 0
