"""A step that must not be made by two threads at once."""

from __future__ import annotations

from kvlane._ticket_kernels import enter, leave
from kvlane.atomics import load_acquire, spin_hint, store_release
from kvlane.jit import kernel

_PAUSES = 20


@kernel
def add_slowly(gate: int, count: int, rounds: int) -> None:
    """Add 1 to a word so many times, each time with a pause between reading and writing."""
    for _ in range(rounds):
        enter(gate)
        before = load_acquire(count)
        for _pause in range(_PAUSES):
            spin_hint()
        store_release(count, before + 1)
        leave(gate)
