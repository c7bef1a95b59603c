"""How large a tier should be: what is answered was simulated, and nothing near by is better."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.planning.hierarchy import VirtualTier
from dpu_agent.planning.sizing import (
    CurvePoint,
    curve_capacities,
    hit_rate_by_size,
    least_capacity,
    worthwhile_capacity,
)
from tests.support.access_patterns import as_accesses, zipf_names

GIB = 1 << 30


def counted(hit_rate: Callable[[int], float]) -> tuple[Callable[[int], float], dict[int, float]]:
    """A hit rate, and every capacity that it was asked for."""
    asked: dict[int, float] = {}

    def simulate(capacity: int) -> float:
        asked[capacity] = hit_rate(capacity)
        return asked[capacity]

    return simulate, asked


@given(need=st.integers(1, 10**6), all_blocks=st.integers(1, 10**6))
def test_the_least_capacity_is_found_to_a_hundredth(need: int, all_blocks: int) -> None:
    simulate, asked = counted(lambda capacity: 0.5 if capacity >= need else 0.1)
    answer = least_capacity("dram", simulate, 0.5, all_blocks)
    if need > all_blocks:
        assert (answer.reached, answer.below, answer.most_hit_rate) == (None, None, 0.1)
        return
    assert answer.reached is not None
    found = answer.reached.capacity_blocks
    assert need <= found <= max(need + 1, need / 0.99 + 1)
    assert (answer.below is None) == (found == 1)
    assert len(asked) < 60


@given(
    rates=st.lists(st.integers(0, 100), min_size=1, max_size=200),
    wanted=st.integers(1, 100),
)
def test_what_is_answered_was_simulated_even_where_more_room_hits_less(
    rates: list[int], wanted: int
) -> None:
    simulate, asked = counted(lambda capacity: rates[capacity - 1] / 100)
    answer = least_capacity("dram", simulate, wanted / 100, len(rates))
    if answer.reached is None:
        assert rates[-1] < wanted
        return
    assert asked[answer.reached.capacity_blocks] == answer.reached.hit_rate >= wanted / 100
    if answer.below is not None:
        assert asked[answer.below.capacity_blocks] == answer.below.hit_rate < wanted / 100
        assert answer.below.capacity_blocks < answer.reached.capacity_blocks


def test_a_tier_is_sized_with_the_others_as_they_are() -> None:
    accesses = as_accesses(zipf_names(distinct=60, count=400, exponent=0.6, seed=1))
    tiers = [VirtualTier("dram", 3, "lru", False), VirtualTier("nvme", 9, "lru", False)]
    by_size = hit_rate_by_size(accesses, tiers, 1)
    answer = least_capacity("nvme", by_size, 0.4, len(accesses.keys))
    assert answer.reached is not None
    assert answer.below is not None
    assert by_size(answer.reached.capacity_blocks) >= 0.4 > by_size(answer.below.capacity_blocks)
    assert hit_rate_by_size(accesses, tiers, 0)(3) == by_size(9)


@given(all_blocks=st.integers(1, 10**9))
def test_a_curve_goes_from_one_block_to_room_for_all(all_blocks: int) -> None:
    capacities = curve_capacities(all_blocks)
    assert capacities[0] == 1
    assert capacities[-1] == all_blocks
    assert capacities == sorted(set(capacities))


@pytest.mark.parametrize(
    ("least_gain", "capacity"),
    [(0.02, None), (0.01, 8), (0.001, 16), (0.0001, 16)],
)
def test_beyond_what_is_worth_it_no_step_gains_as_much(
    least_gain: float, capacity: int | None
) -> None:
    # Blocks of a GiB: 0.01 a block, then 0.001, then nothing.
    places = ((2, 0.02), (4, 0.04), (8, 0.08), (16, 0.088), (32, 0.088))
    curve = [CurvePoint(*place) for place in places]
    answer = worthwhile_capacity("dram", curve, least_gain - 1e-12, GIB)
    assert answer.capacity_blocks == capacity
    assert answer.curve == tuple(curve)
