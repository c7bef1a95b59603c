"""Emulated devices of this process: what ``get_device_list`` shows and ``Context`` opens.

A ``Port`` is a NIC on a link with a thread that drives it, since a program that waits in
its own way expects the device to work meanwhile. It is opened by the first context and lives
until the fabric is removed, because the GID of a device must not change under a program.
A forked child starts without open ports and opens its own.
"""

from __future__ import annotations

import atexit
import errno
import os
import secrets
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from emulator.link.faults import FaultPlan
from emulator.nic.assembly import NicParts, assemble_nic
from emulator.nic.links import LinkPlace, open_link
from emulator.nic.softnic import SoftNic
from emulator.pyverbs.config import ADDRESSING, FabricConfig
from emulator.roce.engine import DEFAULT_PKEY, AsyncEvent
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.enums import EventType, Mtu

T = TypeVar("T")

PORT_NUM = 1
"""A device has one port."""
_IDLE_MS = 1000.0
"""How long the thread sleeps at most; frames, timers and closing wake it before."""
_GUID_PREFIX = 0x02006B76_6C000000
"""Locally administered EUI-64; the lowest byte is the index of the device plus one."""

_QP_EVENTS = (
    EventType.QP_FATAL,
    EventType.QP_REQ_ERR,
    EventType.QP_ACCESS_ERR,
    EventType.COMM_EST,
    EventType.SQ_DRAINED,
    EventType.PATH_MIG,
    EventType.PATH_MIG_ERR,
    EventType.QP_LAST_WQE_REACHED,
)
_SRQ_EVENTS = (EventType.SRQ_ERR, EventType.SRQ_LIMIT_REACHED)


class EventQueue(Generic[T]):
    """Things that happened, with a descriptor that is readable while there are any."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        """Held while ``fd`` is used, whose number another file may have once it is closed."""

    def put(self, item: T) -> None:
        """Append; wakes one who waits."""
        with self._lock:
            if self.fd >= 0:
                self._items.append(item)
                os.eventfd_write(self.fd, 1)

    def get(self) -> T:
        """The oldest; waits unless the program has made ``fd`` non-blocking (EAGAIN then)."""
        while True:
            with self._lock:
                self._take_count()
                if self._items:
                    return self._items.popleft()
                if not os.get_blocking(self.fd):
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self._await()

    def _await(self) -> None:
        """Sleep until ``fd`` is readable. What made it so may be gone again afterwards."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.poll()

    def _take_count(self) -> None:
        """One item less is to be read; never waits, as whoever calls holds the lock."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        if poller.poll(0):
            os.eventfd_read(self.fd)

    def discard(self, is_stale: Callable[[T], bool]) -> None:
        """Forget what has been put about something that has gone."""
        with self._lock:
            for item in [item for item in self._items if is_stale(item)]:
                self._items.remove(item)
                self._take_count()

    def close(self) -> None:
        """Close the descriptor; what comes later is discarded."""
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)


class Closable(Protocol):
    """What ``finalize`` closes."""

    def close(self) -> None:
        """Release what it holds."""


class RdmaDevice:
    """An emulated device as it is listed; ``open`` gives its port."""

    def __init__(self, index: int, config: FabricConfig) -> None:
        self.index = index
        self.config = config
        self.name = f"{config.name}{index}"
        self.guid = _GUID_PREFIX + index + 1
        """As a number, most significant byte first."""
        self._port: Port | None = None

    def open(self) -> Port:
        """The port, the same for all contexts of this process."""
        with _lock:
            if self._port is None:
                self._port = Port(self)
                _ports.append(self._port)
            return self._port

    def close(self) -> None:
        """Close the port; contexts that are still open do nothing any more."""
        with _lock:
            port, self._port = self._port, None
            if port is not None:
                _ports.remove(port)
        if port is not None:
            port.close()

    def after_fork_in_child(self) -> None:
        """The port stays with the parent; ``open`` makes another."""
        self._port = None


class Port:
    """The port of a device in this process: NIC, thread, GIDs and registries of events."""

    def __init__(self, device: RdmaDevice) -> None:
        self.device = device
        self.config = device.config
        self.nic, self.mtu = _open_nic(device)
        self.gids: list[bytes] = list(self.nic.link.gids)
        """The GID table: 16 bytes each."""
        self.pkeys: list[int] = [DEFAULT_PKEY]
        self.channels: dict[int, EventQueue[int]] = {}
        """Completion queue -> queue of its completion channel, which is given the CQ's index."""
        self.qp_events: dict[int, EventQueue[AsyncEvent]] = {}
        """QP number -> queue of the context that is told of the QP's asynchronous events."""
        self.cq_events: dict[int, EventQueue[AsyncEvent]] = {}
        """The same by index of a CQ."""
        self.srq_events: dict[int, EventQueue[AsyncEvent]] = {}
        """The same by index of an SRQ."""
        self.shared: dict[tuple[str, int], Any] = {}
        """Kind (``pd``, ``mr``) and handle -> what another context may import by the handle."""
        self.cmd_fd = os.memfd_create(device.name, os.MFD_CLOEXEC)
        """Stands for the command descriptor of the device: a duplicate of it names the port."""
        self.at_close: list[Callable[[], None]] = []
        """Called when the port has been closed, by what has a thread of its own on it."""
        self._next_handle = 1
        self._stopping = False
        self.nic.on_cq_ready = self._on_cq_ready
        self.nic.on_event = self._on_event
        self._thread = threading.Thread(target=self._drive, name=f"rdma {device.name}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """False once closed, and in a child that was forked with it."""
        return not self.nic.closed

    def new_handle(self) -> int:
        """A number that no other object of this port has."""
        self._next_handle += 1
        return self._next_handle

    def new_pd(self) -> int:
        """The number of a new protection domain, for the engine and as its handle."""
        return self.new_handle()

    def udp_port_of(self, gid: bytes) -> int:
        """The UDP port by which frames address the NIC that has a GID.

        It is 4791 unless the GID is this device's own and it listens elsewhere.
        """
        link = self.nic.link
        return link.udp_port if gid in link.gids else ROCE_V2_UDP_PORT

    def _drive(self) -> None:
        nic = self.nic
        while not self._stopping:
            _bury()
            if not nic.progress():
                nic.wait(_IDLE_MS, -1)

    def _on_cq_ready(self, cq: int) -> None:
        channel = self.channels.get(cq)
        if channel is not None:
            channel.put(cq)

    def _on_event(self, event: AsyncEvent) -> None:
        listener = self._listeners(event).get(event.subject)
        if listener is not None:
            listener.put(event)

    def _listeners(self, event: AsyncEvent) -> dict[int, EventQueue[AsyncEvent]]:
        if event.event in _QP_EVENTS:
            return self.qp_events
        return self.srq_events if event.event in _SRQ_EVENTS else self.cq_events

    def forget(self, listeners: dict[int, EventQueue[AsyncEvent]], subject: int) -> None:
        """A subject of one of the registries has gone: what waits to be told of it goes too."""
        queue = listeners.pop(subject, None)
        if queue is not None:
            queue.discard(
                lambda event: event.subject == subject and self._listeners(event) is listeners
            )

    def forget_cq(self, index: int) -> None:
        """A completion queue has gone, with its events of both sorts."""
        self.forget(self.cq_events, index)
        channel = self.channels.pop(index, None)
        if channel is not None:
            channel.discard(lambda ready: ready == index)

    def close(self) -> None:
        """Stop the thread and close the NIC."""
        self._stopping = True
        self.nic.close()
        self._thread.join()
        for end in self.at_close:
            end()
        os.close(self.cmd_fd)


class Fabric:
    """The devices of one configuration."""

    def __init__(self, config: FabricConfig) -> None:
        self.devices = [RdmaDevice(index, config) for index in range(config.devices)]

    def close(self) -> None:
        """Close all ports."""
        for device in self.devices:
            device.close()


_lock = threading.RLock()
_fabric: Fabric | None = None
_ports: list[Port] = []
"""All that are open in this process, whatever fabric they belong to."""
_left_to_parent: list[Port] = []
"""Ports of the parent, never used again, but not to be taken apart in a child either."""
_graves: deque[Closable] = deque()
"""Objects that were collected by a thread inside the engine, where they cannot be closed."""


def install(config: FabricConfig) -> Fabric | None:
    """Make these the devices of the process; return those before, which stay as they are."""
    global _fabric
    with _lock:
        before, _fabric = _fabric, Fabric(config)
        return before


def restore(before: Fabric | None) -> None:
    """Close the devices of the process and go back to ``before``."""
    global _fabric
    with _lock:
        gone, _fabric = _fabric, before
    if gone is not None:
        gone.close()


def devices() -> list[RdmaDevice]:
    """The devices of the process; one with default options when nothing was installed."""
    with _lock:
        if _fabric is None:
            install(FabricConfig())
        assert _fabric is not None
        return _fabric.devices


def port_of_cmd_fd(fd: int) -> Port | None:
    """The open port whose command descriptor ``fd`` is a duplicate of."""
    with suppress(OSError):
        for port in _ports:
            if os.path.samestat(os.fstat(fd), os.fstat(port.cmd_fd)):
                return port
    return None


def finalize(dead: Closable) -> None:
    """Close an object that nobody refers to any more, now or, inside the engine, soon."""
    _graves.append(dead)
    if not any(port.nic.is_held_here() for port in _ports):
        _bury()


def _bury() -> None:
    """Close what has been collected, in a thread that is outside all engines."""
    while _graves:
        # There is nobody to tell of an error, nor would it be news that another was faster.
        with suppress(Exception):
            _graves.popleft().close()


def _open_nic(device: RdmaDevice) -> tuple[SoftNic, Mtu]:
    """The NIC of a device, and the MTU of its port."""
    config, index = device.config, device.index
    in_child = bool(_left_to_parent)
    place = LinkPlace(
        config.link,
        config.interface,
        config.endpoint(index, in_child=in_child),
        config.mtu_bytes,
        config.batching,
    )
    link, mtu, _ = open_link(place, ADDRESSING[config.addressing]())
    parts = NicParts(
        faults=FaultPlan.parse(config.faults),
        pcap=config.record_path(config.pcap, device.name, in_child=in_child),
        trace=config.record_path(config.trace, device.name, in_child=in_child),
        congestion_bps=config.congestion_bps,
        mtu=mtu,
    )
    seed = config.seed + index if config.seed else secrets.randbits(64)
    return assemble_nic(link, parts, seed), mtu


def _before_fork() -> None:
    _lock.acquire()
    for port in _ports:
        port.nic.before_fork()


def _after_fork_in_parent() -> None:
    for port in _ports:
        port.nic.after_fork_in_parent()
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _graves.clear()
    for port in _ports:
        port.nic.after_fork_in_child()
        port.device.after_fork_in_child()
    _left_to_parent.extend(_ports)
    _ports.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(restore, None)
