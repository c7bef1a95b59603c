"""The verbs by address: what ``VerbCalls`` of this device names."""

from __future__ import annotations

from emulator.driving.faults import Fault
from emulator.pcie import _completion_kernels as completions
from emulator.pcie import _progress_kernels as turns
from emulator.pcie import _receive_kernels as receives
from emulator.pcie import _send_kernels as sends
from emulator.pcie import _sleep_kernels as sleeping
from emulator.pcie._sleep_kernels import kick
from emulator.pcie.layout import PROGRESS_BYTES, QUEUE_INDEX_MASK, News, context_at, cq_at, qp_at
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.verbs.calls import FAULT, PostResult
from kvlane.verbs.enums import QpState

_MESSAGE = int(News.MESSAGE)
_INIT = int(QpState.INIT)
_POSTED = int(PostResult.POSTED)
_FULL = int(PostResult.QUEUE_FULL)
_QP_CLOSED = int(Fault.QP_CLOSED)
_CQ_CLOSED = int(Fault.CQ_CLOSED)
_NOT_CONNECTED = int(Fault.NOT_CONNECTED)


@kernel
def progress(context: int, _now: int, _second: int, _third: int) -> int:
    """Do pending work."""
    return turns.progress(context_at(context, 0))


@kernel
def poll_cq(context: int, handle: int, out: int, count: int) -> int:
    """Move completions to an address."""
    device = context_at(context, 0)
    cq = cq_at(device.cqs, handle & QUEUE_INDEX_MASK)
    if handle <= 0 or cq.handle != handle:
        device.fault = _CQ_CLOSED
        return FAULT
    was_full = cq.tail - cq.head == cq.depth
    came = completions.poll(cq, out, count)
    if was_full:
        kick(device)
    return came


@kernel
def post_send(context: int, handle: int, requests: int, count: int) -> int:
    """Post sends, and carry out what a quantum allows.

    No more is moved by posts between two calls of progress than by one of those: whoever posts
    much wants to see what has arrived while it is still in the cache.
    """
    device = context_at(context, 0)
    qp = qp_at(device.qps, handle & QUEUE_INDEX_MASK)
    fault = sends.refusal(requests, count)
    if handle <= 0 or qp.number != handle:
        fault = _QP_CLOSED
    elif qp.state == _INIT:
        fault = _NOT_CONNECTED
    if fault != 0:
        device.fault = fault
        return FAULT
    if count > qp.sq_depth - (qp.sq_tail - qp.sq_done):
        return _FULL
    sends.enqueue(qp, requests, count)
    if device.posted_bytes < PROGRESS_BYTES:
        device.posted_bytes += turns.send_turn(device, qp)
    kick(device)
    return _POSTED


@kernel
def post_recv(context: int, handle: int, requests: int, count: int) -> int:
    """Post receives."""
    device = context_at(context, 0)
    qp = qp_at(device.qps, handle & QUEUE_INDEX_MASK)
    if handle <= 0 or qp.number != handle:
        device.fault = _QP_CLOSED
        return FAULT
    if count > qp.rq_depth - (qp.rq_tail - qp.rq_head):
        return _FULL
    receives.enqueue(qp, requests, count)
    kick(device)
    return _POSTED


@kernel
def sleep(context: int, timeout_ns: int, wake_fd: int, patient: int) -> int:
    """Sleep until there may be work."""
    turns.sleep_holding(context_at(context, 0), timeout_ns, wake_fd, patient != 0)
    return 0


@kernel
def doze(context: int, timeout_ns: int, wake_fd: int) -> int:
    """Sleep, after it was prepared; what ``end_sleep`` is told."""
    return sleeping.doze(context_at(context, 0), timeout_ns, wake_fd)


@kernel
def end_sleep(context: int, readable: int) -> None:
    """The sleep that was prepared is over."""
    sleeping.end_sleep(context_at(context, 0), readable)


@kernel
def forget(context: int, cq: int, number: int) -> None:
    """Take the completions of a queue pair out of a completion queue."""
    completions.forget(context_at(context, 0), cq, number)


@kernel
def give_up_peer(context: int, index: int) -> None:
    """The process at the other end of a queue pair has died."""
    device = context_at(context, 0)
    turns.give_up_peer(device, qp_at(device.qps, index))


@kernel
def notify(context: int, index: int) -> None:
    """Wake the peer of a queue pair, should it sleep."""
    device = context_at(context, 0)
    qp = qp_at(device.qps, index)
    qp.news |= _MESSAGE
    sleeping.notify(device, qp)


@kernel
def kick_sleepers(context: int) -> None:
    """Wake who sleeps in this process."""
    kick(context_at(context, 0))


@kernel
def prepare_sleep(context: int) -> bool:
    """Whether to sleep, for a caller who gives the device free meanwhile."""
    return turns.prepare_sleep(context_at(context, 0), False)


def _progress_entry(context: int, now: int, second: int, third: int) -> int:
    return progress(context, now, second, third)


def _poll_cq_entry(context: int, handle: int, out: int, count: int) -> int:
    return poll_cq(context, handle, out, count)


def _post_send_entry(context: int, handle: int, requests: int, count: int) -> int:
    return post_send(context, handle, requests, count)


def _post_recv_entry(context: int, handle: int, requests: int, count: int) -> int:
    return post_recv(context, handle, requests, count)


def _sleep_entry(context: int, timeout_ns: int, wake_fd: int, patient: int) -> int:
    return sleep(context, timeout_ns, wake_fd, patient)


PROGRESS = exported(_progress_entry)
POLL_CQ = exported(_poll_cq_entry)
POST_SEND = exported(_post_send_entry)
POST_RECV = exported(_post_recv_entry)
SLEEP = exported(_sleep_entry)
