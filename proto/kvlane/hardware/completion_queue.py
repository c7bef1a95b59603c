"""A completion queue with a channel of its own."""

from __future__ import annotations

import errno
import socket
from collections import deque
from typing import Any

import numpy as np

from kvlane.errors import VerbsError
from kvlane.hardware.channel import close_with_events, open_channel
from kvlane.hardware.core import DeviceCore
from kvlane.hardware.failures import CREATING, DESTROYING, WORKING, errno_of, failing
from kvlane.hardware.sleepers import Sleepers
from kvlane.hardware.work_ring import QueuePairWork
from kvlane.verbs.calls import CallsOfMethods
from kvlane.verbs.enums import WcFlags
from kvlane.verbs.records import WC, RecordArray

_FETCH_MAX = 256
"""Completions that are moved at once where the caller has not said how many it wants."""

_Entry = tuple[int, tuple[int, ...]]
"""Number of the queue pair, and a ``WC`` as a tuple."""


class HardwareCq:
    """Completions of the queue pairs that were created on it, in order.

    Before a thread sleeps, completions that came since the last poll are looked for, and kept
    in ``_fetched`` until somebody polls; so what comes between poll and sleep is not missed.
    """

    def __init__(
        self,
        core: DeviceCore,
        context: Any,
        depth: int,
        sleepers: Sleepers,
        methods: CallsOfMethods,
    ) -> None:
        self._core = core
        self._sleepers = sleepers
        self._works: dict[int, QueuePairWork] = {}
        self._fetched: deque[_Entry] = deque()
        self._armed = False
        with core.lock, failing(core.binding, f"creating a queue of {depth} entries", CREATING):
            self._channel, self.fd = open_channel(core.binding, context)
            try:
                self.cq = core.binding.cq.CQ(context, depth, None, self._channel)
            except core.binding.error:
                close_with_events(self._channel)
                raise
        self.is_open = True
        self._methods = methods
        self.handle = methods.add_cq(self)

    def attach(self, qp_num: int, work: QueuePairWork) -> None:
        """Completions of this queue pair retire its work from now on."""
        self._works[qp_num] = work

    def detach(self, qp_num: int) -> None:
        """A queue pair was destroyed: none of its completions is seen any more, also when
        another one gets its number."""
        # Nothing is left on the device that could be taken for another one's.
        while self._fetch(_FETCH_MAX) == _FETCH_MAX:
            pass
        self._fetched = deque(entry for entry in self._fetched if entry[0] != qp_num)
        self._works.pop(qp_num, None)

    def poll(self, out: RecordArray) -> int:
        """Move completions into ``out``."""
        with self._core.lock:
            self._require_open()
            wanted = len(out)
            if len(self._fetched) < wanted:
                self._fetch(wanted - len(self._fetched))
            count = min(wanted, len(self._fetched))
            if count:
                rows = [self._fetched.popleft()[1] for _ in range(count)]
                out[:count] = np.array(rows, WC)
            return count

    def arm(self) -> bool:
        """Have the next completion make ``fd`` readable; True when some are there already."""
        if not self._armed:
            with failing(self._core.binding, "arming a completion queue", WORKING):
                self.cq.req_notify()
            self._armed = True
        # Only now: what came before the queue was armed makes nothing readable.
        self._fetch(_FETCH_MAX)
        return bool(self._fetched)

    def take_event(self) -> bool:
        """Take the event that made ``fd`` readable, unless another thread has."""
        if not self.is_open:
            return False
        binding = self._core.binding
        with failing(binding, "reading a completion channel", WORKING):
            try:
                self._channel.get_cq_event(self.cq)
            except binding.error as error:
                if errno_of(error) == errno.EAGAIN:
                    return False
                raise
            self.cq.ack_events(1)
        self._armed = False
        return True

    def close(self) -> None:
        """Destroy."""
        with self._core.lock:
            if not self.is_open:
                return
            if self._works:
                # pyverbs would destroy them too, and leave objects behind that crash when used.
                raise VerbsError(
                    f"{len(self._works)} queue pairs still complete here; close them first"
                )
            with failing(self._core.binding, "destroying a completion queue", DESTROYING):
                self.cq.close()
                close_with_events(self._channel)
            self.is_open = False
            self._fetched.clear()
            self._core.forget(self)
            self._methods.forget(self.handle)
            self._sleepers.kick()

    def _fetch(self, count: int) -> int:
        """Take up to ``count`` completions off the device; how many there were."""
        with failing(self._core.binding, "polling a completion queue", WORKING):
            polled, completions = self.cq.poll(count)
        for completion in completions:
            work = self._works.get(completion.qp_num)
            if work is not None:
                self._fetched.append((completion.qp_num, _row(completion, work)))
        return int(polled)

    def _require_open(self) -> None:
        if not self.is_open:
            raise VerbsError("the completion queue is closed")


def _row(completion: Any, work: QueuePairWork) -> tuple[int, ...]:
    """A completion in the order of the fields of ``WC``."""
    flags = completion.wc_flags
    immediate = completion.imm_data
    return (
        work.retire(completion.wr_id),
        completion.status,
        completion.opcode,
        completion.byte_len,
        completion.qp_num,
        completion.src_qp,
        socket.ntohl(immediate) if flags & WcFlags.WITH_IMM else immediate,
        flags,
    )
