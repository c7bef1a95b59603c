"""Hit rates of whole hierarchies: every policy at every size, beside the bounds of all policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpu_agent.planning.accesses import Accesses
from dpu_agent.planning.hierarchy import VirtualTier, run_hierarchy
from dpu_agent.planning.planner import BOUNDS, UNBOUNDED, Done, PlannedRate, planned_rate
from dpu_agent.planning.threads import on_all_processors


def scaled(tiers: Sequence[VirtualTier], scale: float) -> list[VirtualTier]:
    """The same tiers, all larger or smaller by a factor; each holds one block at least."""
    return [
        replace(tier, capacity_blocks=max(1, round(tier.capacity_blocks * scale))) for tier in tiers
    ]


def with_policy(tiers: Sequence[VirtualTier], policy: str) -> list[VirtualTier]:
    """The same tiers, the coldest under another policy."""
    return [*tiers[:-1], replace(tiers[-1], policy=policy)]


def total_blocks(tiers: Sequence[VirtualTier]) -> int:
    """Room of all tiers together."""
    return sum(tier.capacity_blocks for tier in tiers)


def rates_of(accesses: Accesses, tiers: Sequence[VirtualTier], name: str) -> PlannedRate:
    """One point, under the name of what was simulated."""
    outcome = run_hierarchy(accesses, tiers)
    return PlannedRate(name, total_blocks(tiers), outcome.hit_rate, outcome.prefix_hit_rate)


def sweep(
    accesses: Accesses,
    tiers: Sequence[VirtualTier],
    policies: Sequence[str],
    scales: Sequence[float],
    done: Done = lambda _point, _total: None,
) -> list[PlannedRate]:
    """In the order of policies, then scales, on all processors.

    A policy reigns in the coldest tier; the others keep theirs. Belady's optimum and the unbounded
    cache, if among the policies, are of one cache of the tiers' size; the unbounded has one point.
    """
    tasks: list[tuple[str, list[VirtualTier]]] = []
    for policy in policies:
        if policy == UNBOUNDED:
            tasks.append((policy, list(tiers)))
        else:
            tasks += [(policy, scaled(tiers, scale)) for scale in sorted(scales)]

    def run(task: tuple[str, list[VirtualTier]]) -> PlannedRate:
        policy, sized = task
        if policy in BOUNDS:
            blocks = len(accesses.keys) if policy == UNBOUNDED else total_blocks(sized)
            return planned_rate(policy, blocks, accesses)
        return rates_of(accesses, with_policy(sized, policy), policy)

    return on_all_processors(tasks, run, lambda point: done(point, len(tasks)))
