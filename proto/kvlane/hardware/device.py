"""An opened port of an RDMA device."""

from __future__ import annotations

import math
import mmap
import select
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import VerbsError
from kvlane.hardware.binding import Binding
from kvlane.hardware.channel import close_with_events
from kvlane.hardware.completion_queue import HardwareCq
from kvlane.hardware.core import DeviceCore
from kvlane.hardware.failures import CREATING, DESTROYING, failing
from kvlane.hardware.options import HardwareOptions
from kvlane.hardware.queue_pair import HardwareQp
from kvlane.hardware.region import HardwareRegion
from kvlane.hardware.requests import SendRequests
from kvlane.hardware.selection import choose_port
from kvlane.hardware.sleepers import Sleepers
from kvlane.hardware.sysfs import port_folder, read_counters
from kvlane.verbs.calls import DeviceOfMethods
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import QpOptions


class HardwareDevice(DeviceOfMethods):
    """One port, with one protection domain."""

    def __init__(self, binding: Binding, options: HardwareOptions) -> None:
        super().__init__()
        self._port = port = choose_port(binding, options)
        self._core = DeviceCore(binding)
        try:
            with failing(binding, f"setting up {port.name}", CREATING):
                self._limits: Any = port.context.query_device()
                self._pd = binding.pd.PD(port.context)
        except VerbsError:
            close_with_events(port.context)
            raise
        self._cqs: dict[HardwareCq, None] = {}
        self._sleepers = Sleepers()
        self._send_requests = SendRequests(binding)
        self._is_open = True
        self.max_message_bytes = port.max_message_bytes
        self.name = f"{port.name} port {port.number}, GID {port.gid}, MTU {port.mtu_bytes}"

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-aligned zeroed memory."""
        return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)[:nbytes]

    def register(self, buffer: NDArray[np.uint8], access: AccessFlags) -> HardwareRegion:
        """Register a contiguous array, pinned."""
        with self._core.lock:
            self._require_open()
            region = HardwareRegion(self._core, self._pd, buffer, access)
            self._core.remember(region)
            return region

    def create_cq(self, depth: int) -> HardwareCq:
        """A completion queue."""
        with self._core.lock:
            self._require_open()
            self._require_within("entries of a completion queue", depth, "max_cqe")
            cq = HardwareCq(self._core, self._port.context, depth, self._sleepers, self.methods)
            self._core.remember(cq)
            self._cqs[cq] = None
            self._sleepers.kick()  # whoever sleeps does not watch it yet
            return cq

    def create_qp(self, cq: HardwareCq, options: QpOptions) -> HardwareQp:
        """A queue pair in INIT."""
        with self._core.lock:
            self._require_open()
            self._require_within("max_send_wr", options.max_send_wr, "max_qp_wr")
            self._require_within("max_recv_wr", options.max_recv_wr, "max_qp_wr")
            # Both ends count on as many; fewer here would break the connection at the peer.
            for limit in ("max_qp_rd_atom", "max_qp_init_rd_atom"):
                self._require_within("max_rd_atomic", options.max_rd_atomic, limit)
            qp = HardwareQp(
                self._core, self._port, self._pd, cq, options, self._send_requests, self.methods
            )
            self._core.remember(qp)
            return qp

    def progress(self) -> bool:
        """The device works by itself."""
        return False

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        """Sleep until a completion comes, ``wake_fd`` is readable or time is up."""
        with self._core.lock:
            if not self._is_open or any(cq.arm() for cq in self._open_cqs()):
                return
            descriptors = [cq.fd for cq in self._cqs]
            self._sleepers.enter()
        ready: set[int] = set()
        try:
            ready = _sleep((*descriptors, self._sleepers.fd, wake_fd), timeout_ms)
        finally:
            with self._core.lock:
                self._sleepers.leave()
                for cq in self._open_cqs():
                    if cq.fd in ready and cq.take_event():
                        self._sleepers.kick()

    def counters(self) -> dict[str, int]:
        """The kernel's counters of the port; empty where it shows none."""
        return read_counters(port_folder(self._port.name, self._port.number))

    def close(self) -> None:
        """Close what is open on it, youngest first, then domain and device."""
        with self._core.lock:
            if not self._is_open:
                return
            self._is_open = False
            self._sleepers.close()
            try:
                self._core.close_all()
            finally:
                with failing(self._core.binding, f"closing {self._port.name}", DESTROYING):
                    self._pd.close()
                    close_with_events(self._port.context)
                self._send_requests.close()

    def _open_cqs(self) -> list[HardwareCq]:
        for cq in [cq for cq in self._cqs if not cq.is_open]:
            del self._cqs[cq]
        return list(self._cqs)

    def _require_open(self) -> None:
        if not self._is_open:
            raise VerbsError("the device is closed")

    def _require_within(self, what: str, value: int, limit: str) -> None:
        most = int(getattr(self._limits, limit))
        if value > most:
            raise VerbsError(f"{what}: {self._port.name} has at most {most} ({limit}), not {value}")


def _sleep(descriptors: Iterable[int], timeout_ms: float) -> set[int]:
    """Sleep until one of the descriptors is readable; which are."""
    poller = select.poll()
    for fd in descriptors:
        if fd >= 0:
            poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(math.ceil(timeout_ms))}
