"""What a loop over verbs does in a turn without work: look again soon, and sleep in the end."""

from __future__ import annotations

from kvlane._scheduling_kernels import wait_a_turn
from kvlane.jit import kernel
from kvlane.verbs import _call_kernels as verbs
from kvlane.verbs.calls import FAULT, VerbCalls

SPUN = 0
SLEPT = 1
"""Time has passed: whoever has slept looks at the clock."""


@kernel
def rest(calls: VerbCalls, idle_ns: int, spin_ns: int, limit_ns: int, wake_fd: int) -> int:
    """One such turn of a loop that has been idle for ``idle_ns`` and spins for ``spin_ns``.

    Then it sleeps, for ``limit_ns`` at most, until there may be work or ``wake_fd`` is readable.
    ``SPUN``, ``SLEPT`` or ``FAULT``.
    """
    if idle_ns < spin_ns:
        wait_a_turn(idle_ns)
        return SPUN
    return FAULT if verbs.sleep(calls, limit_ns, wake_fd) == FAULT else SLEPT
