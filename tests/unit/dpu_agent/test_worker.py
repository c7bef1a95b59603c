"""The worker thread: calls in order between polls, and a death that nobody can overlook."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import pytest

from dpu_agent.runtime.worker import DataWorker, WorkerDeadError

LIMIT_S = 60.0


class Poller:
    """A server with nothing to do, until it is told to fail."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.error: BaseException | None = None

        self.turns = 0

    def run(self, spin_ns: int, limit_ns: int, wake_fd: int) -> None:
        self.threads.add(threading.get_ident())
        self.turns += 1
        if self.error is not None:
            raise self.error
        select.select([wake_fd], [], [], min(limit_ns, 1_000_000) / 1e9)

    def interrupt(self, wanted: bool) -> None:
        """The descriptor is enough for one that never spins."""


@pytest.fixture
def poller() -> Poller:
    return Poller()


@pytest.fixture
def worker(poller: Poller) -> Iterator[DataWorker]:
    made = DataWorker(poller, spin_ns=0, on_death=lambda error: None)
    made.start()
    yield made
    made.stop()


def blocker(worker: DataWorker) -> Callable[[], None]:
    """Block the worker in a call; the result ends that."""
    entered, leave = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        leave.wait(LIMIT_S)

    worker.call(block)
    entered.wait(LIMIT_S)
    return leave.set


def test_calls_run_in_order_in_the_thread_that_polls(worker: DataWorker, poller: Poller) -> None:
    ran: list[int] = []
    futures = [worker.call(lambda n=n: ran.append(n)) for n in range(100)]  # type: ignore[misc]
    thread = worker.call(threading.get_ident).result(LIMIT_S)
    assert all(future.done() for future in futures)
    assert ran == list(range(100))
    assert poller.threads == {thread}


def test_an_exception_of_a_call_is_its_callers_and_the_worker_lives(worker: DataWorker) -> None:
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0).result(LIMIT_S)
    assert worker.call(lambda: 5).result(LIMIT_S) == 5


def test_a_cancelled_call_does_not_run(worker: DataWorker) -> None:
    ran: list[int] = []
    unblock = blocker(worker)
    cancelled = worker.call(lambda: ran.append(1))
    assert cancelled.cancel()
    unblock()
    worker.call(lambda: ran.append(2)).result(LIMIT_S)
    assert ran == [2]
    with pytest.raises(CancelledError):
        cancelled.result(LIMIT_S)


def test_death_is_logged_reported_and_fails_all_calls(
    poller: Poller,
    caplog: pytest.LogCaptureFixture,
) -> None:
    deaths: list[BaseException] = []
    worker = DataWorker(poller, spin_ns=0, on_death=deaths.append)
    worker.start()
    unblock = blocker(worker)
    poller.error = RuntimeError("bug")
    pending = worker.call(lambda: None)
    unblock()
    with pytest.raises(WorkerDeadError):
        pending.result(LIMIT_S)
    with pytest.raises(WorkerDeadError):
        worker.call(lambda: None)
    worker.stop()
    assert deaths == [poller.error]
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)


def test_stop_runs_the_calls_made_before_and_refuses_later_ones(poller: Poller) -> None:
    worker = DataWorker(poller, spin_ns=0, on_death=lambda error: None)
    worker.start()
    unblock = blocker(worker)
    ran: list[int] = []
    worker.call(lambda: ran.append(1))
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    unblock()
    stopper.join(LIMIT_S)
    assert ran == [1]
    with pytest.raises(WorkerDeadError):
        worker.call(lambda: None)
