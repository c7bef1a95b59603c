"""Commands in flight over one queue pair: credits, ids, deadlines, and one end for each.

No thread, no clock: whoever drives it calls ``pump`` with the time, or ``run``. A command
holds a slot (its send buffer and its credit) until its response has come and its SEND has
completed, because a lost acknowledgement makes the NIC read the buffer again. All of that
is done by kernels on records, a job of many commands at a time; here is who gets them, and
what is due when time is up or the connection breaks.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from host_driver import _queue_kernels as kernels
from host_driver.commands import Operation, same_error
from host_driver.connection_errors import Fault, error_of
from host_driver.jobs import Job
from host_driver.queue_records import FREE_SLOT, QUEUE, SLOT, Failure, Left
from host_driver.rings import CapsuleRing
from kvlane._clock_kernels import SCRATCH_WORDS
from kvlane.errors import DeadlineError, KvlaneError, TransferError, VerbsError
from kvlane.verbs.enums import QpState
from kvlane.verbs.protocols import CompletionQueue, Device, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records

LOOK_INTERVAL_NS = 5_000_000
"""How often deadlines and the queue pair's state are looked at, and so how late they are seen."""

_FIELDS = QUEUE.names or ()
_IN_FLIGHT, _WAITING = _FIELDS.index("in_flight"), _FIELDS.index("waiting_head")
_FINISHED, _FAILURE = _FIELDS.index("finished_head"), _FIELDS.index("failure")
_LEFT = tuple(Left)


@dataclass(frozen=True, slots=True)
class Peer:
    """What every response of the agent must carry."""

    session_id: int
    boot_id: bytes


class CommandQueue:
    """Sends commands in the order of submission, ``depth`` at a time at most.

    Those that need staging are submitted as it has room for them, in order among themselves.
    """

    def __init__(
        self,
        device: Device,
        queue_pair: QueuePair,
        completion_queue: CompletionQueue,
        send_ring: CapsuleRing,
        receive_ring: CapsuleRing,
        peer: Peer,
        depth: int,
    ) -> None:
        self._device = device
        self._queue_pair = queue_pair
        self._receive_ring = receive_ring
        self._send_ring = send_ring
        self._peer = peer
        self._operations: dict[Operation[Any], None] = {}
        """Submitted and not ended, in order: whatever happens, these are owed an end."""
        self._line: deque[Operation[Any]] = deque()
        """Those that wait for staging."""
        self._jobs: dict[int, tuple[Operation[Any], Job]] = {}
        """By the address of their records: those that the kernels know."""
        self._next_look_ns = 0
        self._failure: KvlaneError | None = None
        self._closed = False
        """The queue pair is closed."""
        self._memory: dict[str, Any] = {}
        """What the record names."""
        self._record = new_records(QUEUE, 1)
        self._queue = self._record[0]
        self._words = memoryview(self._record.view(np.int64))
        """The same record: reading its fields by name is slow."""
        self._address = int(self._record.ctypes.data)
        self._fill(completion_queue, depth)
        receive_ring.post_recv(queue_pair, range(len(receive_ring)))

    @property
    def in_flight(self) -> int:
        """Credits in use."""
        return self._words[_IN_FLIGHT]

    @property
    def idle(self) -> bool:
        """True when no command is in flight or waiting."""
        words = self._words
        return not (words[_IN_FLIGHT] or words[_WAITING] or self._line)

    @property
    def failure(self) -> KvlaneError | None:
        """Why the connection was given up, if it was."""
        return self._failure

    def submit(self, operation: Operation[Any]) -> None:
        """Queue the commands of an operation; it ends at once when the connection is gone."""
        if self._failure is not None:
            operation.give_up(same_error(self._failure))
            return
        self._operations[operation] = None
        self._feed(operation)
        self._end_if_done(operation)

    def pump(self, now_ns: int) -> bool:
        """Take completions, end what is overdue, send what may be sent; True if any was."""
        if self._failure is not None:
            return False
        with self._device.hold():
            worked = kernels.pump(self._address)
        return self.settle(now_ns) or worked > 0

    def run(self, spin_ns: int, limit_ns: int, *, may_sleep: bool, wake_fd: int) -> Left:
        """Drive the device and this queue in compiled code; ``settle`` is to follow.

        It comes back when a job has finished, ``interrupt`` was called, or time is up.
        """
        with self._device.hold():
            left = kernels.run_until(self._address, spin_ns, limit_ns, may_sleep, wake_fd)
        return _LEFT[left]

    def interrupt(self) -> None:
        """Have ``run`` come back soon. Any thread may call."""
        self._interrupt[0] = 1

    def clear_interrupt(self) -> None:
        """Let ``run`` stay again."""
        self._interrupt[0] = 0

    def settle(self, now_ns: int) -> bool:
        """End what has finished, fails or is overdue; True if there was any."""
        worked = self._take_finished()
        if self._words[_FAILURE]:
            self.fail(self._why_failed())
        if self._failure is None and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_INTERVAL_NS
            self._expire(now_ns)
            if self._queue_pair.state is QpState.ERR:
                self.fail(TransferError("the queue pair to the agent broke; connect anew"))
        return worked

    def fail(self, error: KvlaneError) -> None:
        """Give the connection up. Every operation ends with ``error``, after its last write.

        Closing the queue pair comes first: what is said to have failed is touched no more.
        The first error counts. Calling again finishes what an interrupted call left.
        """
        if self._failure is None:
            self._failure = error
        if not self._closed:
            with contextlib.suppress(VerbsError):  # it is gone with its device then
                self._queue_pair.close()
            self._closed = True
        for operation in list(self._operations):
            operation.give_up(same_error(self._failure))
            del self._operations[operation]
        self._forget_jobs()

    # Jobs

    def _feed(self, operation: Operation[Any]) -> None:
        """Submit what there is of an operation."""
        if self._line and operation is not self._line[0] and operation.needs_staging:
            self._line.append(operation)
            return
        while (job := operation.next_job()) is not None:
            self._jobs[job.address] = (operation, job)
            kernels.enqueue(self._address, job.address)
        if operation.needs_staging and not operation.exhausted and operation not in self._line:
            self._line.append(operation)

    def _feed_line(self) -> None:
        while self._line:
            operation = self._line[0]
            if not operation.ended:
                self._feed(operation)
                if not operation.exhausted:
                    return
            self._line.popleft()

    def _forget_jobs(self) -> None:
        """First in the records, which must name no memory that is gone."""
        for word in (_IN_FLIGHT, _WAITING, _FINISHED):
            self._words[word] = 0
        slots = self._memory["slots"]
        slots.job, slots.command_id = 0, FREE_SLOT
        self._jobs.clear()
        self._line.clear()

    def _take_finished(self) -> bool:
        worked = False
        while address := self._words[_FINISHED]:
            worked = True
            operation, job = self._jobs[address]
            operation.complete(job)
            kernels.forget_finished(self._address)
            del self._jobs[address]
            if not operation.ended and not operation.needs_staging:
                self._feed(operation)
            self._end_if_done(operation)
        if worked:
            self._feed_line()
        return worked

    def _end_if_done(self, operation: Operation[Any]) -> None:
        if not operation.ended:
            operation.finish_if_done()
        if operation.ended:
            self._operations.pop(operation, None)

    def _why_failed(self) -> KvlaneError:
        queue = self._queue
        fault = Fault(
            Failure(int(queue.failure)),
            int(queue.fault_came),
            int(queue.fault_wanted),
            self._receive_ring[int(queue.fault_slot)][: int(queue.fault_length)],
        )
        if fault.failure in (Failure.NIC, Failure.POST):
            cause = self._device.take_fault()
            if cause is not None and not isinstance(cause, Exception):
                self.fail(TransferError("a call was interrupted in the middle of work"))
                raise cause
            return error_of(fault, self._peer, cause)
        return error_of(fault, self._peer)

    # Deadlines

    def _expire(self, now_ns: int) -> None:
        overdue = [made for made in self._operations if made.deadline_ns <= now_ns]
        sent = [made for made in overdue if any(job.in_flight for job in made.open_jobs)]
        if sent:
            # The agent may still write to their memory, and only closing prevents that.
            self._give_up_on(sent)
            return
        for operation in overdue:
            for job in list(operation.open_jobs):
                kernels.withdraw(self._address, job.address)
                self._jobs.pop(job.address, None)
            name = operation.opcode.name
            operation.give_up(DeadlineError(f"{name} got no credit in time; it was not sent"))
            self._end_if_done(operation)
        if overdue:
            self._feed_line()

    def _give_up_on(self, overdue: list[Operation[Any]]) -> None:
        name = overdue[0].opcode.name
        late = DeadlineError(f"{name} did not end in time; the connection was given up")
        for operation in overdue:
            operation.note(same_error(late))
        self.fail(TransferError(f"the connection was given up: a {name} did not end in time"))

    # The record

    def _fill(self, completion_queue: CompletionQueue, depth: int) -> None:
        queue, receives = self._queue, len(self._receive_ring)
        slots = new_records(SLOT, depth)
        slots.command_id = FREE_SLOT
        self._interrupt = np.zeros(1, np.int64)
        self._memory = {
            "slots": slots,
            "free": np.arange(depth, dtype=np.int64),
            "outgoing": new_records(SEND_WR, depth),
            "incoming": new_records(RECV_WR, depth + receives),
            "completions": new_records(WC, depth + receives),
            "clock": np.zeros(SCRATCH_WORDS, np.int64),
            "verbs": np.array(self._device.calls, np.int64),
            "interrupt": self._interrupt,
            "sends": self._send_ring.sends,
            "receives": self._receive_ring.receives,
        }
        for name, memory in self._memory.items():
            queue[name] = memory.ctypes.data
        queue.cq, queue.qp = completion_queue.handle, self._queue_pair.handle
        session = self._peer.session_id.to_bytes(8, "little") + self._peer.boot_id
        queue.session, queue.boot_low, queue.boot_high = np.frombuffer(session, "<i8")
        queue.depth = queue.free_count = depth
        queue.receive_depth = receives
        queue.send_memory, queue.receive_memory = self._send_ring.addr, self._receive_ring.addr
