"""Connection management of a port: a ``ConnectionManager`` on queue pair 1, with a thread.

Calls of consumers send at once, in their own thread. What arrives and what times out is done
by a thread of the service. Consumers are told of events by functions that they have given for
a listener or a communication; these run under the service's lock and must only pass it on.
"""

from __future__ import annotations

import atexit
import os
import random
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize

from emulator.cm.events import CmEvent, ConnectRequest, ServiceRequest
from emulator.cm.gsi import GsiQueuePair
from emulator.cm.manager import CmOptions, ConnectionManager
from emulator.cm.rendezvous import AddressBook, address_book
from emulator.pyverbs.fabric import Closable, EventQueue, Port, finalize

Sink = Callable[[CmEvent], None]

_KICK = -1
"""In the queue of the thread: look at the timers again."""
_AWAKE = 0
"""No deadline is earlier: nobody needs to wake the thread."""
_MS = 1_000_000
_IDLE_MS = 1000
"""How long the thread sleeps at most; it looks then whether its port is still open."""
_LAST_WORDS_S = 1.5
"""How long the end of the process is put off at most, until peers know of it."""
_POLL_S = 0.01
_FIRST_TO_FINISH = 100
_DEFAULTS = CmOptions()


class CmService:
    """Connection management of one port."""

    def __init__(self, port: Port, options: CmOptions = _DEFAULTS) -> None:
        self.port = port
        self.pd_number = port.new_pd()
        """The protection domain that all its consumers share."""
        self.addresses: AddressBook = address_book(
            gids_are_addresses=port.config.gids_are_addresses
        )
        """How consumers find the port that serves an IP address."""
        self.rng = random.Random(secrets.randbits(64))
        self.listeners: dict[int, Sink] = {}
        """Listener -> who is told of its requests."""
        self.consumers: dict[int, Sink] = {}
        """Communication -> who is told of its events."""
        self._manager = ConnectionManager(self.rng, options)
        self._lock = threading.RLock()
        self._owner = 0
        self._graves: deque[Closable] = deque()
        self._sleep_until = _AWAKE
        self._gsi = GsiQueuePair(port.nic, self.pd_number)
        self._wakeups: EventQueue[int] = EventQueue()
        port.channels[self._gsi.cq] = self._wakeups
        self._thread = threading.Thread(
            target=self._run, name=f"rdma cm {port.device.name}", daemon=True
        )
        port.at_close.append(self._end)
        self._thread.start()

    @staticmethod
    def now() -> int:
        """The time that the manager goes by, ns."""
        return time.monotonic_ns()

    @contextmanager
    def manager(self) -> Iterator[ConnectionManager]:
        """The manager, for the caller alone; on leaving, MADs are sent and events told."""
        with self._lock:
            before, self._owner = self._owner, threading.get_ident()
            try:
                yield self._manager
            finally:
                self._flush()
                self._owner = before

    def is_held_here(self) -> bool:
        """Whether this thread is inside ``manager`` now."""
        return self._owner == threading.get_ident()

    def finish(self) -> None:
        """Wait until no peer waits for a message, or for as long as that may take at most."""
        end = time.monotonic() + _LAST_WORDS_S
        while self.port.is_open and self._thread.is_alive() and time.monotonic() < end:
            with self._lock:
                if not self._manager.owes_messages():
                    return
            time.sleep(_POLL_S)

    def bury(self, dead: Closable) -> None:
        """Close later, and in another thread, what cannot be closed inside ``manager``."""
        self._graves.append(dead)
        self._wakeups.put(_KICK)

    def _flush(self) -> None:
        self._gsi.send(self._manager.take_mads())
        for event in self._manager.take_events():
            self._sink_of(event)(event)
        if self._manager.next_deadline() < self._sleep_until:
            self._wakeups.put(_KICK)

    def _sink_of(self, event: CmEvent) -> Sink:
        if isinstance(event, ConnectRequest | ServiceRequest):
            return self.listeners.get(event.listener, _nobody)
        return self.consumers.get(event.comm_id, _nobody)

    # The thread

    def _end(self) -> None:
        """The port has been closed: let the thread see it, and wait until it has ended."""
        self._wakeups.put(_KICK)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._wakeups.fd, select.POLLIN)
        while self.port.is_open:
            timeout_ms = self._work()
            while self._graves:
                finalize(self._graves.popleft())
            if poller.poll(timeout_ms):
                self._wakeups.get()
        self._wakeups.close()

    def _work(self) -> int:
        """Do what is due; return how long there is nothing to do unless something happens, ms."""
        # Armed first: what arrives from now on wakes the thread, what was there is seen below.
        self._gsi.arm()
        with self.manager() as manager:
            now = self.now()
            while arrived := self._gsi.receive():
                for gid, mad in arrived:
                    manager.receive(gid, mad, now)
            manager.advance(now)
            self._sleep_until = _AWAKE
        with self._lock:
            now = self.now()
            self._sleep_until = min(self._manager.next_deadline(), now + _IDLE_MS * _MS)
            return max(0, -(-(self._sleep_until - now) // _MS))


def _nobody(_: CmEvent) -> None:
    """The consumer has gone."""


_lock = threading.Lock()
_services: dict[Port, CmService] = {}
_finishes_in = 0
"""The process whose end has been told to wait for ``_finish_all``."""


def service_of(port: Port) -> CmService:
    """The connection management of a port, begun by the first who asks for it."""
    with _lock:
        for closed in [one for one in _services if not one.is_open]:
            del _services[closed]
        if port not in _services:
            _services[port] = CmService(port)
            _finish_before_the_end()
        return _services[port]


def _finish_before_the_end() -> None:
    """A kernel goes on repeating the DREQ of a program that has ended; here the program must.

    A child that multiprocessing has forked runs the finalisers that it has registered itself,
    and neither those of its parent nor those of ``atexit``.
    """
    global _finishes_in
    if _finishes_in != os.getpid():
        _finishes_in = os.getpid()
        Finalize(None, _finish_all, exitpriority=_FIRST_TO_FINISH)


def _finish_all() -> None:
    for service in list(_services.values()):
        service.finish()


def _after_fork_in_child() -> None:
    """The services stay with the parent; the child's ports begin their own."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_finish_all)
