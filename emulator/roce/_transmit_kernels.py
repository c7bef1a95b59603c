"""Transmitting: timers first, then every queue pair in turn until the burst is full."""

from __future__ import annotations

from typing import Any

from emulator.roce._emit_kernels import has_room
from emulator.roce._failure_kernels import end_users_of_failed_cqs
from emulator.roce._requester_kernels import check_ack_timer, transmit_requests
from emulator.roce._respond_kernels import transmit_answers
from emulator.roce.state import ANSWER_NONE, qp_at
from kvlane.jit import kernel
from kvlane.verbs.enums import QpState

_RTS = int(QpState.RTS)
_SQD = int(QpState.SQD)

_QUOTA = 60
"""Packets a queue pair may send before the next one's turn: of the largest, what four datagram
calls of 64 KiB hold, so that none leaves by a call of its own."""

NEVER = 1 << 62
"""A deadline that does not come."""


@kernel
def transmit_burst(nic: Any, now: int) -> int:
    """Fill the empty burst of ``nic``; return the number of frames in it."""
    nic.now = now
    nic.tx_count = 0
    nic.tx_bytes = 0
    for step in range(nic.qp_high):
        if not has_room(nic):
            break
        index = (nic.next_qp + step) % nic.qp_high
        qp = qp_at(nic.qps, index)
        if qp.in_use == 0:
            continue
        qp.pace_wait = 0
        # A NAK that put this QP in error must still go out.
        transmit_answers(nic, qp, now, _QUOTA)
        if qp.state in (_RTS, _SQD):
            check_ack_timer(nic, qp, now)
            transmit_requests(nic, qp, now, _QUOTA)
        end_users_of_failed_cqs(nic)
    if nic.qp_high > 0:
        nic.next_qp = (nic.next_qp + 1) % nic.qp_high
    return int(nic.tx_count)


@kernel
def next_deadline(nic: Any) -> int:
    """When a timer runs out next (ns), ``NEVER`` without one, 0 when an answer is due now."""
    earliest = NEVER
    for index in range(nic.qp_high):
        qp = qp_at(nic.qps, index)
        if qp.in_use == 0:
            continue
        if qp.job_head < qp.job_tail:
            earliest = min(earliest, qp.pace_wait)
        elif qp.answer != ANSWER_NONE:
            return 0
        if qp.ack_deadline != 0:
            earliest = min(earliest, qp.ack_deadline)
        if qp.rnr_deadline != 0:
            earliest = min(earliest, qp.rnr_deadline)
        if qp.cnp_due != 0:
            earliest = min(earliest, qp.cnp_time + nic.cnp_interval_ns)
        if qp.pace_wait != 0:
            earliest = min(earliest, qp.pace_wait)
    return int(earliest)
