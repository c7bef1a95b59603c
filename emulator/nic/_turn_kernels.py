"""A turn of the NIC: receive and send what is due, and who must wake up for it.

The caller holds the NIC's lock, but while it sleeps in ``doze``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.driving._sleep_kernels import poll_descriptors, ring, silence, watch
from emulator.driving.faults import Fault
from emulator.link.frames import FRAME, burst_at
from emulator.roce._receive_kernels import receive_burst
from emulator.roce._transmit_kernels import next_deadline, transmit_burst
from emulator.roce.state import nic_at
from kvlane.atomics import full_fence, load_acquire
from kvlane.calls import call
from kvlane.jit import kernel
from kvlane.rawmem import copy

_TRANSMIT_ROUNDS = 4
"""Bursts sent before received frames, acknowledgements above all, get their turn."""
_CALLBACK = int(Fault.CALLBACK)
_POLLED = 3
_FRAME_BYTES = FRAME.itemsize


@kernel
def _checked(soft: Any, answer: int) -> int:
    """What a function by address answered; 0 when it failed, which is noted."""
    if answer >= 0:
        return answer
    soft.fault = _CALLBACK
    return 0


@kernel
def _take(soft: Any, nic: Any, now: int) -> None:
    """Let the engine have what was received."""
    if nic.observed != 0:
        _checked(soft, call(soft.take_observed, 0, now, 0, 0))
        return
    rx = burst_at(soft.rx, 0)
    receive_burst(nic, rx.frames, rx.arena, rx.count, now)


@kernel
def _fill(soft: Any, nic: Any, now: int) -> int:
    """Let the engine fill the empty burst; how many frames."""
    if nic.observed != 0:
        return _checked(soft, call(soft.fill_observed, 0, now, 0, 0))
    tx = burst_at(soft.tx, 0)
    tx.count = transmit_burst(nic, now)
    return int(tx.count)


@kernel
def _send(soft: Any) -> bool:
    """Hand the burst to the link; keep what it did not take, in order. True when it took all."""
    tx = burst_at(soft.tx, 0)
    accepted = _checked(soft, call(soft.link_send, soft.link_context, soft.tx, 0, 0))
    left = tx.count - accepted
    if left > 0 and accepted > 0:
        copy(tx.frames, tx.frames + accepted * _FRAME_BYTES, left * _FRAME_BYTES)
    tx.count = left
    return bool(left == 0)


@kernel
def transmit(soft: Any, now: int) -> int:
    """Send bursts until there is nothing to send, the link takes no more, or it is enough.

    1 when there was anything.
    """
    nic = nic_at(soft.engine, 0)
    tx = burst_at(soft.tx, 0)
    worked = 0
    soft.has_more = 0
    for _ in range(_TRANSMIT_ROUNDS):
        if tx.count == 0 and _fill(soft, nic, now) == 0:
            return worked
        worked = 1
        if not _send(soft):
            return worked
    soft.has_more = 1
    return worked


@kernel
def progress(soft: Any, now: int) -> int:
    """Receive and send what is due; 1 when there was anything."""
    if soft.closed != 0:
        return 0
    nic = nic_at(soft.engine, 0)
    before = nic.completions
    rx = burst_at(soft.rx, 0)
    rx.count = 0
    received = _checked(soft, call(soft.link_receive, soft.link_context, soft.rx, now, 0))
    if received > 0:
        _take(soft, nic, now)
    worked = transmit(soft, now)
    wake_sleepers(soft, before, now)
    return 1 if received > 0 else worked


@kernel
def next_event(soft: Any, now: int) -> int:
    """When there is something to do though nothing arrives, ns."""
    deadline = next_deadline(nic_at(soft.engine, 0))
    if soft.link_next_release == 0:
        return int(deadline)
    release = _checked(soft, call(soft.link_next_release, soft.link_context, now, 0, 0))
    return int(min(deadline, release)) if release > 0 else int(deadline)


@kernel
def _is_something_left(soft: Any) -> bool:
    return bool(burst_at(soft.tx, 0).count != 0 or soft.has_more != 0)


@kernel
def wake_sleepers(soft: Any, completions_before: int, now: int) -> None:
    """A sleeper must not miss what others did or left: completions, timers, requests."""
    if soft.sleepers == 0:
        return
    if (
        nic_at(soft.engine, 0).completions != completions_before
        or _is_something_left(soft)
        or next_event(soft, now) < soft.sleep_until
    ):
        ring(soft.kick_fd, soft.scratch)


@kernel
def prepare_sleep(soft: Any, now: int, timeout_ns: int) -> int:
    """How long to sleep, ns, 0 for not at all; ``end_sleep`` must follow any other answer.

    Whoever comes for the lock after this sees a sleeper and wakes him.
    """
    if soft.closed != 0:
        return 0
    until = min(now + timeout_ns, next_event(soft, now))
    if until <= now or _is_something_left(soft):
        return 0
    soft.sleep_until = min(until, soft.sleep_until) if soft.sleepers != 0 else until
    soft.sleepers += 1
    full_fence()
    return int(until - now)


@kernel
def is_wanted(soft: Any) -> bool:
    """Whether another thread waits for the lock."""
    return bool(load_acquire(soft.wanted) != 0)


@kernel
def doze(soft: Any, limit_ns: int, wake_fd: int) -> None:
    """Poll until something is readable or time is up."""
    descriptors = np.empty(_POLLED, np.int64)
    watch(descriptors, 0, soft.link_fd)
    watch(descriptors, 1, soft.kick_fd)
    watch(descriptors, 2, wake_fd)
    poll_descriptors(descriptors, limit_ns)


@kernel
def end_sleep(soft: Any) -> None:
    """One less sleeps; the last one takes the kick back, unless it says that the NIC is closed."""
    soft.sleepers -= 1
    if soft.sleepers == 0 and soft.closed == 0:
        silence(soft.kick_fd, soft.scratch)
