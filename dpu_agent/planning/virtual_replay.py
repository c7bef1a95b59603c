"""A replay in virtual time: one hierarchy in detail, policies beside it, and sizes that were asked
for. No payload, no agent; what is simulated are the agent's own compiled policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpu_agent.planning.accesses import Accesses
from dpu_agent.planning.costs import Prefill, Spread, Values, first_token_ms, load_ms, prefill_of
from dpu_agent.planning.hierarchy import Outcome, VirtualTier, run_hierarchy
from dpu_agent.planning.planner import PlannedRate
from dpu_agent.planning.profile import LatencyProfile
from dpu_agent.planning.sizing import (
    CurvePoint,
    LeastCapacity,
    WorthwhileCapacity,
    curve_capacities,
    hit_rate_by_size,
    least_capacity,
    worthwhile_capacity,
)
from dpu_agent.planning.sweep import sweep
from dpu_agent.planning.threads import on_all_processors

WINDOWS = 60
"""Into which the time of the trace is cut."""

Say = Callable[[str], object]
"""Takes what is being done, for whoever waits."""


@dataclass(frozen=True, slots=True)
class VirtualJob:
    """What to replay, and what to find out."""

    trace: str
    """What reports call it."""
    tiers: tuple[VirtualTier, ...]
    block_bytes: int
    profile: LatencyProfile
    profile_name: str
    policies: tuple[str, ...]
    """For the sweep, bounds included."""
    scales: tuple[float, ...]
    wanted_hit_rate: float | None = None
    least_gain_per_gib: float | None = None


@dataclass(frozen=True, slots=True)
class TierLoads:
    """How long requests load from a tier."""

    tier: str
    times_ms: Values
    spread: Spread


@dataclass(frozen=True, slots=True)
class VirtualReplay:
    """All that came of it."""

    job: VirtualJob
    accesses: Accesses
    outcome: Outcome
    prefill: Prefill
    loads: tuple[TierLoads, ...]
    first_token_ms: Spread
    """Estimated, without waiting for others."""
    first_token_without_cache_ms: Spread
    points: tuple[PlannedRate, ...]
    least: tuple[LeastCapacity, ...]
    worthwhile: tuple[WorthwhileCapacity, ...]
    simulated_accesses: int
    """Block accesses of the sweep."""
    seconds: float
    """That the sweep took, on all processors."""


def replay_virtually(
    accesses: Accesses, job: VirtualJob, say: Say = lambda _text: None
) -> VirtualReplay:
    """Simulate everything that the job asks for."""
    names = [tier.name for tier in job.tiers]
    for name in names:
        job.profile.of(name)  # says now what the profile lacks
    say("replaying")
    outcome = run_hierarchy(accesses, job.tiers, windows=WINDOWS, detailed=True)
    times = load_ms(outcome.served, names, job.profile, job.block_bytes)
    first, without = (
        first_token_ms(accesses, served, names, job.profile, job.block_bytes)
        for served in (outcome.served, outcome.served * 0)
    )
    start_s = time.monotonic()
    points = sweep(
        accesses,
        job.tiers,
        job.policies,
        job.scales,
        lambda point, total: say(
            f"simulating {total} caches: {point.policy}, {point.capacity_blocks:,} blocks"
        ),
    )
    seconds = time.monotonic() - start_s
    return VirtualReplay(
        job=job,
        accesses=accesses,
        outcome=outcome,
        prefill=prefill_of(accesses, outcome.served, job.profile),
        loads=tuple(TierLoads(name, times[name], Spread.of(times[name])) for name in names),
        first_token_ms=Spread.of(first),
        first_token_without_cache_ms=Spread.of(without),
        points=tuple(points),
        least=tuple(_least(accesses, job, say)),
        worthwhile=tuple(_worthwhile(accesses, job, say)),
        simulated_accesses=len(points) * len(accesses.blocks),
        seconds=seconds,
    )


def _least(accesses: Accesses, job: VirtualJob, say: Say) -> Sequence[LeastCapacity]:
    wanted = job.wanted_hit_rate
    if wanted is None:
        return []
    all_blocks = len(accesses.keys)

    def size(tier: int) -> LeastCapacity:
        hit_rate = hit_rate_by_size(accesses, job.tiers, tier)
        return least_capacity(job.tiers[tier].name, hit_rate, wanted, all_blocks)

    say(f"looking for a hit rate of {wanted:g}")
    return on_all_processors(range(len(job.tiers)), size)


def _worthwhile(accesses: Accesses, job: VirtualJob, say: Say) -> Sequence[WorthwhileCapacity]:
    least_gain = job.least_gain_per_gib
    if least_gain is None:
        return []
    capacities = curve_capacities(len(accesses.keys))
    tasks = [(tier, blocks) for tier in range(len(job.tiers)) for blocks in capacities]

    def simulate(task: tuple[int, int]) -> CurvePoint:
        tier, blocks = task
        return CurvePoint(blocks, hit_rate_by_size(accesses, job.tiers, tier)(blocks))

    say(f"looking where another GiB gains less than {least_gain:g}")
    points = on_all_processors(tasks, simulate)
    count = len(capacities)
    return [
        worthwhile_capacity(
            tier.name, points[at * count : (at + 1) * count], least_gain, job.block_bytes
        )
        for at, tier in enumerate(job.tiers)
    ]
