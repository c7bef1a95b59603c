"""A bounded pool of threads that system calls block in, so that nobody else does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Job = Callable[[], None]
"""Must not raise: what goes wrong is its own to report."""


class JobQueue(Protocol):
    """Runs jobs, some of them at a time."""

    def submit(self, job: Job) -> None:
        """Run a job as soon as may be."""

    def close(self) -> None:
        """Do what was submitted, and then no more."""


class IoQueue:
    """At most ``depth`` jobs run at a time; threads start when they are first needed."""

    def __init__(self, name: str, depth: int) -> None:
        self._name, self._depth = name, depth
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Run a job as soon as a thread is free."""
        with self._ready:
            self._jobs.append(job)
            if self._idle < len(self._jobs) and len(self._threads) < self._depth:
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._work, name=f"{self._name}-{number}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._ready.notify()

    @property
    def waiting(self) -> int:
        """Jobs that no thread has taken yet."""
        return len(self._jobs)

    def close(self) -> None:
        """Do what was submitted, then end the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._ready.wait()
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            job()


def _new_lock() -> threading.Condition:
    return threading.Condition(threading.RLock())


@dataclass(frozen=True, slots=True)
class Workers:
    """Who does the work of a log, and how it is waited for; a test may do all in one thread."""

    new_queue: Callable[[str, int], JobQueue] = IoQueue
    """From a name, and how many jobs may run at a time."""
    new_lock: Callable[[], threading.Condition] = _new_lock
