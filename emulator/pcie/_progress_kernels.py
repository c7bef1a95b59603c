"""One turn of every queue pair after the other, each for a quantum."""

from __future__ import annotations

from typing import Any

from emulator.pcie._completion_kernels import (
    any_unpolled,
    enter_error,
    fail_oldest,
    flush,
    has_room,
)
from emulator.pcie._receive_kernels import has_sender_failed, receive
from emulator.pcie._send_kernels import execute, retire
from emulator.pcie._sleep_kernels import (
    RUNG,
    begin_sleep,
    doze,
    end_sleep,
    is_attention_due,
    is_backlog_due,
    kick,
    notify,
)
from emulator.pcie.layout import (
    ATTEND_EVERY,
    PROGRESS_BYTES,
    REQUEST_COST_BYTES,
    qp_at,
    send_entry_at,
)
from kvlane.atomics import load_acquire
from kvlane.calls import call
from kvlane.jit import kernel
from kvlane.verbs.calls import FAULT
from kvlane.verbs.enums import QpState, WcStatus, WrOpcode

_ERR = int(QpState.ERR)
_SEND = int(WrOpcode.SEND)
_SEND_WITH_IMM = int(WrOpcode.SEND_WITH_IMM)
_GONE = int(WcStatus.RETRY_EXC_ERR)


@kernel
def _flush(context: Any, qp: Any) -> int:
    """End what is posted to a failed queue pair, and tell the peer that it has failed."""
    moved = flush(context, qp)
    if qp.attached:
        notify(context, qp)
    return moved


@kernel
def send_turn(context: Any, qp: Any) -> int:
    """Carry out what is posted for one quantum, and end what is done."""
    if qp.state == _ERR:
        return _flush(context, qp)
    if not qp.attached:
        return 0
    moved = execute(context, qp)
    moved += retire(context, qp)
    if qp.state == _ERR:
        return moved + _flush(context, qp)
    notify(context, qp)
    return moved


@kernel
def _turn(context: Any, qp: Any) -> int:
    if qp.state == _ERR:
        return _flush(context, qp)
    if not qp.attached:
        return 0
    has_failed = has_sender_failed(qp)
    moved = receive(context, qp)
    moved += send_turn(context, qp)
    if has_failed and moved == 0 and (qp.sq_done == qp.sq_tail or has_room(context, qp)):
        # The verdict on the oldest request was written first, so that it has ended by it.
        enter_error(qp, _GONE)
        notify(context, qp)
        return REQUEST_COST_BYTES
    return moved


@kernel
def progress(context: Any) -> int:
    """A turn for every queue pair, or for as many as the time allows; 1 when any used it.

    ``FAULT`` until somebody has taken what attending failed with.
    """
    worked = _attend(context)
    if context.has_fault:
        return FAULT
    context.posted_bytes = 0
    moved, count = 0, context.live_count
    for _ in range(count):
        if context.cursor >= count:
            context.cursor = 0
        qp = qp_at(context.qps, load_acquire(context.live + 8 * context.cursor))
        context.cursor += 1
        moved += _turn(context, qp)
        if moved >= PROGRESS_BYTES:
            break
    if moved != 0:
        kick(context)
        return 1
    return worked


@kernel
def _attend(context: Any) -> int:
    """Let Python see to peers that come and go, now and then; 1 when it did anything."""
    context.ticks += 1
    eager = context.attend_due or context.unattached
    if context.closed or (not eager and context.ticks % ATTEND_EVERY != 0):
        return 0
    if not context.remarks and not is_backlog_due(context) and not is_attention_due(context):
        context.attend_due = 0
        return 0
    context.attend_due = 0
    return int(call(context.attend, 0, 0, 0, 0))


@kernel
def _is_taking_awaited(context: Any) -> bool:
    """Whether more than the completions of messages waits for a peer to empty a ring.

    That is a request which found no room, and a READ or WRITE that is done but for a message before
    it: requests end in order.
    """
    for index in range(context.live_count):
        qp = qp_at(context.qps, load_acquire(context.live + 8 * index))
        if qp.sq_next < qp.sq_tail:
            return True
        for position in range(qp.sq_done, qp.sq_next):
            if send_entry_at(qp.sq, position % qp.sq_depth).opcode not in (_SEND, _SEND_WITH_IMM):
                return True
    return False


@kernel
def prepare_sleep(context: Any, patient: bool) -> bool:
    """Whether to sleep: there is nothing to do, and whoever has something will wake us.

    Who is ``patient`` does not wait for the completions of messages.
    """
    if context.closed or any_unpolled(context):
        return False
    begin_sleep(context, patient and not _is_taking_awaited(context))
    if progress(context) or any_unpolled(context) or load_acquire(context.wanted) != 0:
        end_sleep(context, RUNG)  # who has seen us announced may have rung meanwhile
        return False
    context.sleeps += 1
    return True


@kernel
def sleep_holding(context: Any, timeout_ns: int, wake_fd: int, patient: bool) -> None:
    """Sleep with the device held; others who want it wake us."""
    if prepare_sleep(context, patient):
        end_sleep(context, doze(context, timeout_ns, wake_fd))


@kernel
def give_up_peer(context: Any, qp: Any) -> None:
    """The peer's process has died: its oldest request fails, and all that is posted."""
    if qp.state == _ERR:
        return
    if qp.sq_done < qp.sq_tail and has_room(context, qp):
        fail_oldest(context, qp, _GONE)
    enter_error(qp, _GONE)
    flush(context, qp)
    kick(context)
