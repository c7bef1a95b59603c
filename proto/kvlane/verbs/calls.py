"""The verbs as functions by address, for compiled loops that post and poll without Python.

A device offers a ``VerbCalls``; ``kvlane.verbs._call_kernels`` calls through it. A software NIC
fills it with its own kernels. Every other device fills it by ``CallsOfMethods``: the same loops
then run over its methods, at the price of a call into the interpreter for each.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvlane.calls import PROTOTYPE
from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.protocols import CompletionQueue, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, RecordArray

FAULT = -1
"""What any of the functions answers when it could not be carried out: see ``Device.take_fault``."""


class PostResult(IntEnum):
    """What posting came to."""

    POSTED = 0
    QUEUE_FULL = 1
    """None of them was posted."""


class VerbCalls(NamedTuple):
    """Addresses of functions of four integers (``kvlane.calls``); those not named are 0.

    Whoever calls them holds the device (``Device.hold``) and leaves soon when the word at
    ``wanted`` is not 0: then another thread waits for the device.
    """

    context: int
    """First argument of every function."""
    wanted: int
    """Address of a word."""
    progress: int
    """(context, now ns): do pending work; 1 when there was any, else 0."""
    poll_cq: int
    """(context, handle of a completion queue, address of ``WC``, how many): how many came."""
    post_send: int
    """(context, handle of a queue pair, address of ``SEND_WR``, how many): ``PostResult``."""
    post_recv: int
    """The same with ``RECV_WR``."""
    sleep: int
    """(context, longest time ns, a descriptor to wake for or -1, patient): sleep until there may
    be work. Who is patient (1, else 0) does not wait for the completions of SENDs."""
    sums_reads: int
    """No function: 1 when READs may name a ``sum_addr``. A NIC has the bytes in hand anyway;
    whoever sums them later has to fetch them once more."""


class Drivable(Protocol):
    """What of a device ``CallsOfMethods`` calls."""

    def progress(self) -> bool:
        """As ``Device.progress``."""

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        """As ``Device.wait``."""


class CallsOfMethods:
    """A ``VerbCalls`` over the methods of a device and its queues.

    An exception cannot pass through compiled code: it is kept, and the call answers ``FAULT``.
    """

    def __init__(self, device: Drivable) -> None:
        self._device = device
        self._handles = itertools.count(1)
        self._cqs: dict[int, CompletionQueue] = {}
        self._qps: dict[int, QueuePair] = {}
        self._fault: BaseException | None = None
        self._never_wanted = np.zeros(1, np.int64)
        steps = (self._progress, self._poll_cq, self._post_send, self._post_recv, self._sleep)
        self._entries = [PROTOTYPE(self._guarded(step)) for step in steps]
        addresses = [ctypes.cast(entry, ctypes.c_void_p).value or 0 for entry in self._entries]
        wanted = int(self._never_wanted.ctypes.data)
        self.table = VerbCalls._make([0, wanted, *addresses, 0])
        """Valid as long as this object lives."""

    def add_cq(self, cq: CompletionQueue) -> int:
        """A handle for a completion queue."""
        handle = next(self._handles)
        self._cqs[handle] = cq
        return handle

    def add_qp(self, qp: QueuePair) -> int:
        """A handle for a queue pair."""
        handle = next(self._handles)
        self._qps[handle] = qp
        return handle

    def forget(self, handle: int) -> None:
        """The queue is closed."""
        self._cqs.pop(handle, None)
        self._qps.pop(handle, None)

    def take_fault(self) -> BaseException | None:
        """The first exception since the last call."""
        fault, self._fault = self._fault, None
        return fault

    def _guarded(self, step: Callable[[int, int, int], int]) -> Callable[[int, int, int, int], int]:
        def entry(_context: int, first: int, second: int, third: int) -> int:
            try:
                return step(first, second, third)
            except QueueFullError:
                return PostResult.QUEUE_FULL
            except KeyError:
                self._fault = self._fault or VerbsError("the queue is closed")
                return FAULT
            except BaseException as error:
                self._fault = self._fault or error
                return FAULT

        return entry

    def _progress(self, _now: int, _second: int, _third: int) -> int:
        return int(self._device.progress())

    def _poll_cq(self, handle: int, out: int, count: int) -> int:
        return self._cqs[handle].poll(_records(WC, out, count))

    def _post_send(self, handle: int, requests: int, count: int) -> int:
        self._qps[handle].post_send(_records(SEND_WR, requests, count))
        return PostResult.POSTED

    def _post_recv(self, handle: int, requests: int, count: int) -> int:
        self._qps[handle].post_recv(_records(RECV_WR, requests, count))
        return PostResult.POSTED

    def _sleep(self, timeout_ns: int, wake_fd: int, _patient: int) -> int:
        self._device.wait(timeout_ns / 1e6, wake_fd)
        return 0


class DeviceOfMethods:
    """Base of devices that fill their ``calls`` by ``CallsOfMethods``.

    Its queues get their handles by ``methods.add_cq`` and ``add_qp``, and give them back.
    """

    def __init__(self) -> None:
        self.methods = CallsOfMethods(self)

    @property
    def calls(self) -> VerbCalls:
        """The verbs for compiled loops."""
        return self.methods.table

    def hold(self) -> AbstractContextManager[None]:
        """Each call serialises itself, so nothing is held."""
        return nullcontext()

    def take_fault(self) -> BaseException | None:
        """What a call failed with, since the last call of this."""
        return self.methods.take_fault()

    def progress(self) -> bool:
        """As ``Device.progress``."""
        raise NotImplementedError

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        """As ``Device.wait``."""
        raise NotImplementedError


def _records(dtype: np.dtype[Any], address: int, count: int) -> RecordArray:
    memory: Any = (ctypes.c_uint8 * (dtype.itemsize * count)).from_address(address)
    return np.frombuffer(memory, dtype).view(np.recarray)
