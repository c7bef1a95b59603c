"""The DMA channels of a device: who copies, and when helpers begin and end."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from emulator.pcie import _channel_kernels as kernels
from emulator.pcie._channel_kernels import CHANNELS, HELPER, MAX_PATIENCE_NS
from kvlane.calls import Callbacks
from kvlane.jit import JIT_ENABLED
from kvlane.limits import MAX_CHANNELS
from kvlane.processors import usable_processors
from kvlane.verbs.records import RecordArray, new_records

AUTO_CHANNELS = 0
"""As a number of channels: by the processors that this process may use."""
_MOST_BY_ITSELF = 4

_libc = ctypes.CDLL(None)
_log = logging.getLogger(__name__)


def channels_for(processors: int, devices: int = 1) -> int:
    """How many channels each of some devices has by itself.

    Half of the processors for all, since the others have work of their own; but both of two, of
    which the one at the other end sleeps while this one copies.
    """
    together = max(processors // 2, min(processors, 2))
    return min(max(together // devices, 1), _MOST_BY_ITSELF)


def automatic_channels(devices: int = 1) -> int:
    """As ``channels_for``, of the processors that this process may use."""
    return channels_for(usable_processors(), devices)


class Channels:
    """The thread that drives the device is the first channel; each other has a thread of its own.

    Those begin with the first large copy and sleep while there is none. Interpreted, there are
    none: a step that has to be one is one only when compiled.
    """

    def __init__(self, count: int = AUTO_CHANNELS) -> None:
        self.count = min(count or automatic_channels(), MAX_CHANNELS)
        self._records = new_records(CHANNELS, 1)
        self._record = self._records[0]
        self._helpers = new_records(HELPER, max(self.count - 1, 1))
        self._helpers.event_fd[:] = -1
        self._helpers.patience_ns[:] = MAX_PATIENCE_NS
        self._threads: list[threading.Thread] = []
        self._callbacks = Callbacks()
        self.address = int(self._records.ctypes.data)
        """What kernels are given."""
        self._record.start = self._callbacks.add(self._starter())
        self._record.table = self._helpers.ctypes.data
        self._record.count = self.count if JIT_ENABLED else 1
        self._compile()
        self._end = weakref.finalize(self, _end, self._records, self._helpers, self._threads)
        self._end.atexit = False
        _all.add(self)

    def _compile(self) -> None:
        """Now: a thread that compiles while the process is forked leaves the child a compiler
        that is locked for ever."""
        self._record.closing = 1
        kernels.serve(self.address, 0)
        self._record.closing = 0

    def _starter(self) -> Callable[[int, int, int, int], int]:
        """What the kernel calls at the first large copy."""
        # It refers to all but this object, which would wait for the collector otherwise.
        records, helpers, threads, count = self._records, self._helpers, self._threads, self.count

        def start(*_: int) -> int:
            records[0].started = 1
            try:
                for index in range(count - 1):
                    _start_helper(records, helpers, threads, index)
            except (OSError, RuntimeError) as error:
                began = len(threads) + 1
                _log.warning("the pcie link copies with %d of %d channels: %s", began, count, error)
            return 0

        return start

    def take_fault(self) -> BaseException | None:
        """What interrupted the start of helpers, since the last call of this."""
        return self._callbacks.take_fault()

    def counters(self) -> dict[str, int]:
        """What was copied by more than one, and how often a helper went to sleep."""
        return {
            "channel_jobs": int(self._record.jobs),
            "channel_wakes": int(self._record.wakes),
            "channel_helper_pieces": int(self._helpers.pieces.sum()),
            "channel_helper_sleeps": int(self._helpers.sleeps.sum()),
        }

    def close(self) -> None:
        """End the helpers. Nothing may be copied any more."""
        self._end()

    def abandon(self) -> None:
        """In a child of the device's process: the helpers have stayed there."""
        self._threads.clear()
        self._end()


def _start_helper(
    records: RecordArray, helpers: RecordArray, threads: list[threading.Thread], index: int
) -> None:
    helpers.event_fd[index] = os.eventfd(0, os.EFD_CLOEXEC)
    thread = threading.Thread(
        target=_serve,
        args=(records, helpers, index, _processors_beside(_libc.sched_getcpu())),
        name=f"kvlane-channel-{index + 1}",
        daemon=True,
    )
    thread.start()
    threads.append(thread)
    records[0].helpers = index + 1


def _processors_beside(busy: int) -> set[int]:
    """Those that this process may use, without one unless that is all."""
    return os.sched_getaffinity(0) - {busy} or {busy}


def _serve(records: RecordArray, _helpers: RecordArray, index: int, processors: set[int]) -> None:
    # Who wakes another thread often gets it beside himself. Here that would be of no use: he is at
    # work until the job is done.
    with suppress(OSError):
        os.sched_setaffinity(0, processors)
    kernels.serve(int(records.ctypes.data), index)


def _end(records: RecordArray, helpers: RecordArray, threads: list[threading.Thread]) -> None:
    record = records[0]
    record.closing = 1
    record.count = 1
    record.helpers = 0
    for thread, fd in zip(threads, helpers.event_fd, strict=False):
        os.eventfd_write(int(fd), 1)
        if thread is not threading.current_thread():
            thread.join()
    for fd in helpers.event_fd[helpers.event_fd >= 0]:
        os.close(int(fd))
    helpers.event_fd[:] = -1


_all: weakref.WeakSet[Channels] = weakref.WeakSet()
"""Those of this process, for a child that is forked off it."""


def _abandon_all() -> None:
    for channels in list(_all):
        channels.abandon()


os.register_at_fork(after_in_child=_abandon_all)
