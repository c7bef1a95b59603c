"""Pacing: when the next packet with data may leave, by what congestion control allows.

The only place that knows which algorithms there are; see ``emulator.roce.congestion``.
"""

from __future__ import annotations

from typing import Any

from emulator.roce.congestion import _dcqcn_kernels as dcqcn
from emulator.roce.congestion.state import CongestionAlgorithm
from kvlane.jit import kernel

_NONE = int(CongestionAlgorithm.NONE)
_DCQCN = int(CongestionAlgorithm.DCQCN)

_BURST_NS = 10_000
"""Lateness that may be made up for at once; more would be a burst that pacing is to prevent."""
_BITS_NS = 8 * 1_000_000_000


@kernel
def start_pacing(qp: Any, algorithm: int, line_rate: int) -> None:
    """A path has been set: its sender begins at ``line_rate`` bit/s."""
    qp.cc_kind = algorithm
    qp.pace_time = 0
    if algorithm == _DCQCN:
        dcqcn.start(dcqcn.dcqcn_at(qp.cc, 0), line_rate)


@kernel
def _allowed_rate(qp: Any, nbytes: int, now: int) -> int:
    return int(dcqcn.allowed_rate(dcqcn.dcqcn_at(qp.cc, 0), nbytes, now))


@kernel
def slow_down(qp: Any, now: int) -> bool:
    """A congestion notification has arrived; False when nothing reacts to it."""
    if qp.cc_kind == _DCQCN:
        dcqcn.on_notification(dcqcn.dcqcn_at(qp.cc, 0), now)
        return True
    return False


@kernel
def paced_until(qp: Any) -> int:
    """The time before which no packet with data may leave; 0 without congestion control."""
    return int(qp.pace_time)


@kernel
def spend_pace(qp: Any, nbytes: int, now: int) -> None:
    """A packet has left: the next one waits as long as this one takes at the allowed rate."""
    if qp.cc_kind != _NONE:
        rate = _allowed_rate(qp, nbytes, now)
        qp.pace_time = max(qp.pace_time, now - _BURST_NS) + nbytes * _BITS_NS // rate
