"""The tables that kernels work on, with the record that leads to them all."""

from __future__ import annotations

import numpy as np

from emulator.pcie.layout import (
    CONTEXT,
    COUNTERS,
    CQ,
    NO_MESSAGE,
    QP,
    QUEUE_CAPACITY,
    QUEUE_INDEX_MASK,
    SCRATCH_WORDS,
    SEND_ENTRY,
)
from kvlane.errors import CapacityError
from kvlane.verbs.enums import QpState
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import RECV_WR, WC, RecordArray, new_records

_GENERATIONS = (1 << 12) - 1
"""A number has 24 bits: twelve of the index, twelve of the generation, which is never 0."""
_INDEX_BITS = QUEUE_INDEX_MASK.bit_length()


class Handles:
    """Numbers of queues. One that was given back is not given again for long."""

    def __init__(self) -> None:
        self._free = list(range(QUEUE_CAPACITY - 1, -1, -1))
        self._generations = np.zeros(QUEUE_CAPACITY, np.int64)

    def take(self, what: str) -> int:
        """A new handle; ``CapacityError`` when there is none."""
        if not self._free:
            raise CapacityError(f"{QUEUE_CAPACITY} {what} are open; close some")
        index = self._free.pop()
        generation = int(self._generations[index]) % _GENERATIONS + 1
        self._generations[index] = generation
        return generation << _INDEX_BITS | index

    def give_back(self, handle: int) -> None:
        """The queue is closed."""
        self._free.append(index_of(handle))


def index_of(handle: int) -> int:
    """Where a queue is in its table."""
    return handle & QUEUE_INDEX_MASK


class State:
    """Context, queue pairs and completion queues of a device."""

    def __init__(self) -> None:
        self._context = new_records(CONTEXT, 1)
        self.context = self._context[0]
        self.address = int(self._context.ctypes.data)
        """What kernels are given."""
        self.qps = new_records(QP, QUEUE_CAPACITY)
        self.cqs = new_records(CQ, QUEUE_CAPACITY)
        self.wanted = np.zeros(1, np.int64)
        self._live = np.zeros(QUEUE_CAPACITY, np.int64)
        self._scratch = np.zeros(SCRATCH_WORDS, np.int64)
        self._qp_handles = Handles()
        self._cq_handles = Handles()
        self._rings: dict[int, tuple[RecordArray, ...]] = {}
        self._cq_rings: dict[int, RecordArray] = {}
        for name, table in (
            ("qps", self.qps),
            ("cqs", self.cqs),
            ("live", self._live),
            ("scratch", self._scratch),
            ("wanted", self.wanted),
        ):
            self.context[name] = table.ctypes.data

    def add_cq(self, depth: int) -> int:
        """A completion queue; its handle."""
        handle = self._cq_handles.take("completion queues")
        index = index_of(handle)
        self._cq_rings[index] = new_records(WC, max(depth, 1))
        cq = self.cqs[index]
        cq.ring, cq.depth = self._cq_rings[index].ctypes.data, max(depth, 1)
        cq.head = cq.tail = 0
        cq.handle = handle
        self.context.cq_count = max(int(self.context.cq_count), index + 1)
        return handle

    def remove_cq(self, handle: int) -> None:
        """Close a completion queue."""
        cq = self.cqs[index_of(handle)]
        cq.handle = 0
        cq.head = cq.tail = 0
        self._cq_handles.give_back(handle)

    def add_qp(self, cq: int, options: QpOptions, inbound: int) -> int:
        """A queue pair in INIT whose own channel is at ``inbound``; its number."""
        number = self._qp_handles.take("queue pairs")
        index = index_of(number)
        sends = new_records(SEND_ENTRY, options.max_send_wr)
        receives = new_records(RECV_WR, options.max_recv_wr)
        self._rings[index] = (sends, receives)
        self.qps[index] = np.zeros(1, QP)[0]
        qp = self.qps[index]
        qp.state, qp.inbound, qp.cq = QpState.INIT, inbound, index_of(cq)
        qp.sq, qp.sq_depth = sends.ctypes.data, options.max_send_wr
        qp.rq, qp.rq_depth = receives.ctypes.data, options.max_recv_wr
        qp.rx_total = NO_MESSAGE
        qp.number = number
        self._live[self.context.live_count] = index
        self.context.live_count += 1
        return number

    def remove_qp(self, number: int) -> None:
        """Close a queue pair."""
        index = index_of(number)
        count = int(self.context.live_count)
        position = int(np.flatnonzero(self._live[:count] == index)[0])
        self._live[position : count - 1] = self._live[position + 1 : count]
        self.context.live_count = count - 1
        self.qps.number[index] = 0
        self.qps.state[index] = QpState.RESET
        del self._rings[index]
        self._qp_handles.give_back(number)

    def abandon(self) -> None:
        """No queue is open any more, and none is looked at."""
        self.context.live_count = self.context.sleepers = 0
        self.qps.number[:] = 0
        self.cqs.handle[:] = 0

    def counters(self) -> dict[str, int]:
        """What the device has counted since it was opened."""
        return {name: int(self.context[name]) for name in COUNTERS}
