"""``PcieDevice``: verbs between processes of one host, over shared memory."""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from emulator.driving.device_lock import DeviceLock
from emulator.driving.faults import fault_error
from emulator.pcie import _entry_kernels as kernels
from emulator.pcie.channels import AUTO_CHANNELS, Channels
from emulator.pcie.connections import Connections
from emulator.pcie.layout import MAX_MESSAGE_BYTES
from emulator.pcie.peers import Reach
from emulator.pcie.queues import PcieCq, PcieQp, PcieRegion, raise_fault
from emulator.pcie.reach import why_not_reached
from emulator.pcie.regions import NOWHERE, REMOTE, Allocations, Board, require_registrable
from emulator.pcie.state import State, index_of
from emulator.pcie.warmup_kernels import compile_kernels
from kvlane.calls import PROTOTYPE
from kvlane.errors import VerbsError
from kvlane.verbs.calls import FAULT, VerbCalls
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import QpEndpoint, QpOptions

_log = logging.getLogger(__name__)
_devices: weakref.WeakSet[PcieDevice] = weakref.WeakSet()
"""Those of this process, for a child that is forked off it."""
_FORK_PATIENCE_S = 2.0
"""Whoever holds a device for longer may be waiting for the thread that forks."""


class PcieDevice:
    """A device with one protection domain. It has no thread: whoever waits drives it."""

    max_message_bytes = MAX_MESSAGE_BYTES

    def __init__(self, reach: Reach = why_not_reached, channels: int = AUTO_CHANNELS) -> None:
        compile_kernels()
        self.state = State()
        self._context = self.state.context
        self._board = Board()
        self._allocations = Allocations()
        self._kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._connections = Connections(self.state, self._board, self._allocations, reach)
        self._context.board = self._board.address
        self._context.pid = os.getpid()
        self._context.reaches_itself = int(reach(os.getpid(), self._board.address) == 0)
        self._context.kick_fd = self._kick
        self._channels = Channels(channels)
        self._context.channels = self._channels.address
        self._regions: dict[int, PcieRegion] = {}
        self._cqs: dict[int, PcieCq] = {}
        self._attend_entry = PROTOTYPE(self._attend)
        self._context.attend = ctypes.cast(self._attend_entry, ctypes.c_void_p).value
        self.lock = DeviceLock(self.state.wanted.ctypes.data, self._wake_holder)
        self._attend_error: BaseException | None = None
        self._is_closing = False
        self._released = False
        self.gid = self._connections.gid
        self.name = f"emulated PCIe of this host, GID {self.gid.hex()}"
        self.calls = VerbCalls(
            context=self.state.address,
            wanted=int(self.state.wanted.ctypes.data),
            progress=kernels.PROGRESS.address,
            poll_cq=kernels.POLL_CQ.address,
            post_send=kernels.POST_SEND.address,
            post_recv=kernels.POST_RECV.address,
            sleep=kernels.SLEEP.address,
            sums_reads=1,
        )
        """The verbs for compiled loops."""
        _devices.add(self)

    # Memory

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Zeroed pages that peers can map."""
        with self.lock:
            self._require_open()
            self._connections.sweep()
            return self._allocations.allocate(nbytes)

    def register(self, buffer: NDArray[np.uint8], access: AccessFlags) -> PcieRegion:
        """Register a contiguous array."""
        require_registrable(buffer, access)
        with self.lock:
            self._require_open()
            place = NOWHERE
            found = self._allocations.find(int(buffer.ctypes.data), int(buffer.nbytes))
            if found is not None and access & REMOTE:
                allocation, offset = found
                place = (allocation.map_id, offset)
                self._connections.announce(allocation)
            key = self._board.add(int(buffer.ctypes.data), int(buffer.nbytes), access, place)
            self._regions[key] = PcieRegion(self, buffer, key)
            return self._regions[key]

    def deregister(self, region: PcieRegion, buffer: NDArray[np.uint8]) -> None:
        """Take the key back and wait until no peer is copying by it."""
        with self.lock:
            if self._released:
                return
            is_first = self._regions.pop(region.lkey, None) is not None
            if is_first:
                self._board.revoke(region.lkey)
        self._connections.await_quiet(self.lock, buffer)
        with self.lock:
            if is_first:
                self._board.forget(region.lkey)
            self._release_if_closed()

    # Queues

    def create_cq(self, depth: int) -> PcieCq:
        """A completion queue."""
        with self.lock:
            self._require_open()
            cq = PcieCq(self, self.state.add_cq(depth))
            self._cqs[cq.handle] = cq
            return cq

    def remove_cq(self, cq: PcieCq) -> None:
        """Forget a completion queue."""
        if self._cqs.pop(cq.handle, None) is not None:
            self.state.remove_cq(cq.handle)

    def create_qp(self, cq: PcieCq, options: QpOptions) -> PcieQp:
        """A queue pair in INIT."""
        with self.lock:
            self._require_open()
            if cq.handle not in self._cqs:
                raise VerbsError("the completion queue is closed")
            qp = PcieQp(self, cq, options)
            self._connections.qps[index_of(qp.handle)] = qp
            return qp

    def connect(self, qp: PcieQp, remote: QpEndpoint) -> None:
        """Introduce a queue pair to its peer."""
        self._connections.connect(qp, remote)

    def remove_qp(self, qp: PcieQp) -> None:
        """End a queue pair: the peer is told, and nobody touches memory by it any more."""
        with self.lock:
            if qp.is_open:
                qp.is_open = False
                self._connections.disconnect(qp)
                kernels.forget(self.state.address, index_of(qp.cq.handle), qp.handle)
                self.state.remove_qp(qp.handle)
            elif self._released:
                return
        # Also when another thread has closed it: nothing may land after this returns either.
        self._connections.await_quiet(self.lock, None, qp)
        with self.lock:
            self._connections.part(qp)
            self._release_if_closed()

    # Driving

    def progress(self) -> bool:
        """Do pending work; True when there was any."""
        with self.lock:
            worked = kernels.progress(self.state.address, 0, 0, 0)
            if worked == FAULT:
                raise self.take_fault() or VerbsError("the device failed; open it anew")
            return bool(worked)

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        """Sleep until there may be work; others may use the device meanwhile."""
        with self.lock:
            if not kernels.prepare_sleep(self.state.address):
                return
        readable = 0
        try:
            readable = kernels.doze(self.state.address, int(timeout_ms * 1e6), wake_fd)
        finally:
            with self.lock:
                kernels.end_sleep(self.state.address, readable)
                self._release_if_closed()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """The device for this thread alone."""
        with self.lock:
            yield

    def take_fault(self) -> BaseException | None:
        """What a function of ``calls`` failed with, since the last call of this."""
        with self.lock:
            error, self._attend_error = self._attend_error, None
            self._context.has_fault = 0
            fault, self._context.fault = int(self._context.fault), 0
            return fault_error(fault) if fault else error or self._channels.take_fault()

    def check(self, result: int) -> int:
        """What a kernel answered to a method; ``VerbsError`` for a fault."""
        fault, self._context.fault = int(self._context.fault), 0
        return raise_fault(result, fault)

    def counters(self) -> dict[str, int]:
        """What it has counted; the names are those of the emulated NIC, where it has one."""
        with self.lock:
            return {**self.state.counters(), **self._channels.counters()}

    def _wake_holder(self) -> None:
        """Whoever sleeps with the device held is to give it free."""
        if not self._released and self._context.sleepers:
            os.eventfd_write(self._kick, 1)

    def _attend(self, *_: int) -> int:
        """Called by kernels, for what needs Python: messages, deaths, freed memory.

        What a peer does wrong is dealt with there. An exception that comes so far is one of ours,
        or a signal handler's: it cannot pass compiled code, so whoever drives the device gets it.
        """
        try:
            return int(self._connections.attend())
        except BaseException as error:
            self._attend_error = self._attend_error or error
            self._context.has_fault = 1
            return FAULT

    def _require_open(self) -> None:
        if self._is_closing or self._context.closed:
            raise VerbsError("the device is closed")

    def close(self) -> None:
        """Release all that was created here; sleepers wake up."""
        with self.lock:
            if self._context.closed:
                return
            self._is_closing = True
            opened: tuple[PcieQp | PcieCq | PcieRegion, ...] = (
                *self._connections.qps.values(),
                *self._connections.parting,
                *self._cqs.values(),
                *self._regions.values(),
            )
        for each in opened:
            each.close()
        with self.lock:
            if self._context.closed:
                return
            self._context.closed = 1
            kernels.kick_sleepers(self.state.address)
            self._release()

    def _release_if_closed(self) -> None:
        if self._context.closed:
            self._release()

    def _release(self) -> None:
        """The last one out gives the descriptors back."""
        if self._released or self._context.sleepers or self._connections.is_in_use:
            return
        for qp in list(self._connections.parting):
            self._connections.part(qp)
        self._released = True
        self._channels.close()
        self._connections.close()
        self._allocations.close()
        os.close(self._kick)
        self._board.close()

    def abandon(self) -> None:
        """In a child of its process: let go of what is shared with it, and touch nothing.

        Here the device is closed. The locks are whatever they were at the time of the fork.
        """
        self.lock = DeviceLock(self.state.wanted.ctypes.data, self._wake_holder)
        if self._released:
            return
        self._context.closed = self._released = True
        self.state.abandon()
        self._regions.clear()
        self._cqs.clear()
        self._connections.abandon()
        self._allocations.abandon()
        os.close(self._kick)
        self._board.close()


class _AtFork:
    """Holds all devices while the process is forked, so that the child finds none half changed."""

    def __init__(self) -> None:
        self._held: list[DeviceLock] = []

    def before(self) -> None:
        for device in list(_devices):
            lock = device.lock
            if lock.take_within(_FORK_PATIENCE_S):
                self._held.append(lock)
            else:
                _log.warning("the process is forked while another thread holds %s", device.name)

    def after(self) -> None:
        held, self._held = self._held, []
        for lock in reversed(held):
            lock.give_back()

    def in_child(self) -> None:
        self._held.clear()  # each device gets a lock of its own
        for device in list(_devices):
            device.abandon()
        _devices.clear()


_at_fork = _AtFork()
os.register_at_fork(
    before=_at_fork.before, after_in_parent=_at_fork.after, after_in_child=_at_fork.in_child
)
