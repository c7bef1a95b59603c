"""Tickets: what a call started, item by item, until the last has ended and somebody is told."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from dpu_agent.segments.locations import NOWHERE
from dpu_agent.segments.requests import Completion, ItemStatus
from kvlane.errors import CapacityError, ConfigError, DeadlineError


class Ticket:
    """The items of one call; used under the lock of the log."""

    def __init__(self, number: int, count: int, told: Callable[[Completion], None]) -> None:
        self.number = number
        self.statuses = [ItemStatus.OK] * count
        self.locations = [NOWHERE] * count
        self.lengths = [0] * count
        self._open = count
        self._told = told

    def finish(
        self, index: int, status: ItemStatus, location: int = NOWHERE, length: int = 0
    ) -> None:
        """An item has ended."""
        self.statuses[index] = status
        self.locations[index], self.lengths[index] = location, length
        self._open -= 1
        if self._open == 0:
            self._told(self.completion())

    def completion(self) -> Completion:
        """All items."""
        return Completion(
            self.number, tuple(self.statuses), tuple(self.locations), tuple(self.lengths)
        )


class TicketDesk:
    """Numbers for calls, and their completions for whoever polls."""

    def __init__(self, lock: threading.Condition, max_waiting: int) -> None:
        self._lock = lock
        self._max_waiting = max_waiting
        self._next = 1
        self._waiting = 0
        self._open: set[int] = set()
        self._done: deque[Completion] = deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def open(self, count: int) -> Ticket:
        """A ticket of so many items; ``CapacityError`` where too many are under way."""
        if self._waiting + count > self._max_waiting:
            raise CapacityError(
                f"{self._waiting} items are under way and {count} more would pass max_waiting "
                f"({self._max_waiting}); poll for completions first"
            )
        number = self._next
        self._next += 1
        self._waiting += count
        self._open.add(number)
        ticket = Ticket(number, count, self._complete)
        if not count:
            self._complete(ticket.completion())
        return ticket

    def open_internal(self, count: int, told: Callable[[Completion], None]) -> Ticket:
        """A ticket of the log's own."""
        return Ticket(0, count, told)

    @property
    def idle(self) -> bool:
        """Nothing that callers asked for is under way."""
        return not self._open

    def poll(self) -> list[Completion]:
        """What has completed since."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return []
        done = list(self._done)
        self._done.clear()
        return done

    def wait(self, number: int, timeout_s: float) -> Completion:
        """One completion, which ``poll`` then does not return; the lock is held."""
        deadline = time.monotonic() + timeout_s
        while True:
            for completion in self._done:
                if completion.ticket == number:
                    self._done.remove(completion)
                    return completion
            if number not in self._open:
                raise ConfigError(f"ticket {number} is none, or its completion was taken already")
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"ticket {number} has not ended within {timeout_s} s")
            self._lock.wait(left)

    def fileno(self) -> int:
        """Readable while there are completions."""
        return self._eventfd

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self._eventfd = self._eventfd, -1
        if fd >= 0:
            os.close(fd)

    def _complete(self, completion: Completion) -> None:
        self._waiting -= len(completion.statuses)
        self._open.discard(completion.ticket)
        self._done.append(completion)
        if self._eventfd >= 0:
            os.eventfd_write(self._eventfd, 1)
        self._lock.notify_all()
