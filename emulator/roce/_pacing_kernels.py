"""Pacing: when the next request packet may leave, by what congestion control allows."""

from __future__ import annotations

from typing import Any

from emulator.roce.congestion._dcqcn_kernels import advance, allowed_rate, on_cnp
from emulator.roce.congestion.state import CC_DCQCN, cc_at
from kvlane.jit import kernel

_BURST_NS = 10_000
"""Lateness that may be made up for at once; more would be a burst that pacing is to prevent."""


@kernel
def paced_until(qp: Any, now: int) -> int:
    """The time before which no request packet may leave; 0 without congestion control."""
    if qp.cc_kind != CC_DCQCN:
        return 0
    advance(cc_at(qp.cc, 0), now)
    return int(qp.pace_time)


@kernel
def spend_pace(qp: Any, nbytes: int, now: int) -> None:
    """A packet has left: the next one waits as long as this one takes at the allowed rate."""
    if qp.cc_kind == CC_DCQCN:
        rate = allowed_rate(cc_at(qp.cc, 0), nbytes, now)
        qp.pace_time = max(qp.pace_time, now - _BURST_NS) + nbytes * 8_000_000_000 // rate


@kernel
def slow_down(qp: Any, now: int) -> bool:
    """A congestion notification has arrived; False when nothing reacts to it."""
    if qp.cc_kind != CC_DCQCN:
        return False
    on_cnp(cc_at(qp.cc, 0), now)
    return True
