"""``SoftNic``: an engine on a link, made safe for threads.

The NIC has no thread of its own. Whoever posts sends at once, and whoever waits for
completions drives it, so that a command costs no hand-over between threads. One lock
serialises the engine; it is held while bursts are received and sent, never while sleeping.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from emulator.link.frames import Burst, Link
from emulator.roce.engine import AsyncEvent, RoceEngine
from kvlane.seams import Clock
from kvlane.verbs.records import RecordArray

_BURST_FRAMES = 256
_TX_ARENA_BYTES = 256 * 1024
"""A quarter of a core's L2 cache: payload is still there when the socket copies it."""
_RX_ARENA_BYTES = 512 * 1024
_RX_FRAMES = 1024
_TRANSMIT_ROUNDS = 4
"""Bursts sent before received frames, acknowledgements above all, get their turn."""


_News = tuple[list[int], list[AsyncEvent]]


def _ignore(_: object) -> None:
    """Nobody listens."""


class SoftNic:
    """A NIC port in software."""

    def __init__(self, engine: RoceEngine, link: Link, clock: Clock) -> None:
        self._engine = engine
        self._link = link
        self._clock = clock
        self._lock = threading.RLock()
        self._held = threading.Condition(self._lock)
        self._tx = Burst(_BURST_FRAMES, _TX_ARENA_BYTES)
        self._rx = Burst(_RX_FRAMES, _RX_ARENA_BYTES)
        self._kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.on_cq_ready: Callable[[int], None] = _ignore
        """Told of every completion queue that becomes ready after it was armed, by index."""
        self.on_event: Callable[[AsyncEvent], None] = _ignore
        """Told of asynchronous events. Both are called without the lock, in any thread."""
        self._sleepers = 0
        self._sleep_until = 0
        self._has_more = False
        """Sending has stopped for the sake of receiving. No timer stands for what is left: a
        requester that needs no answers (UC, UD) has none."""
        self.closed = False

    @property
    def link(self) -> Link:
        """The link it sends over."""
        return self._link

    @contextmanager
    def engine(self) -> Iterator[RoceEngine]:
        """The engine, for the caller alone; what was posted is sent on leaving."""
        news: _News = ([], [])
        with self._lock:
            before = self._engine.completions
            yield self._engine
            if not self.closed:
                self._transmit(self._clock())
                self._wake_sleepers(before)
                news = self._news()
        self._tell(news)

    def _news(self) -> _News:
        return self._engine.take_ready_cqs(), self._engine.take_events()

    def _tell(self, news: _News) -> None:
        for cq in news[0]:
            self.on_cq_ready(cq)
        for event in news[1]:
            self.on_event(event)

    def poll_cq(self, index: int, out: RecordArray) -> int:
        """Move completions of a queue into ``out``; sends nothing."""
        with self._lock:
            return self._engine.cqs.poll(index, out)

    def counters(self) -> dict[str, int]:
        """The counters of engine and link."""
        with self._lock:
            return {**self._engine.counters(), **self._link.counters()}

    def progress(self) -> bool:
        """Receive and send what is due; True when there was anything."""
        with self._lock:
            if self.closed:
                return False
            now = self._clock()
            self._rx.clear()
            received = self._link.receive(self._rx, now)
            if received:
                self._engine.receive(self._rx, now)
            worked = self._transmit(now) or received > 0
            news = self._news()
        self._tell(news)
        return worked

    def wait(self, timeout_ms: float, wake_fd: int) -> None:
        """Sleep until a frame arrives, a timer runs out, ``wake_fd`` is readable or time is up."""
        with self._lock:
            if self.closed:
                return
            now = self._clock()
            until = min(now + int(timeout_ms * 1e6), self._next_event(now))
            if self._tx.count or self._has_more or until <= now:
                return
            # The earliest of all who sleep, as long as anybody does.
            self._sleep_until = min(until, self._sleep_until) if self._sleepers else until
            self._sleepers += 1
        try:
            poller = select.poll()
            for fd in (self._link.fileno(), self._kick, wake_fd):
                if fd >= 0:
                    poller.register(fd, select.POLLIN)
            poller.poll(-(-(until - now) // 1_000_000))
        finally:
            with self._lock:
                self._sleepers -= 1
                self._rearm_kick()

    def _rearm_kick(self) -> None:
        """The last sleeper takes the kick back, or away when the NIC has been closed."""
        if self._sleepers:
            return
        if self.closed:
            os.close(self._kick)
            return
        with suppress(BlockingIOError):
            os.eventfd_read(self._kick)

    def _wake_sleepers(self, completions_before: int) -> None:
        """A sleeper must not miss what others did or left: completions, timers, requests."""
        if not self._sleepers:
            return
        if (
            self._engine.completions != completions_before
            or self._tx.count
            or self._has_more
            or self._next_event(self._clock()) < self._sleep_until
        ):
            os.eventfd_write(self._kick, 1)

    def _next_event(self, now: int) -> int:
        """When there is something to do though nothing arrives, ns."""
        deadline = self._engine.next_deadline()
        release = self._link.next_release(now)
        return deadline if release is None else min(deadline, release)

    def _transmit(self, now: int) -> bool:
        """Send bursts until there is nothing to send, the link takes no more, or it is enough."""
        worked = self._has_more = False
        for _ in range(_TRANSMIT_ROUNDS):
            if self._tx.count == 0 and self._engine.transmit(self._tx, now) == 0:
                break
            worked = True
            if not self._send():
                break
        else:
            self._has_more = True
        return worked

    def _send(self) -> bool:
        """Hand the burst to the link; keep what it did not take, in order."""
        burst = self._tx
        accepted = self._link.send(burst)
        left = burst.count - accepted
        if left:
            burst.frames[:left] = burst.frames[accepted : burst.count].copy()
        burst.count = left
        return left == 0

    def is_held_here(self) -> bool:
        """Whether this thread is inside the engine now: a finaliser that is comes back later."""
        try:
            self._held.notify(0)
        except RuntimeError:
            return False
        return True

    def before_fork(self) -> None:
        """Let no thread be inside the engine while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The NIC stays with the parent: here it sends and receives nothing any more.

        The child gives its copies of the descriptors back, or it would hold port and interface
        when the parent has closed them.
        """
        self._lock = threading.RLock()
        self._held = threading.Condition(self._lock)
        if not self.closed:
            self.closed = True
            self._link.close()
            os.close(self._kick)

    def close(self) -> None:
        """Close link and descriptors; sleepers wake up."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            os.eventfd_write(self._kick, 1)
            self._link.close()
            if self._sleepers == 0:
                os.close(self._kick)
