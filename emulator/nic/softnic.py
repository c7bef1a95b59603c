"""``SoftNic``: an engine on a link, made safe for threads.

The NIC has no thread of its own. Whoever posts sends at once, and whoever waits for
completions drives it, so that a command costs no hand-over between threads. One lock
serialises the engine. ``wait`` gives it free while it sleeps; a loop of verbs by address keeps it,
and is woken by whoever wants it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from emulator.driving.device_lock import DeviceLock
from emulator.driving.faults import fault_error
from emulator.link.calls import calls_of
from emulator.link.frames import Burst, Link
from emulator.nic import _entry_kernels as kernels
from emulator.nic.records import SCRATCH_WORDS, SOFT_NIC
from emulator.roce.engine import AsyncEvent, RoceEngine
from kvlane.calls import Callbacks
from kvlane.seams import Clock
from kvlane.verbs.calls import VerbCalls
from kvlane.verbs.records import RecordArray, new_records

_BURST_FRAMES = 256
_TX_ARENA_BYTES = 256 * 1024
"""A quarter of a core's L2 cache: payload is still there when the socket copies it."""
_RX_ARENA_BYTES = 256 * 1024
"""Likewise: what has been read is copied to its place before it leaves the cache."""
_RX_FRAMES = 1024


_News = tuple[list[int], list[AsyncEvent]]


def _ignore(_: object) -> None:
    """Nobody listens."""


class SoftNic:
    """A NIC port in software."""

    def __init__(self, engine: RoceEngine, link: Link, clock: Clock) -> None:
        self._engine = engine
        self._link = link
        self._clock = clock
        self._tx = Burst(_BURST_FRAMES, _TX_ARENA_BYTES)
        self._rx = Burst(_RX_FRAMES, _RX_ARENA_BYTES)
        self._kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.on_cq_ready: Callable[[int], None] = _ignore
        """Told of every completion queue that becomes ready after it was armed, by index."""
        self.on_event: Callable[[AsyncEvent], None] = _ignore
        """Told of asynchronous events. Both are called without the lock, in any thread."""
        self._wanted = np.zeros(1, np.int64)
        self._scratch = np.zeros(SCRATCH_WORDS, np.int64)
        self._callbacks = Callbacks()
        self._records = new_records(SOFT_NIC, 1)
        self._record = self._records[0]
        self._address = int(self._records.ctypes.data)
        self._fill_in()
        self.lock = self._new_lock()
        """Serialises engine and link. A loop of verbs by address holds it."""
        self._compile()

    def _compile(self) -> None:
        """Now, with nothing to do: a thread that compiles while the process is forked leaves the
        child a compiler that is locked for ever."""
        record = self._record
        record.closed = record.sleepers = 1
        kernels.turn(self._address, 0)
        kernels.finish_use(self._address, 0, 0)
        kernels.prepare_sleep(self._address, 0, 0)
        kernels.doze(self._address, 0, -1)
        kernels.end_sleep(self._address)
        record.closed = 0

    def _fill_in(self) -> None:
        """Tell the kernels where everything is."""
        record, calls = self._record, calls_of(self._link, (self._tx, self._rx), self._callbacks)
        self._engine.aim_at(self._tx)
        record.engine = self._engine.address
        record.tx, record.rx = self._tx.address, self._rx.address
        record.link_context = calls.context
        record.link_send, record.link_receive = calls.send, calls.receive
        record.link_next_release = calls.next_release
        record.take_observed, record.fill_observed = self._add_observed()
        record.link_fd, record.kick_fd = self._link.fileno(), self._kick
        record.wanted = self._wanted.ctypes.data
        record.scratch = self._scratch.ctypes.data

    def _new_lock(self) -> DeviceLock:
        record, kick = self._record, self._kick

        def wake_holder() -> None:
            """Whoever sleeps with the lock held is to give it free."""
            if record.sleepers:
                with suppress(OSError):
                    os.eventfd_write(kick, 1)

        return DeviceLock(int(self._wanted.ctypes.data), wake_holder)

    def _add_observed(self) -> tuple[int, int]:
        """What the kernels call instead of the engine's own while somebody watches it."""
        # No part of these may refer to the NIC: one that nobody has any more goes at once, with
        # its descriptors, instead of waiting for the collector.
        engine, rx, tx = self._engine, self._rx, self._tx

        def take(_first: int, now: int, _second: int, _third: int) -> int:
            engine.receive(rx, now)
            return 0

        def fill(_first: int, now: int, _second: int, _third: int) -> int:
            return engine.transmit(tx, now)

        return self._callbacks.add(take), self._callbacks.add(fill)

    @property
    def calls(self) -> VerbCalls:
        """The verbs by address. Handles are numbers of queue pairs and of completion queues."""
        return VerbCalls(
            context=self._address,
            wanted=int(self._wanted.ctypes.data),
            progress=kernels.PROGRESS.address,
            poll_cq=kernels.POLL_CQ.address,
            post_send=kernels.POST_SEND.address,
            post_recv=kernels.POST_RECV.address,
            sleep=kernels.SLEEP.address,
            sums_reads=1,
        )

    def take_fault(self) -> BaseException | None:
        """What one of ``calls`` failed with, since the last call of this."""
        with self.lock:
            fault, self._record.fault = int(self._record.fault), 0
            return (self._callbacks.take_fault() or fault_error(fault)) if fault else None

    @property
    def closed(self) -> bool:
        """Whether it sends and receives nothing any more."""
        return bool(self._record.closed)

    @property
    def sleepers(self) -> int:
        """Threads that sleep in it now."""
        return int(self._record.sleepers)

    @property
    def link(self) -> Link:
        """The link it sends over."""
        return self._link

    @contextmanager
    def engine(self) -> Iterator[RoceEngine]:
        """The engine, for the caller alone; what was posted is sent on leaving."""
        with self.lock:
            before = self._engine.completions
            yield self._engine
            kernels.finish_use(self._address, before, self._clock())
            self._raise_fault()
            news = self._news()
        self._tell(news)

    def _raise_fault(self) -> None:
        """What a link or an observer raised is not hidden."""
        if self._record.fault:
            error = self.take_fault()
            if error is not None:
                raise error

    def _news(self) -> _News:
        if self.closed:
            return [], []
        return self._engine.take_ready_cqs(), self._engine.take_events()

    def _tell(self, news: _News) -> None:
        for cq in news[0]:
            self.on_cq_ready(cq)
        for event in news[1]:
            self.on_event(event)

    def poll_cq(self, index: int, out: RecordArray) -> int:
        """Move completions of a queue into ``out``; sends nothing."""
        with self.lock:
            return self._engine.cqs.poll(index, out)

    def counters(self) -> dict[str, int]:
        """The counters of engine and link."""
        with self.lock:
            return {**self._engine.counters(), **self._link.counters()}

    def progress(self) -> bool:
        """Receive and send what is due; True when there was anything."""
        with self.lock:
            if self.closed:
                return False
            worked = bool(kernels.turn(self._address, self._clock()))
            self._raise_fault()
            news = self._news()
        self._tell(news)
        return worked

    def wait(self, timeout_ms: float, wake_fd: int) -> None:
        """Sleep until a frame arrives, a timer runs out, ``wake_fd`` is readable or time is up."""
        with self.lock:
            timeout_ns = int(timeout_ms * 1e6)
            limit_ns = kernels.prepare_sleep(self._address, self._clock(), timeout_ns)
        if not limit_ns:
            return
        try:
            kernels.doze(self._address, limit_ns, wake_fd)
        finally:
            with self.lock:
                kernels.end_sleep(self._address)
                self._release_kick()

    def _release_kick(self) -> None:
        """The last one out of a closed NIC closes what woke him."""
        if self.closed and self.sleepers == 0:
            os.close(self._kick)

    def is_held_here(self) -> bool:
        """Whether this thread is inside the engine now: a finaliser that is comes back later."""
        return self.lock.is_held_here()

    def before_fork(self) -> None:
        """Let no thread be inside the engine while the process is copied."""
        self.lock.__enter__()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.lock.__exit__(None, None, None)

    def after_fork_in_child(self) -> None:
        """The NIC stays with the parent: here it sends and receives nothing any more.

        The child gives its copies of the descriptors back, or it would hold port and interface
        when the parent has closed them.
        """
        self.lock = self._new_lock()
        if not self.closed:
            self._record.closed = 1
            self._link.close()
            os.close(self._kick)

    def close(self) -> None:
        """Close link and descriptors; sleepers wake up."""
        with self.lock:
            if self.closed:
                return
            self._record.closed = 1
            os.eventfd_write(self._kick, 1)
            self._link.close()
            self._release_kick()
