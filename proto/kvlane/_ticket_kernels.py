"""A lock for compiled code of several threads: short steps, first come first served."""

from __future__ import annotations

from kvlane._scheduling_kernels import yield_core
from kvlane.atomics import fetch_add, load_acquire, spin_hint, store_release
from kvlane.jit import kernel

GATE_WORDS = 16
"""The next ticket, and, in a cache line of its own, the one that may pass."""
_PASSING_AT = 64
_SPINS = 256
"""Looks at it before the processor is offered to others: who has it may be waiting for one."""


@kernel
def enter(gate: int) -> None:
    """Wait until nobody else is inside. ``gate`` is the address of ``GATE_WORDS`` zeros."""
    ticket = fetch_add(gate, 1)
    spins = 0
    while load_acquire(gate + _PASSING_AT) != ticket:
        spins += 1
        if spins % _SPINS == 0:
            yield_core()
        else:
            spin_hint()


@kernel
def leave(gate: int) -> None:
    """Let the next one in."""
    store_release(gate + _PASSING_AT, load_acquire(gate + _PASSING_AT) + 1)
