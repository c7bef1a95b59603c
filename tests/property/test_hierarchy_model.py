"""Tiers in virtual time are those of a plain model, for any requests, sizes and policies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.planning.accesses import Accesses, flatten
from dpu_agent.planning.hierarchy import Outcome, VirtualTier, run_hierarchy
from kvlane.trace import Request
from tests.support.plain_policies import PlainPolicy
from tests.support.tier_model import PlainTier, PlainTiers

TIER_COUNTS = ("hits", "stored", "promoted", "demoted", "passed_by")
TOTALS = ("asked", "stranded", "refused", "dropped", "unread", "orphaning")


@st.composite
def prefix_chains(draw: Any) -> list[list[int]]:
    """Requests as prompts have them: each extends or forks what came before."""
    chains: list[list[int]] = []
    named = 0
    for _ in range(draw(st.integers(1, 25))):
        base = draw(st.sampled_from([[], *chains]))
        kept = base[: draw(st.integers(0, len(base)))]
        count = draw(st.integers(0 if kept else 1, 5))
        chains.append([*kept, *range(named, named + count)])
        named += count
    return chains


any_chains = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=25)
sizes = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=4)
policies = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=4, max_size=4)


def accesses_of(chains: list[list[int]]) -> Accesses:
    return flatten(Request(float(at), 1, 1, tuple(chain)) for at, chain in enumerate(chains))


def refused_by(kind: int, key: int) -> bool:
    """Nothing, or one key in four."""
    return kind > 0 and key % 4 == kind


def run_plain(
    accesses: Accesses, sizes: list[tuple[int, bool]], kinds: list[tuple[bool, int]]
) -> tuple[PlainTiers, list[list[int]]]:
    tiers = [
        PlainTier(
            capacity=min(capacity, len(accesses.keys)),
            keeps_copies=keeps,
            renews=renews,
            refuses=lambda block, kind=kind: refused_by(kind, int(accesses.keys[block])),
        )
        for (capacity, keeps), (renews, kind) in zip(sizes, kinds, strict=False)
    ]
    model = PlainTiers(tiers)
    ends = [0, *accesses.request_ends.tolist()]
    chains = [accesses.blocks[a:b].tolist() for a, b in pairwise(ends)]
    return model, [model.serve(chain) for chain in chains]


def run_compiled(
    accesses: Accesses, sizes: list[tuple[int, bool]], kinds: list[tuple[bool, int]], windows: int
) -> Outcome:
    made: list[PlainPolicy] = []

    def make(name: str, _slots: int) -> EvictionPolicy:
        renews, kind = kinds[int(name)]
        made.append(PlainPolicy(renews=renews, refuses=lambda key: refused_by(kind, key)))
        return made[-1]

    tiers = [
        VirtualTier(f"tier {at}", capacity, str(at), keeps)
        for at, (capacity, keeps) in enumerate(sizes)
    ]
    outcome = run_hierarchy(accesses, tiers, windows=windows, detailed=True, make=make)
    assert [policy.take_fault() for policy in made] == [None] * len(tiers)
    for tier, policy in zip(tiers, made, strict=True):
        assert len(policy.ordered()) <= tier.capacity_blocks
    return outcome


@settings(max_examples=150)
@given(
    chains=st.one_of(prefix_chains(), any_chains),
    sizes=sizes,
    kinds=policies,
    windows=st.integers(1, 5),
)
def test_counts_are_those_of_the_model(
    chains: list[list[int]],
    sizes: list[tuple[int, bool]],
    kinds: list[tuple[bool, int]],
    windows: int,
) -> None:
    accesses = accesses_of(chains)
    model, served = run_plain(accesses, sizes, kinds)
    outcome = run_compiled(accesses, sizes, kinds, windows)
    assert outcome.served.tolist() == served
    for number, tier in enumerate(model.tiers):
        found = {name: outcome.of_tier(number, name) for name in TIER_COUNTS}
        assert found == {name: tier.counts[name] for name in TIER_COUNTS}
    assert {name: outcome.total(name) for name in TOTALS} == {
        name: model.totals[name] for name in TOTALS
    }
    assert outcome.total("present") == len(model.present())
    assert outcome.total("orphaned") == model.orphans()
    for array in (outcome.counts, outcome.totals):
        for name in array.dtype.names or ():
            if name not in ("present", "orphaned"):
                assert (np.diff(array[name], axis=0) >= 0).all()


@given(chains=prefix_chains(), sizes=sizes)
def test_blocks_are_conserved(chains: list[list[int]], sizes: list[tuple[int, bool]]) -> None:
    accesses = accesses_of(chains)
    tiers = [VirtualTier("", capacity, "lru", keeps) for capacity, keeps in sizes]
    outcome = run_hierarchy(accesses, tiers, detailed=True)
    stored = int(outcome.counts["stored"][-1].sum())
    restored = outcome.total("stranded")
    # Whatever came from a host lies somewhere, has left, or was there when it was stored again.
    assert outcome.total("present") + outcome.total("dropped") <= stored
    assert stored <= outcome.total("present") + outcome.total("dropped") + restored
    room = sum(min(tier.capacity_blocks, len(accesses.keys)) for tier in tiers)
    assert outcome.total("present") <= room
    assert outcome.prefix_hits + outcome.total("stranded") + stored >= outcome.total("asked")
