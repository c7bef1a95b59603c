"""Every policy at every capacity over one trace, on all processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dpu_agent.cache._slot_kernels import new_slot_table
from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import POLICIES, make_policy
from dpu_agent.planning._belady_kernels import simulate_belady
from dpu_agent.planning._simulation_kernels import FAULT, simulate
from dpu_agent.planning.accesses import Accesses
from dpu_agent.planning.threads import on_all_processors
from kvlane.errors import ConfigError

ALL = "all"
BELADY = "belady"
"""The bound of all policies, from a known future."""
UNBOUNDED = "unbounded"
"""The cache in which everything stays: it has one capacity, the number of distinct blocks."""
BOUNDS = (BELADY, UNBOUNDED)

Hits = tuple[int, int]
"""Hits, and those among them that no miss of their request precedes."""


@dataclass(frozen=True, slots=True)
class PlannedRate:
    """What a policy gives at a capacity."""

    policy: str
    capacity_blocks: int
    """Of all tiers together, where there are several."""
    hit_rate: float
    """Hits by block accesses."""
    prefix_hit_rate: float
    """Blocks in the unbroken leading hits of each request, by block accesses."""


Done = Callable[[PlannedRate, int], object]
"""Takes each rate as soon as it is known, and how many there will be."""


def policy_names(wanted: str) -> list[str]:
    """The policies of a list with commas; ``all`` is every policy and both bounds.

    ``ConfigError`` lists the names there are.
    """
    known = [*sorted(POLICIES), *BOUNDS]
    names = [name.strip() for name in wanted.split(",")]
    unknown = [name for name in names if name not in (*known, ALL)]
    if unknown:
        raise ConfigError(f"unknown policy {unknown[0]!r}; choose from: {ALL}, {', '.join(known)}")
    return known if ALL in names else list(dict.fromkeys(names))


def hits_of(policy: str, accesses: Accesses, capacity_blocks: int) -> Hits:
    """Hits of one policy, or of a bound, at one capacity."""
    distinct = len(accesses.keys)
    if policy == UNBOUNDED:
        policy, capacity_blocks = "lru", distinct
    # Beyond these nothing is ever evicted, and a policy takes memory for each slot.
    slots = min(capacity_blocks, distinct)
    if policy == BELADY:
        return simulate_belady(accesses, slots)
    return simulated_hits(make_policy(policy, slots), accesses, slots)


def planned_rate(policy: str, capacity_blocks: int, accesses: Accesses) -> PlannedRate:
    """The rates of one policy, or of a bound, at one capacity."""
    hits, prefix_hits = hits_of(policy, accesses, capacity_blocks)
    total = len(accesses.blocks)
    return PlannedRate(policy, capacity_blocks, hits / total, prefix_hits / total)


def simulated_hits(policy: EvictionPolicy, accesses: Accesses, capacity_blocks: int) -> Hits:
    """Hits of a new policy for so many slots, of which none is ever pinned."""
    table = new_slot_table(capacity_blocks)
    hits, prefix_hits = simulate(policy.calls, accesses, capacity_blocks, int(table.ctypes.data))
    if hits == FAULT:
        raise AssertionError(f"{type(policy).__name__} found none of {capacity_blocks} to evict")
    return int(hits), int(prefix_hits)


def plan_rates(
    accesses: Accesses,
    policies: Sequence[str],
    capacities_blocks: Sequence[int],
    done: Done = lambda _rate, _total: None,
) -> list[PlannedRate]:
    """The rates in the order of policies, then capacities; each is told to ``done`` too."""
    tasks = list(_tasks(policies, capacities_blocks, len(accesses.keys)))

    def run(task: tuple[str, int]) -> PlannedRate:
        return planned_rate(*task, accesses)

    return on_all_processors(tasks, run, lambda rate: done(rate, len(tasks)))


def _tasks(
    policies: Sequence[str], capacities: Sequence[int], distinct: int
) -> Iterator[tuple[str, int]]:
    for policy in policies:
        if policy == UNBOUNDED:
            yield policy, distinct
        else:
            yield from ((policy, capacity) for capacity in capacities)
