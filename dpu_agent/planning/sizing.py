"""How large a tier should be: the least that reaches a hit rate, and where more is not worth it.

Every answer rests on capacities that were simulated, over the whole trace. A hit rate need not grow
with the capacity under every policy; so what is found is a capacity that reaches what is wanted,
beside one that is at most 1 % smaller and does not, and another such pair may lie below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dpu_agent.planning.accesses import Accesses
from dpu_agent.planning.hierarchy import VirtualTier, run_hierarchy

PRECISION = 0.01
CURVE_POINTS = 24
GIB = 1 << 30

HitRate = Callable[[int], float]
"""Of a capacity in blocks."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One capacity of the tier that is sized."""

    capacity_blocks: int
    hit_rate: float


@dataclass(frozen=True, slots=True)
class LeastCapacity:
    """The answer for one tier, the others being as they are."""

    tier: str
    wanted_hit_rate: float
    reached: CurvePoint | None
    """The least capacity found, simulated; None when even room for all blocks falls short."""
    below: CurvePoint | None
    """At most 1 % smaller, simulated, and too small; None when one block is enough."""
    most_hit_rate: float
    """With room for all blocks of the trace."""


@dataclass(frozen=True, slots=True)
class WorthwhileCapacity:
    """Where growing one tier stops to pay, the others being as they are."""

    tier: str
    least_gain_per_gib: float
    capacity_blocks: int | None
    """Beyond it no step of the curve gains as much; None when not even its first does."""
    hit_rate: float | None
    curve: tuple[CurvePoint, ...]


def hit_rate_by_size(accesses: Accesses, tiers: Sequence[VirtualTier], tier: int) -> HitRate:
    """The hit rate of all tiers by the capacity of one of them."""

    def hit_rate(capacity_blocks: int) -> float:
        resized = list(tiers)
        resized[tier] = replace(resized[tier], capacity_blocks=capacity_blocks)
        return run_hierarchy(accesses, resized).hit_rate

    return hit_rate


def least_capacity(tier: str, hit_rate: HitRate, wanted: float, all_blocks: int) -> LeastCapacity:
    """By bisection between one block and room for all, to within ``PRECISION``."""
    most = CurvePoint(all_blocks, hit_rate(all_blocks))
    if most.hit_rate < wanted:
        return LeastCapacity(tier, wanted, None, None, most.hit_rate)
    enough, below = most, CurvePoint(1, hit_rate(1))
    if below.hit_rate >= wanted:
        return LeastCapacity(tier, wanted, below, None, most.hit_rate)
    while not _are_close(below.capacity_blocks, enough.capacity_blocks):
        middle = math.isqrt(below.capacity_blocks * enough.capacity_blocks)
        capacity = min(max(middle, below.capacity_blocks + 1), enough.capacity_blocks - 1)
        point = CurvePoint(capacity, hit_rate(capacity))
        if point.hit_rate >= wanted:
            enough = point
        else:
            below = point
    return LeastCapacity(tier, wanted, enough, below, most.hit_rate)


def _are_close(below: int, enough: int) -> bool:
    return enough - below <= max(1, math.floor(PRECISION * enough))


def curve_capacities(all_blocks: int) -> list[int]:
    """From one block to room for all, each larger than the last by about the same factor."""
    steps = max(1, CURVE_POINTS - 1)
    ratio = all_blocks ** (1 / steps)
    return sorted({min(all_blocks, round(ratio**step)) for step in range(CURVE_POINTS)})


def worthwhile_capacity(
    tier: str, curve: Sequence[CurvePoint], least_gain_per_gib: float, block_bytes: int
) -> WorthwhileCapacity:
    """The end of the last step of a curve that gains so much for each GiB."""
    found: CurvePoint | None = None
    for before, after in pairwise(curve):
        gib = (after.capacity_blocks - before.capacity_blocks) * block_bytes / GIB
        if (after.hit_rate - before.hit_rate) / gib >= least_gain_per_gib:
            found = after
    return WorthwhileCapacity(
        tier=tier,
        least_gain_per_gib=least_gain_per_gib,
        capacity_blocks=found.capacity_blocks if found else None,
        hit_rate=found.hit_rate if found else None,
        curve=tuple(curve),
    )
