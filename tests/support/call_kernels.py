"""Kernels that tests call through tables of addresses, and one that drives a device that way."""

from __future__ import annotations

from kvlane.atomics import fetch_add, full_fence, load_acquire, prefetch, spin_hint, store_release
from kvlane.calls import call, exported
from kvlane.jit import kernel
from kvlane.verbs import _call_kernels as verbs
from kvlane.verbs.calls import FAULT, VerbCalls
from kvlane.verbs.records import WC

_SLEEP_NS = 5_000_000
_WC_BYTES = int(WC.itemsize)


@kernel
def _weighted(first: int, second: int, third: int, fourth: int) -> int:
    return first + 10 * second + 100 * third + 1000 * fourth


def _weighted_entry(first: int, second: int, third: int, fourth: int) -> int:
    return _weighted(first, second, third, fourth)


WEIGHTED = exported(_weighted_entry)


def _slot_0(_context: int, _first: int, _second: int, _third: int) -> int:
    return 0


PINNED_SLOT_0 = exported(_slot_0)
"""A policy's choice that never looks at pins."""


@kernel
def call_through(address: int, first: int, second: int, third: int, fourth: int) -> int:
    """What the function at an address answers."""
    return call(address, first, second, third, fourth)


@kernel
def exercise_word(address: int) -> int:
    """Every ordered access once: the word is 7 afterwards, and 5 + 7 the answer."""
    store_release(address, 5)
    full_fence()
    spin_hint()
    prefetch(0)
    prefetch(address)
    return fetch_add(address, 2) + load_acquire(address)


@kernel
def add_often(address: int, rounds: int) -> None:
    """Add 1 to a word so many times."""
    for _ in range(rounds):
        fetch_add(address, 1)


@kernel
def drive(calls: VerbCalls, cq: int, completions: int, wanted: int, rounds: int) -> int:
    """Progress, poll and sleep until so many completions came; how many did."""
    came = 0
    for now in range(rounds):
        worked = verbs.progress(calls, now)
        count = verbs.poll_cq(calls, cq, completions + came * _WC_BYTES, wanted - came)
        if worked == FAULT or count == FAULT:
            return FAULT
        came += count
        if came == wanted:
            break
        if worked == 0 and count == 0:
            verbs.sleep(calls, _SLEEP_NS, -1, False)
    return came


@kernel
def sleep_for(calls: VerbCalls, timeout_ns: int, patient: bool) -> int:
    """Sleep; what that answers."""
    return verbs.sleep(calls, timeout_ns, -1, patient)


@kernel
def is_wanted(calls: VerbCalls) -> bool:
    """Whether another thread waits for the device."""
    return verbs.is_wanted(calls)


@kernel
def post(calls: VerbCalls, qp: int, receive: bool, requests: int, count: int) -> int:
    """Post sends or receives at an address."""
    if receive:
        return verbs.post_recv(calls, qp, requests, count)
    return verbs.post_send(calls, qp, requests, count)
