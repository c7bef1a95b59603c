"""Waiting in a loop without keeping the core from those who are waited for."""

from __future__ import annotations

from numba import types

from kvlane.atomics import spin_hint
from kvlane.jit import external, kernel

yield_core = external("sched_yield", types.int32())
"""Let others who are ready to run have the core, if there are any."""

UNYIELDING_NS = 1_000
"""What comes sooner is worth the wait. Who has the core by then may keep it for milliseconds."""


@kernel
def wait_a_turn(idle_ns: int) -> None:
    """One turn of a loop that has waited for ``idle_ns`` and does not sleep yet.

    It soon lets others have the core: a process that waits for another may share its core with
    that very process, since the scheduler moves both together when one wakes the other. The one
    would spin its time away before the other could begin.
    """
    if idle_ns < UNYIELDING_NS:
        spin_hint()
    else:
        yield_core()
