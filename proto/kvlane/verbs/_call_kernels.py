"""Verbs for kernels: each calls through the table of whatever device it is."""

from __future__ import annotations

from kvlane.atomics import load_acquire
from kvlane.calls import call
from kvlane.jit import kernel
from kvlane.verbs.calls import VerbCalls


@kernel
def is_wanted(calls: VerbCalls) -> bool:
    """Whether another thread waits for the device."""
    return bool(load_acquire(calls.wanted) != 0)


@kernel
def progress(calls: VerbCalls, now: int) -> int:
    """Do the NIC's pending work; 1 when there was any."""
    return int(call(calls.progress, calls.context, now, 0, 0))


@kernel
def poll_cq(calls: VerbCalls, cq: int, completions: int, count: int) -> int:
    """Move up to ``count`` completions to an address; how many."""
    return int(call(calls.poll_cq, calls.context, cq, completions, count))


@kernel
def post_send(calls: VerbCalls, qp: int, requests: int, count: int) -> int:
    """Post the ``SEND_WR`` records at an address, all or none: a ``PostResult``."""
    return int(call(calls.post_send, calls.context, qp, requests, count))


@kernel
def post_recv(calls: VerbCalls, qp: int, requests: int, count: int) -> int:
    """Post the ``RECV_WR`` records at an address, all or none: a ``PostResult``."""
    return int(call(calls.post_recv, calls.context, qp, requests, count))


@kernel
def sleep(calls: VerbCalls, timeout_ns: int, wake_fd: int, patient: bool) -> int:
    """Sleep until there may be work, a descriptor is readable or time is up.

    Who is ``patient`` does not wait for the completions of SENDs.
    A loop's remaining time may be over before it comes here; then it does not sleep at all.
    """
    return int(call(calls.sleep, calls.context, max(timeout_ns, 0), wake_fd, 1 if patient else 0))
