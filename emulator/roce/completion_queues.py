"""Completion queues and shared receive queues of a NIC."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from emulator.roce._queue_kernels import (
    OVERRUN,
    QUEUE_FULL,
    UNSOUND,
    arm_cq,
    poll_cq,
    post_srq_receives,
)
from emulator.roce.state import CQ, CQ_INDEX_BITS, CQE, MAX_SGE, RQE, SRQ
from kvlane.errors import CapacityError, QueueFullError, VerbsError
from kvlane.verbs.records import RecordArray, new_records


class CqTable:
    """Rings of completions."""

    def __init__(self, capacity: int, nic: Any) -> None:
        self.table = new_records(CQ, capacity)
        self._rings: dict[int, RecordArray] = {}
        self._serials = itertools.count(1)
        self._nic = nic

    def create(self, depth: int) -> int:
        """A completion queue of ``depth`` entries; return its index."""
        free = np.flatnonzero(self.table.depth == 0)
        if not len(free):
            raise CapacityError(f"all {len(self.table)} completion queues are in use")
        index = int(free[0])
        self.table[index] = np.zeros((), CQ)
        self.table[index].number = next(self._serials) << CQ_INDEX_BITS | index
        self._set_ring(index, depth)
        return index

    def number(self, index: int) -> int:
        """What names the queue as long as it lives, and nothing afterwards."""
        return int(self.table[index].number)

    def destroy(self, index: int) -> None:
        """Free a completion queue; the caller knows that no queue pair uses it."""
        if self.table[index].ready:
            self._nic.cq_events -= 1
        self.table[index] = np.zeros((), CQ)
        self._rings.pop(index, None)

    def resize(self, index: int, depth: int) -> None:
        """Change the depth; ``VerbsError`` when more completions are waiting than fit."""
        cq, old, waiting = self.table[index], self._rings[index], self.fill(index)
        if waiting > depth:
            raise VerbsError(f"{waiting} completions are waiting; {depth} are too few")
        order = (int(cq.head) + np.arange(waiting)) % int(cq.depth)
        self._set_ring(index, depth)
        self._rings[index][:waiting] = old[order]
        cq.tail = waiting

    def fill(self, index: int) -> int:
        """Completions that wait to be polled."""
        return int(self.table[index].tail - self.table[index].head)

    def oldest_time(self, index: int) -> int:
        """When the completion that is polled next came, ns; 0 without one."""
        cq = self.table[index]
        if not self.fill(index):
            return 0
        return int(self._rings[index][int(cq.head % cq.depth)].time)

    def poll(self, index: int, out: RecordArray) -> int:
        """Move up to ``len(out)`` completions into ``out``; ``VerbsError`` after an overrun."""
        count = int(poll_cq(self._nic, index, out))
        if count == OVERRUN:
            raise VerbsError("completion queue overrun: it is too small for what was posted")
        return count

    def arm(self, index: int, mode: int) -> None:
        """Tell of the next completion: ``ARM_NEXT`` or ``ARM_SOLICITED``."""
        arm_cq(self._nic, index, mode)

    def _set_ring(self, index: int, depth: int) -> None:
        # One spare entry takes what an overrun writes.
        ring = new_records(CQE, depth + 1)
        self._rings[index] = ring
        cq = self.table[index]
        cq.ring = ring.ctypes.data
        cq.head = cq.tail = 0
        cq.depth = depth


class SrqTable:
    """Shared receive queues."""

    def __init__(self, capacity: int, nic: Any) -> None:
        self.table = new_records(SRQ, capacity)
        self._rings: dict[int, RecordArray] = {}
        self._nic = nic

    def create(self, pd: int, depth: int) -> int:
        """A shared receive queue; return its index."""
        free = np.flatnonzero(self.table.in_use == 0)
        if not len(free):
            raise CapacityError(f"all {len(self.table)} shared receive queues are in use")
        index = int(free[0])
        ring = new_records(RQE, depth)
        self._rings[index] = ring
        self.table[index] = np.zeros((), SRQ)
        srq = self.table[index]
        srq.ring = ring.ctypes.data
        srq.depth = depth
        srq.pd = pd
        srq.in_use = 1
        return index

    def destroy(self, index: int) -> None:
        """Free a queue; the caller knows that no queue pair uses it."""
        self.table[index] = np.zeros((), SRQ)
        self._rings.pop(index, None)

    def resize(self, index: int, depth: int) -> None:
        """Change the depth; ``VerbsError`` when what waits or the limit does not fit."""
        srq, old = self.table[index], self._rings[index]
        waiting = int(srq.tail - srq.head)
        if waiting > depth:
            raise VerbsError(f"{waiting} receives are waiting; a depth of {depth} is too small")
        if srq.limit > depth:
            raise VerbsError(f"the limit is {srq.limit}; a depth of {depth} is too small")
        ring = new_records(RQE, depth)
        for position in range(waiting):
            ring[position] = old[int(srq.head + position) % len(old)]
        self._rings[index] = ring
        srq.ring = ring.ctypes.data
        srq.depth, srq.head, srq.tail = depth, 0, waiting

    def set_limit(self, index: int, limit: int) -> None:
        """Tell once when fewer than ``limit`` receives are left; 0 for never."""
        if not 0 <= limit <= self.table[index].depth:
            raise VerbsError(f"a limit of {limit} for a queue of {self.table[index].depth}")
        self.table[index].limit = limit

    def limit(self, index: int) -> int:
        """The limit now; 0 again after it was told."""
        return int(self.table[index].limit)

    def post(self, index: int, entries: RecordArray) -> None:
        """Post RQE records, all or none."""
        result = post_srq_receives(self._nic, index, entries)
        if result == QUEUE_FULL:
            raise QueueFullError("more receives than the shared queue has free entries")
        if result == UNSOUND:
            raise VerbsError(
                f"a receive's length is the sum of its elements, which are {MAX_SGE} at most"
            )
