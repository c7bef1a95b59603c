"""The thread that owns a lane of the data path: device, completion queue, sessions.

None of these has a lock of its own, because no other thread touches them. Others hand in closures
with ``call``; these run between two turns of the server's loop.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kvlane.errors import TransferError

_TURN_NS = 100_000_000
"""A bound only: calls end a turn."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Server(Protocol):
    """What the worker drives."""

    def run(self, spin_ns: int, limit_ns: int, wake_fd: int) -> None:
        """Serve for up to ``limit_ns``, less when interrupted; sleep when there is nothing to do
        for ``spin_ns``, until ``wake_fd`` is readable at the latest."""

    def interrupt(self, wanted: bool) -> None:
        """Let ``run`` return soon, or go on."""


class WorkerDeadError(TransferError):
    """The data worker has ended; the agent cannot go on and must be started again."""


class DataWorker:
    """Runs ``server.run`` and calls, for as long as it lives.

    An exception that comes out of the loop is a fault of the agent. The worker does not
    hide it by going on: it logs it, fails all calls and reports it by ``on_death``.
    """

    def __init__(
        self,
        server: Server,
        *,
        spin_ns: int,
        on_death: Callable[[BaseException], None],
    ) -> None:
        """``on_death(error)`` runs in the worker's thread, as the last thing it does."""
        self._server = server
        self._spin_ns = spin_ns
        self._on_death = on_death
        self._inbox: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._gate = threading.Lock()
        self._open = True
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # A daemon, so that a main thread that dies is not kept waiting for it.
        self._thread = threading.Thread(target=self._run, name="kvlane-data", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` in the worker; the future brings its result or its exception."""
        future: Future[T] = Future()
        with self._gate:
            if not self._open:
                raise WorkerDeadError("the agent's data worker has ended; start the agent again")
            self._inbox.append((future, function))
            self._interrupt()
        return future

    def stop(self) -> None:
        """End the thread after the calls made so far, and wait for that."""
        with self._gate:
            self._open = False
            self._interrupt()
        self._thread.join()
        os.close(self._wake_fd)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            _log.critical("the data worker has died", exc_info=True)
            self._fail_calls(error)
            self._on_death(error)

    def _interrupt(self) -> None:
        """Bring the worker here, whether it is at work or asleep."""
        self._server.interrupt(True)
        os.eventfd_write(self._wake_fd, 1)

    def _loop(self) -> None:
        while self._open or self._inbox:
            self._server.run(self._spin_ns, _TURN_NS, self._wake_fd)
            # Before the calls are taken: one that comes later interrupts anew.
            self._server.interrupt(False)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            self._run_calls()

    def _run_calls(self) -> None:
        """Run the calls that are there now; those that come meanwhile wait for a turn."""
        for _ in range(len(self._inbox)):
            future, function = self._inbox.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def _fail_calls(self, cause: BaseException) -> None:
        with self._gate:
            self._open = False
        while self._inbox:
            future, _ = self._inbox.popleft()
            if future.set_running_or_notify_cancel():
                error = WorkerDeadError("the agent's data worker has died; see the agent's log")
                error.__cause__ = cause
                future.set_exception(error)
