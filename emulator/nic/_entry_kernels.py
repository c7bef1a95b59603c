"""The verbs of a software NIC by address: what ``VerbCalls`` of its devices names.

What has an address is no kernel besides, since nothing else calls it.
"""

from __future__ import annotations

from emulator.driving.faults import Fault
from emulator.nic import _turn_kernels as turns
from emulator.nic.records import soft_nic_at
from emulator.roce import _queue_kernels as queues
from emulator.roce._event_kernels import forget_events
from emulator.roce.state import CQ_INDEX_MASK, cq_at, nic_at, qp_at
from kvlane._clock_kernels import monotonic_ns
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import array_accessor
from kvlane.verbs.calls import FAULT, PostResult
from kvlane.verbs.records import RECV_WR, SEND_WR, WC

_POSTED = int(PostResult.POSTED)
_FULL = int(PostResult.QUEUE_FULL)
_QP_CLOSED = int(Fault.QP_CLOSED)
_CQ_CLOSED = int(Fault.CQ_CLOSED)
_NOT_CONNECTED = int(Fault.NOT_CONNECTED)
_OVERRUN = int(Fault.OVERRUN)
_CLOCK_AT = 16
"""Where in the scratch memory the clock has its words; an eventfd's come before."""

_completions_at = array_accessor(WC)
_sends_at = array_accessor(SEND_WR)
_receives_at = array_accessor(RECV_WR)


def _progress(context: int, now: int, _second: int, _third: int) -> int:
    """Do the NIC's pending work."""
    soft = soft_nic_at(context, 0)
    worked = turns.progress(soft, now)
    # Whoever uses verbs by address has nobody to tell of events.
    forget_events(nic_at(soft.engine, 0))
    return FAULT if soft.fault != 0 else worked


def _poll_cq(context: int, handle: int, out: int, count: int) -> int:
    """Move completions to an address."""
    soft = soft_nic_at(context, 0)
    nic = nic_at(soft.engine, 0)
    index = handle & CQ_INDEX_MASK
    if handle <= 0 or cq_at(nic.cqs, index).number != handle:
        soft.fault = _CQ_CLOSED
        return FAULT
    came = queues.poll_cq(nic, index, _completions_at(out, count))
    if came == queues.OVERRUN:
        soft.fault = _OVERRUN
        return FAULT
    return int(came)


@kernel
def _qp_index(context: int, handle: int) -> int:
    """Index of the queue pair that has this number, or -1."""
    nic = nic_at(soft_nic_at(context, 0).engine, 0)
    index = handle & (nic.qp_capacity - 1)
    qp = qp_at(nic.qps, index)
    return index if qp.in_use != 0 and qp.qpn == handle else -1


@kernel
def _posted(context: int, result: int) -> int:
    """What a ``PostResult`` says of a result of the engine."""
    if result == queues.POSTED:
        return _POSTED
    if result == queues.QUEUE_FULL:
        return _FULL
    soft_nic_at(context, 0).fault = _NOT_CONNECTED
    return FAULT


def _post_send(context: int, handle: int, requests: int, count: int) -> int:
    """Post sends; their first packets leave before this returns."""
    soft = soft_nic_at(context, 0)
    index = _qp_index(context, handle)
    if index < 0:
        soft.fault = _QP_CLOSED
        return FAULT
    nic = nic_at(soft.engine, 0)
    before = nic.completions
    result = _posted(context, queues.post_send(nic, index, _sends_at(requests, count)))
    if result == _POSTED and soft.closed == 0:
        now = monotonic_ns(soft.scratch + _CLOCK_AT)
        turns.transmit(soft, now)
        turns.wake_sleepers(soft, before, now)
    return result


def _post_recv(context: int, handle: int, requests: int, count: int) -> int:
    """Post receives."""
    index = _qp_index(context, handle)
    if index < 0:
        soft_nic_at(context, 0).fault = _QP_CLOSED
        return FAULT
    nic = nic_at(soft_nic_at(context, 0).engine, 0)
    return _posted(context, queues.post_recv(nic, index, _receives_at(requests, count)))


def _sleep(context: int, timeout_ns: int, wake_fd: int, _third: int) -> int:
    """Sleep with the lock held until there may be work; whoever wants the lock wakes us."""
    soft = soft_nic_at(context, 0)
    now = monotonic_ns(soft.scratch + _CLOCK_AT)
    limit_ns = turns.prepare_sleep(soft, now, timeout_ns)
    if limit_ns == 0:
        return 0
    if not turns.is_wanted(soft):
        turns.doze(soft, limit_ns, wake_fd)
    turns.end_sleep(soft)
    return 0


@kernel
def turn(context: int, now: int) -> int:
    """``progress`` for the NIC's own methods, which tell of events."""
    return int(turns.progress(soft_nic_at(context, 0), now))


@kernel
def finish_use(context: int, completions_before: int, now: int) -> None:
    """Send what was posted, and wake who is concerned."""
    soft = soft_nic_at(context, 0)
    if soft.closed == 0:
        turns.transmit(soft, now)
        turns.wake_sleepers(soft, completions_before, now)


@kernel
def prepare_sleep(context: int, now: int, timeout_ns: int) -> int:
    """How long to sleep, ns, by a caller who gives the lock free meanwhile; 0 for not at all."""
    return int(turns.prepare_sleep(soft_nic_at(context, 0), now, timeout_ns))


@kernel
def doze(context: int, limit_ns: int, wake_fd: int) -> None:
    """Sleep, after it was prepared."""
    turns.doze(soft_nic_at(context, 0), limit_ns, wake_fd)


@kernel
def end_sleep(context: int) -> None:
    """The sleep that was prepared is over."""
    turns.end_sleep(soft_nic_at(context, 0))


PROGRESS = exported(_progress)
POLL_CQ = exported(_poll_cq)
POST_SEND = exported(_post_send)
POST_RECV = exported(_post_recv)
SLEEP = exported(_sleep)
