"""The command queue's loop: completions in, capsules out, and who is to hear of it."""

from __future__ import annotations

from typing import Any

from host_driver._command_kernels import write_command
from host_driver._response_kernels import (
    absorb_response,
    job_at,
    queue_at,
    response_failure,
    slot_answered,
    slot_at,
)
from host_driver.queue_records import FREE_SLOT, SLOT_BITS, Failure, Left
from kvlane._clock_kernels import monotonic_ns
from kvlane.atomics import load_acquire
from kvlane.jit import kernel
from kvlane.limits import MAX_CAPSULE_BYTES
from kvlane.rawmem import copy, record_accessor, words_at
from kvlane.verbs import _call_kernels as verbs
from kvlane.verbs._idle_kernels import SLEPT, rest
from kvlane.verbs.calls import FAULT, PostResult, VerbCalls
from kvlane.verbs.enums import WcOpcode, WcStatus
from kvlane.verbs.records import RECV_WR, SEND_WR, WC

_NONE, _COMPLETION = int(Failure.NONE), int(Failure.COMPLETION)
_NIC, _POST = int(Failure.NIC), int(Failure.POST)
_DONE, _FAILED, _IDLE = int(Left.DONE), int(Left.FAILED), int(Left.IDLE)
_ASKED, _CANNOT_SLEEP = int(Left.ASKED), int(Left.CANNOT_SLEEP)
_POSTED = int(PostResult.POSTED)
_SUCCESS, _RECV = int(WcStatus.SUCCESS), int(WcOpcode.RECV)
_SEND_WR_BYTES, _RECV_WR_BYTES = int(SEND_WR.itemsize), int(RECV_WR.itemsize)
_ID_MASK = 0xFFFFFFFF
_BURST_BYTES = 16 << 10
"""Commands of about this length are posted together."""
_FREE = int(FREE_SLOT)
_CALL_WORDS = len(VerbCalls._fields)
assert _CALL_WORDS == 7

_completion_at = record_accessor(WC)
_send_at = record_accessor(SEND_WR)


@kernel
def enqueue(queue_address: int, job_address: int) -> None:
    """Append a job to the waiting ones; again does nothing."""
    job = job_at(job_address, 0)
    if job.linked != 0:
        return
    job.linked = 1
    queue = queue_at(queue_address, 0)
    if queue.waiting_head == 0:
        queue.waiting_head = job_address
    else:
        job_at(queue.waiting_tail, 0).next_job = job_address
    queue.waiting_tail = job_address


@kernel
def withdraw(queue_address: int, job_address: int) -> None:
    """Take a job out of the waiting ones, if it is among them."""
    queue = queue_at(queue_address, 0)
    before = 0
    here = int(queue.waiting_head)
    while here != 0 and here != job_address:
        before = here
        here = int(job_at(here, 0).next_job)
    if here == 0:
        return
    after = job_at(here, 0).next_job
    if before == 0:
        queue.waiting_head = after
    else:
        job_at(before, 0).next_job = after
    if queue.waiting_tail == here:
        queue.waiting_tail = before
    job_at(here, 0).next_job = 0


@kernel
def forget_finished(queue_address: int) -> None:
    """Take the first finished job off."""
    queue = queue_at(queue_address, 0)
    queue.finished_head = job_at(queue.finished_head, 0).next_job


@kernel
def _finish(queue: Any, job_address: int) -> None:
    """Append a job, all of whose commands are answered, to the finished ones."""
    job_at(job_address, 0).next_job = 0
    if queue.finished_head == 0:
        queue.finished_head = job_address
    else:
        job_at(queue.finished_tail, 0).next_job = job_address
    queue.finished_tail = job_address


@kernel
def _retire(queue: Any, index: int) -> None:
    """Free a slot whose response has come and whose SEND has completed."""
    slot = slot_at(queue.slots, index)
    if slot.job == 0 and slot.sent != 0:
        words_at(queue.free, queue.depth)[queue.free_count] = index
        queue.free_count += 1
        queue.in_flight -= 1
        slot.sent = 0
        slot.command_id = _FREE


@kernel
def _take_sent(queue: Any, index: int) -> None:
    """The SEND of a slot has completed; of a free slot none can."""
    slot = slot_at(queue.slots, index)
    if slot.command_id != _FREE:
        slot.sent = 1
        _retire(queue, index)


@kernel
def _take_response(queue: Any, buffer: int, length: int) -> int:
    """Take what came into a receive buffer; a ``Failure``."""
    data = queue.receive_memory + buffer * MAX_CAPSULE_BYTES
    queue.fault_slot = buffer
    failure = response_failure(queue, data, length)
    if failure == _NONE:
        failure = absorb_response(queue, data)
    if failure != _NONE:
        return failure
    index = slot_answered(data)
    slot = slot_at(queue.slots, index)
    address = int(slot.job)
    slot.job = 0
    job = job_at(address, 0)
    job.open_spans -= 1
    if job.open_spans == 0:
        _finish(queue, address)
    _retire(queue, index)
    return _NONE


@kernel
def _take_completions(queue_address: int, calls: VerbCalls) -> int:
    """Poll once; how many came. A failure is noted in the queue."""
    queue = queue_at(queue_address, 0)
    count = verbs.poll_cq(calls, queue.cq, queue.completions, queue.depth + queue.receive_depth)
    if count == FAULT:
        queue.failure = _NIC
        return 0
    received = 0
    for i in range(count):
        completion = _completion_at(queue.completions, i)
        index = int(completion.wr_id)
        if completion.status != _SUCCESS:
            queue.failure = _COMPLETION
            queue.fault_came = completion.status
            return count
        received_here = completion.opcode == _RECV
        if not 0 <= index < (queue.receive_depth if received_here else queue.depth):
            queue.failure = _NIC
            return count
        if received_here:
            length = int(completion.byte_len)
            failure = _take_response(queue, index, length)
            if failure != _NONE:
                queue.failure = failure
                queue.fault_length = length
                return count
            source = queue.receives + index * _RECV_WR_BYTES
            copy(queue.incoming + received * _RECV_WR_BYTES, source, _RECV_WR_BYTES)
            received += 1
        else:
            _take_sent(queue, index)
    if received and verbs.post_recv(calls, queue.qp, queue.incoming, received) != _POSTED:
        queue.failure = _NIC
    return count


@kernel
def _send_next(queue: Any, position: int) -> int:
    """Form the next command of the first waiting job and put its SEND at ``position``; its
    length."""
    address = int(queue.waiting_head)
    job = job_at(address, 0)
    queue.free_count -= 1
    index = int(words_at(queue.free, queue.depth)[queue.free_count])
    queue.sequence += 1
    command_id = (queue.sequence << SLOT_BITS | index) & _ID_MASK
    slot = slot_at(queue.slots, index)
    slot.command_id = command_id
    slot.job = address
    slot.span = job.next_span
    slot.sent = 0
    out = queue.send_memory + index * MAX_CAPSULE_BYTES
    length = write_command(out, address, job.next_span, command_id, queue.session)
    request = queue.outgoing + position * _SEND_WR_BYTES
    copy(request, queue.sends + index * _SEND_WR_BYTES, _SEND_WR_BYTES)
    _send_at(request, 0).length = length
    queue.in_flight += 1
    job.next_span += 1
    if job.next_span == job.span_count:
        queue.waiting_head = job.next_job
        job.next_job = 0
    return int(length)


@kernel
def _send_burst(queue: Any, calls: VerbCalls) -> int:
    """Send some commands, while there are any and credits; how many.

    Not all at once: the agent is to begin with the first while the next are written.
    """
    count, nbytes = 0, 0
    while queue.waiting_head != 0 and queue.free_count > 0 and nbytes < _BURST_BYTES:
        nbytes += _send_next(queue, count)
        count += 1
    if count and verbs.post_send(calls, queue.qp, queue.outgoing, count) != _POSTED:
        queue.failure = _POST
    return count


@kernel
def _send_waiting(queue_address: int, calls: VerbCalls) -> int:
    """Send while there are commands and credits; how many. A failure is noted in the queue."""
    queue = queue_at(queue_address, 0)
    count = burst = _send_burst(queue, calls)
    while burst != 0 and queue.failure == _NONE:
        burst = _send_burst(queue, calls)
        count += burst
    return count


@kernel
def _calls_of(queue: Any) -> VerbCalls:
    """The verbs of the queue's device: as an argument they would cost more than the call."""
    words = words_at(queue.verbs, _CALL_WORDS)
    return VerbCalls(words[0], words[1], words[2], words[3], words[4], words[5], words[6])


@kernel
def pump(queue_address: int) -> int:
    """Take completions, send what may be sent; how many of both. See ``failure`` of the queue."""
    return int(_pump(queue_address, _calls_of(queue_at(queue_address, 0))))


@kernel
def _pump(queue_address: int, calls: VerbCalls) -> int:
    worked = _take_completions(queue_address, calls)
    if queue_at(queue_address, 0).failure == _NONE:
        worked += _send_waiting(queue_address, calls)
    return worked


@kernel
def run_until(
    queue_address: int,
    spin_ns: int,
    limit_ns: int,
    may_sleep: bool,
    wake_fd: int,
) -> int:
    """Drive NIC and queue until a job has finished, or there is another reason: a ``Left``.

    It stays for ``limit_ns`` at most. Without work it spins for ``spin_ns``, then sleeps; or
    it comes back instead of that.
    """
    queue = queue_at(queue_address, 0)
    calls = _calls_of(queue)
    now = monotonic_ns(queue.clock)
    leave_at = now + limit_ns
    idle_since = now
    while True:
        worked = verbs.progress(calls, now)
        if worked == FAULT:
            queue.failure = _NIC
            return _FAILED
        worked += _pump(queue_address, calls)
        if queue.failure != _NONE:
            return _FAILED
        if queue.finished_head != 0:
            return _DONE
        now = monotonic_ns(queue.clock)
        if load_acquire(queue.interrupt) != 0 or verbs.is_wanted(calls) or now >= leave_at:
            return _ASKED
        if worked:
            idle_since = now
            continue
        if now - idle_since >= spin_ns and not may_sleep:
            return _IDLE
        rested = rest(calls, now - idle_since, spin_ns, leave_at - now, wake_fd)
        if rested == FAULT:
            return _CANNOT_SLEEP
        if rested == SLEPT:
            now = monotonic_ns(queue.clock)
