"""DCQCN's reaction point (Zhu et al., SIGCOMM 2015), with the defaults of ConnectX.

On a notification the rate is cut by alpha/2 and alpha grows; without notifications alpha
decays, and the rate recovers by halves towards the target (fast recovery), then by a fixed
step (additive), then by a growing one (hyper increase). What is due at a time happens at
that time, however late it is looked at, so the result does not depend on who asks when.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

ALPHA_ONE = 1024
"""alpha is kept in 1/1024."""
INITIAL_ALPHA = 1023
"""INITIAL_ALPHA_VALUE."""
G = 1019
"""DCE_TCP_G: alpha keeps 1019/1024 of itself a step."""
ALPHA_STEP_NS = 1_000
"""DCE_TCP_RTT, 1 us."""
DECREASE_STEP_NS = 4_000
"""RATE_REDUCE_MONITOR_PERIOD, 4 us: at most one cut in it."""
INCREASE_STEP_NS = 300_000
"""RPG_TIME_RESET, 300 us."""
INCREASE_STEP_BYTES = 32_767
"""RPG_BYTE_RESET."""
THRESHOLD = 1
"""RPG_THRESHOLD: stages of fast recovery."""
ADDITIVE_BPS = 5_000_000
"""RPG_AI_RATE, 5 Mb/s."""
HYPER_BPS = 50_000_000
"""RPG_HAI_RATE, 50 Mb/s."""
DECREASE_ONE = 1 << 11
"""RPG_GD is 11: a cut takes alpha/2^11 of the rate, alpha being in 1/1024."""
MIN_DECREASE_PERCENT = 50
"""RPG_MIN_DEC_FAC: one cut leaves at least this part."""
MIN_BPS = 1_000_000
"""RPG_MIN_RATE, 1 Mb/s."""

DCQCN = np.dtype(
    [
        (name, "i8")
        for name in (
            "rate",  # allowed now, bit/s
            "target",  # where recovery heads, bit/s
            "line_rate",  # the most, bit/s
            "alpha",  # congestion estimate, in 1/1024
            "limited",  # 0 until the first notification: the line rate holds
            "cut_due",  # a notification has come that has not yet cut the rate
            "alpha_time",  # next decay of alpha
            "decrease_time",  # no cut before
            "increase_time",  # next increase by time
            "bytes_left",  # until the next increase by bytes
            "time_stage",  # increases by time since the last cut
            "byte_stage",  # increases by bytes since the last cut
        )
    ]
)
"""State of one queue pair."""

dcqcn_at = record_accessor(DCQCN)


@kernel
def start(cc: Any, line_rate: int) -> None:
    """Sending begins, at the line rate and without a limit."""
    cc.line_rate = line_rate
    cc.rate = line_rate
    cc.target = line_rate
    cc.limited = 0
    cc.decrease_time = 0


@kernel
def _restart_increase(cc: Any, now: int) -> None:
    cc.time_stage = 0
    cc.byte_stage = 0
    cc.increase_time = now + INCREASE_STEP_NS
    cc.bytes_left = INCREASE_STEP_BYTES


@kernel
def _begin_limit(cc: Any, now: int) -> None:
    """The first notification of a flow that had the line rate."""
    cc.limited = 1
    cc.rate = cc.line_rate
    cc.target = cc.line_rate
    cc.alpha = INITIAL_ALPHA
    cc.cut_due = 0
    _restart_increase(cc, now)


@kernel
def _cut(cc: Any, now: int) -> None:
    """Rate to rate (1 - alpha/2), and recovery from the start.

    The old rate becomes the target only if time has increased it since the last cut:
    CLAMP_TGT_RATE is 0 and CLAMP_TGT_RATE_AFTER_TIME_INC is 1.
    """
    if cc.time_stage > 0:
        cc.target = cc.rate
    least = cc.rate * MIN_DECREASE_PERCENT // 100
    cc.rate = max(MIN_BPS, least, cc.rate - cc.rate * cc.alpha // DECREASE_ONE)
    cc.target = max(cc.target, cc.rate)
    cc.cut_due = 0
    cc.decrease_time = now + DECREASE_STEP_NS
    _restart_increase(cc, now)


@kernel
def _increase(cc: Any) -> None:
    """One stage of recovery: fast while both counts are low, hyper when both are high."""
    low = min(cc.time_stage, cc.byte_stage)
    if low > THRESHOLD:
        cc.target += (low - THRESHOLD) * HYPER_BPS
    elif max(cc.time_stage, cc.byte_stage) > THRESHOLD:
        cc.target += ADDITIVE_BPS
    cc.target = min(cc.target, cc.line_rate)
    # Rounded up, or the last bit/s to the target would never be gained.
    cc.rate = (cc.rate + cc.target + 1) // 2
    if cc.rate >= cc.line_rate:
        cc.limited = 0


@kernel
def advance(cc: Any, now: int) -> None:
    """Let what is due until ``now`` happen, in the order of its times."""
    while cc.limited != 0:
        due = cc.increase_time
        if cc.cut_due != 0:
            due = min(due, cc.decrease_time)
        if cc.alpha > 0:
            due = min(due, cc.alpha_time)
        if due > now:
            return
        if cc.alpha > 0 and due == cc.alpha_time:
            cc.alpha = cc.alpha * G // ALPHA_ONE
            cc.alpha_time += ALPHA_STEP_NS
        elif cc.cut_due != 0 and due == cc.decrease_time:
            _cut(cc, due)
        else:
            cc.time_stage += 1
            cc.increase_time += INCREASE_STEP_NS
            _increase(cc)


@kernel
def on_notification(cc: Any, now: int) -> None:
    """A CNP: alpha grows, and the rate is cut, now or when the monitoring period ends."""
    advance(cc, now)
    if cc.limited == 0:
        _begin_limit(cc, now)
    else:
        cc.alpha = (cc.alpha * G + (ALPHA_ONE - G) * ALPHA_ONE) // ALPHA_ONE
    cc.alpha_time = now + ALPHA_STEP_NS
    cc.cut_due = 1
    if now >= cc.decrease_time:
        _cut(cc, now)


@kernel
def allowed_rate(cc: Any, nbytes: int, now: int) -> int:
    """The rate in bit/s for a packet of ``nbytes`` that leaves now; its bytes are counted."""
    advance(cc, now)
    if cc.limited != 0:
        cc.bytes_left -= nbytes
    while cc.limited != 0 and cc.bytes_left <= 0:
        cc.bytes_left += INCREASE_STEP_BYTES
        cc.byte_stage += 1
        _increase(cc)
    return int(cc.rate if cc.limited != 0 else cc.line_rate)
