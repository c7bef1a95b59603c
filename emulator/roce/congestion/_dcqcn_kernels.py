"""DCQCN's reaction point (Zhu et al., SIGCOMM 2015), with the defaults of ConnectX.

On a notification the rate is cut by alpha/2 and alpha grows; without notifications alpha
decays, and the rate recovers by halves towards the target (fast recovery), then by a fixed
step (additive), then by a growing one (hyper increase). Time comes in as ``now``.
"""

from __future__ import annotations

from typing import Any

from kvlane.jit import kernel

ALPHA_ONE = 1024
"""alpha is kept in 1/1024."""
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
MIN_DECREASE_PERCENT = 50
"""RPG_MIN_DEC_FAC: one cut leaves at least this part."""
MIN_BPS = 1_000_000
"""RPG_MIN_RATE, 1 Mb/s."""
_MAX_ALPHA_STEPS = 8192
"""After so many steps alpha is 0; a longer silence need not be counted out."""


@kernel
def on_cnp(cc: Any, now: int) -> None:
    """A notification: from the first one on the rate is limited."""
    if cc.limited == 0:
        cc.limited = 1
        cc.rate = cc.line_rate
        cc.target = cc.line_rate
        cc.alpha = ALPHA_ONE - 1  # INITIAL_ALPHA_VALUE
        cc.alpha_time = now + ALPHA_STEP_NS
        cc.decrease_time = now
        cc.increase_time = now + INCREASE_STEP_NS
        cc.bytes_left = INCREASE_STEP_BYTES
    cc.cut_since_check = 1
    cc.alpha = min(ALPHA_ONE - 1, (cc.alpha * G + (ALPHA_ONE - G) * ALPHA_ONE) // ALPHA_ONE)
    cc.alpha_time = now + ALPHA_STEP_NS
    if now >= cc.decrease_time:
        _cut(cc, now)


@kernel
def _cut(cc: Any, now: int) -> None:
    """Rate to rate (1 - alpha/2); the old rate becomes the target (CLAMP_TGT_RATE 0: only
    if an increase has happened since the last cut)."""
    if cc.time_stage > 0 or cc.byte_stage > 0 or cc.target < cc.rate:
        cc.target = cc.rate
    cut = cc.rate - cc.rate * cc.alpha // (2 * ALPHA_ONE)
    cc.rate = max(MIN_BPS, cc.rate * MIN_DECREASE_PERCENT // 100, cut)
    cc.time_stage = 0
    cc.byte_stage = 0
    cc.cut_since_check = 0
    cc.decrease_time = now + DECREASE_STEP_NS
    cc.increase_time = now + INCREASE_STEP_NS
    cc.bytes_left = INCREASE_STEP_BYTES


@kernel
def _increase(cc: Any) -> None:
    """One stage of recovery: fast while both counts are low, hyper when both are high."""
    low = min(cc.time_stage, cc.byte_stage)
    if low > THRESHOLD:
        cc.target += (low - THRESHOLD) * HYPER_BPS
    elif max(cc.time_stage, cc.byte_stage) > THRESHOLD:
        cc.target += ADDITIVE_BPS
    cc.target = min(cc.target, cc.line_rate)
    cc.rate = min(cc.line_rate, (cc.rate + cc.target) // 2 + 1)
    if cc.rate >= cc.line_rate:
        cc.limited = 0
        cc.time_stage = 0
        cc.byte_stage = 0


@kernel
def advance(cc: Any, now: int) -> None:
    """Let time pass: alpha decays, cuts that were put off happen, increases by time."""
    if cc.limited == 0:
        return
    steps = 0
    while cc.alpha_time <= now and steps < _MAX_ALPHA_STEPS and cc.alpha > 0:
        cc.alpha = cc.alpha * G // ALPHA_ONE
        cc.alpha_time += ALPHA_STEP_NS
        steps += 1
    cc.alpha_time = max(cc.alpha_time, now)
    if cc.cut_since_check != 0 and now >= cc.decrease_time:
        _cut(cc, now)
    while cc.limited != 0 and cc.increase_time <= now:
        cc.time_stage += 1
        cc.increase_time += INCREASE_STEP_NS
        _increase(cc)


@kernel
def allowed_rate(cc: Any, nbytes: int, now: int) -> int:
    """The rate in bit/s for a packet of ``nbytes`` that leaves now, and count its bytes."""
    advance(cc, now)
    if cc.limited == 0:
        return int(cc.line_rate)
    cc.bytes_left -= nbytes
    while cc.limited != 0 and cc.bytes_left <= 0:
        cc.bytes_left += INCREASE_STEP_BYTES
        cc.byte_stage += 1
        _increase(cc)
    return int(cc.rate if cc.limited != 0 else cc.line_rate)
