"""Who drives the queue: a thread of its own, or the caller who waits for a result.

The thread is always there, because a software NIC must acknowledge and retransmit also
while nobody calls. A blocking caller drives by himself while he waits, which saves two
changes of thread an operation; the engine's thread keeps out of his way meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from host_driver.commands import Operation
from host_driver.queue import CommandQueue
from host_driver.queue_records import Left
from kvlane.errors import KvlaneError, TransferError
from kvlane.seams import Clock
from kvlane.verbs.protocols import Device

BUSY_WAIT_MS = 5.0
"""Longest sleep while commands are in flight: deadlines are looked at that often."""

IDLE_WAIT_MS = 100.0
"""Longest sleep while there is nothing to do."""

STAY_LIMIT_NS = int(BUSY_WAIT_MS * 1_000_000)
"""Longest stay in compiled code, so that deadlines and signals are seen."""

PARKED_WAIT_S = 0.005
"""How often the engine's thread looks whether a blocking caller still drives."""

LEAVE_LIMIT_S = 1.0
"""How long a stop waits for the blocking caller who drives. He leaves at once, unless it is
he who stops the engine, in a signal handler."""

_logger = logging.getLogger(__name__)


class Engine:
    """Drives one command queue. Any thread may call any method."""

    def __init__(self, device: Device, queue: CommandQueue, clock: Clock, spin_us: int = 0) -> None:
        self._spin_ns = spin_us * 1_000
        self._device = device
        self._queue = queue
        self._clock = clock
        # Both may be entered again by a signal handler that closes the connection.
        self._lock = threading.RLock()
        """Held by whoever touches the queue; who drives holds it nearly always."""
        self._gate = threading.RLock()
        """Held by who is not driving and wants ``_lock``: the driver passes it every time, or
        else he would have the lock again before anybody has woken."""
        self._inbox: deque[Operation[Any]] = deque()
        self._turn = threading.Condition()
        self._driver: Operation[Any] | None = None
        """What the blocking caller who drives waits for; others wait for ``_turn``, its guard."""
        self._driver_thread = 0
        self._waiting = 0
        """How many wait for ``_turn``: where nobody does, nobody is told."""
        self._stopping = threading.Event()
        self._wake_lock = threading.RLock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="kvlane-driver", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> KvlaneError | None:
        """Why the connection was given up, if it was."""
        return self._queue.failure

    def submit(self, operation: Operation[Any]) -> None:
        """Hand an operation to the engine's thread; its callbacks come from there."""
        self._accept(operation)
        self._wake()

    def run(self, operation: Operation[Any]) -> None:
        """Submit an operation and drive until it has ended."""
        operation.when_ended(self._announce_turn)
        self._accept(operation)
        if self._driver is not None:
            self._wake()  # he may have gone to sleep before he saw this operation
        try:
            while not operation.ended:
                if self._take_turn(operation):
                    self._drive_until_ended(operation)
        finally:
            self._leave_turn(operation)

    def fail(self, error: KvlaneError) -> None:
        """Give the connection up from outside, such as on news from the agent."""
        with self._undriven():
            self._queue.fail(error)
        self._wake()

    def stop(self, error: KvlaneError) -> None:
        """End the thread; operations that have not ended end with ``error``."""
        self._stopping.set()
        self._wake()
        # In a signal handler of who drives, the thread may wait for the lock that he holds.
        driving = self._driver_thread == threading.get_ident()
        self._thread.join(LEAVE_LIMIT_S if driving else None)
        with self._undriven():
            self._queue.fail(error)
        self._end_rejected()
        self._wake()
        with self._turn:
            self._await(lambda: self._driver is None, LEAVE_LIMIT_S)
        with self._wake_lock:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def _accept(self, operation: Operation[Any]) -> None:
        self._inbox.append(operation)
        if self._queue.failure is not None:
            self._end_rejected()

    def _end_rejected(self) -> None:
        """End all that a failed queue owes an end, since nobody drives it any more."""
        with self._undriven():
            if self._queue.failure is not None:
                self._queue.fail(self._queue.failure)
                self._take_inbox()

    @contextlib.contextmanager
    def _undriven(self) -> Iterator[None]:
        """The queue, for who does not drive it, or drives and was interrupted."""
        driving = self._driver_thread == threading.get_ident()
        with contextlib.nullcontext() if driving else self._gate:
            self._wake()
            with self._lock:
                yield

    def _take_inbox(self) -> None:
        while self._inbox:
            self._queue.submit(self._inbox[0])
            self._inbox.popleft()

    def _wake(self) -> None:
        with self._wake_lock:
            self._queue.interrupt()
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _clear_wake(self) -> None:
        """What was asked for until now is seen to next."""
        with self._wake_lock, contextlib.suppress(BlockingIOError):
            self._queue.clear_interrupt()
            if self._wake_fd >= 0:
                os.eventfd_read(self._wake_fd)

    # Driving

    def _drive(self, *, may_sleep: bool) -> Left:
        """Move everything on until there is news for Python, or nothing to do."""
        with self._gate:
            pass
        with self._lock:
            self._guarded(self._take_inbox)
            if self._queue.failure is not None:
                return Left.FAILED
            spin_ns = 0 if self._queue.idle else self._spin_ns
            # An interrupt (Ctrl-C) that comes in here has lost nothing: all is in the records.
            left = self._queue.run(
                spin_ns, STAY_LIMIT_NS, may_sleep=may_sleep, wake_fd=self._wake_fd
            )
            self._guarded(self._settle)
        if left is Left.CANNOT_SLEEP:
            self._require_slept()
        return left

    def _settle(self) -> None:
        self._queue.settle(self._clock())

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do a step under the lock; a queue that it leaves half done is given up."""
        try:
            step()
        except Exception as error:
            # Whatever it is: whoever waits must hear of it and not hang.
            _logger.exception("the driver's engine failed")
            self._queue.fail(TransferError(f"the driver's engine failed: {error!r}"))
        except BaseException:
            self._queue.fail(TransferError("a call was interrupted in the middle of work"))
            raise

    def _run(self) -> None:
        while not self._stopping.is_set() and self._queue.failure is None:
            if self._driver is not None:
                self._stopping.wait(PARKED_WAIT_S)
                continue
            left = self._drive(may_sleep=False)
            if left is Left.ASKED:
                # The descriptor stays as it is: a wake-up is spent by a sleep, and by nothing else.
                self._queue.clear_interrupt()
            elif left is Left.IDLE:
                self._sleep(IDLE_WAIT_MS if self._queue.idle else BUSY_WAIT_MS)
                if self._driver is None:  # else it is him that was to be woken
                    self._clear_wake()
        self._end_rejected()

    def _drive_until_ended(self, operation: Operation[Any]) -> None:
        while not operation.ended:
            if self._drive(may_sleep=True) is Left.ASKED:
                self._clear_wake()

    def _sleep(self, timeout_ms: float) -> None:
        """Wait for the NIC or for ``_wake``; not being able to fails the queue."""
        try:
            self._device.wait(timeout_ms, self._wake_fd)
        except Exception as error:
            self._cannot_wait(error)

    def _require_slept(self) -> None:
        fault = self._device.take_fault()
        if fault is not None and not isinstance(fault, Exception):
            raise fault
        self._cannot_wait(fault)

    def _cannot_wait(self, error: BaseException | None) -> None:
        _logger.error("the driver's engine cannot wait", exc_info=error)
        self.fail(TransferError(f"the NIC cannot be waited for ({error!r}); connect anew"))

    # Turns of blocking callers

    def _take_turn(self, operation: Operation[Any]) -> bool:
        """Become the driver, or wait until there is none; False when the operation ended."""
        with self._turn:
            if self._driver is not None:
                self._await(lambda: operation.ended or self._driver is None)
            if operation.ended:
                return False
            self._driver = operation
            self._driver_thread = threading.get_ident()
            return True

    def _await(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait for ``_turn``, which is held, until ``condition`` or for so long.

        Whoever waits is counted before he looks, and who brings the condition about looks in
        the other order, so that one sees the other.
        """
        self._waiting += 1
        try:
            self._turn.wait_for(condition, timeout_s)
        finally:
            self._waiting -= 1

    def _leave_turn(self, operation: Operation[Any]) -> None:
        """Stop being the driver, if that is whoever waits for ``operation``."""
        with self._turn:
            if self._driver is operation:
                self._driver = None
                self._driver_thread = 0
            if self._waiting:
                self._turn.notify_all()

    def _announce_turn(self) -> None:
        if self._waiting:
            with self._turn:
                self._turn.notify_all()
