"""Tiers in virtual time: one is the cache of ``kvlane plan``; and what moves between several."""

from __future__ import annotations

from itertools import product

import pytest

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.planning.accesses import Accesses, flatten
from dpu_agent.planning.hierarchy import Outcome, VirtualTier, run_hierarchy
from dpu_agent.planning.planner import hits_of
from kvlane.jit import JIT_ENABLED
from kvlane.trace import Request, read_trace
from tests.support.access_patterns import as_accesses, zipf_names
from tests.support.chain_traffic import Names, chats, trace_of
from tests.support.conversation_trace import conversation_trace


def hits_in_one_tier(policy: str, accesses: Accesses, capacity: int) -> tuple[int, int]:
    outcome = run_hierarchy(accesses, [VirtualTier("dram", capacity, policy, False)])
    return outcome.prefix_hits + outcome.total("stranded"), outcome.prefix_hits


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_tier_is_the_cache_that_plan_simulates(policy: str) -> None:
    count, seconds = (3000, 120.0) if JIT_ENABLED else (120, 4.0)
    zipf = as_accesses(zipf_names(distinct=60, count=count, exponent=0.7, seed=5), per_request=6)
    chat = trace_of(chats(3, Names(), duration_s=seconds))
    for accesses, capacity in product((zipf, chat), (1, 17, 200)):
        assert hits_in_one_tier(policy, accesses, capacity) == hits_of(policy, accesses, capacity)


@pytest.mark.skipif(not JIT_ENABLED, reason="takes minutes by the interpreter")
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_tier_is_the_cache_that_plan_simulates_on_the_conversation_trace(policy: str) -> None:
    accesses = flatten(read_trace(conversation_trace()))
    for capacity in (1000, 10_000):
        assert hits_in_one_tier(policy, accesses, capacity) == hits_of(policy, accesses, capacity)


def run(
    *chains: list[int], dram: int = 2, nvme: int = 8, keeps_copies: bool = True, windows: int = 1
) -> Outcome:
    tiers = [
        VirtualTier("dram", dram, "lru", False),
        VirtualTier("nvme", nvme, "lru", keeps_copies),
    ]
    requests = (Request(at * 10.0, 512, 1, tuple(chain)) for at, chain in enumerate(chains))
    return run_hierarchy(flatten(requests), tiers, windows=windows, detailed=True)


def counts(outcome: Outcome, name: str) -> list[int]:
    return outcome.counts[name][-1].tolist()


def test_what_leaves_memory_is_found_below_and_comes_back() -> None:
    outcome = run([1, 2], [3, 4], [1, 2])
    assert counts(outcome, "stored") == [4, 0]
    assert outcome.served.tolist() == [[0, 0], [0, 0], [0, 2]]
    assert counts(outcome, "promoted") == [0, 2]
    # 1 and 2 when 3 and 4 came, and these when 1 and 2 came back.
    assert counts(outcome, "demoted") == [0, 4]
    assert outcome.total("dropped") == 0


def test_a_block_with_a_copy_below_leaves_without_another() -> None:
    again = ([1, 2], [3, 4], [1, 2], [3, 4], [1, 2])
    assert counts(run(*again), "demoted") == [0, 4]
    assert counts(run(*again, keeps_copies=False), "demoted") == [0, 8]


def test_without_copies_a_tier_has_room_for_others() -> None:
    chains = ([1], [2], [3], [1])
    assert run(*chains, dram=1, nvme=1, keeps_copies=False).total("dropped") == 2
    kept = run([1], [2], [1], dram=1, nvme=1, keeps_copies=False)
    # 1 went down for 2, and came back in exchange.
    assert (kept.total("dropped"), kept.total("present")) == (0, 2)


def test_a_hit_behind_a_gap_is_stranded_and_written_by_the_host_again() -> None:
    # 1 leaves, 2 goes down to files, and then 1 2 is asked for.
    requests = [Request(0, 1, 1, chain) for chain in ((1, 2), (3,), (2,), (4,), (5,), (1, 2))]
    tiers = [VirtualTier("dram", 2, "lru", False), VirtualTier("nvme", 2, "lru", True)]
    outcome = run_hierarchy(flatten(requests), tiers, detailed=True)
    assert outcome.served.tolist()[5] == [0, 0]
    assert outcome.total("stranded") == 1
    assert counts(outcome, "promoted") == [0, 0]
    assert outcome.hit_rate - outcome.prefix_hit_rate == pytest.approx(1 / 8)


def test_evicting_a_block_before_its_extension_orphans_that() -> None:
    tiers = [VirtualTier("dram", 2, "lru", False)]
    requests = [Request(0, 1, 1, (1, 2)), Request(9, 1, 1, (5,))]
    outcome = run_hierarchy(flatten(requests), tiers, windows=2, detailed=True)
    assert outcome.total("orphaning") == 1
    assert outcome.totals["orphaned"].tolist() == [0, 1]
    assert outcome.totals["present"].tolist() == [2, 2]
    reuse = run_hierarchy(
        flatten(requests), [VirtualTier("dram", 2, "reuse", False)], detailed=True
    )
    assert (reuse.total("orphaning"), reuse.total("orphaned")) == (0, 0)


def test_what_was_never_read_is_told_apart() -> None:
    outcome = run([1], [1], [2], [3], [4], dram=1, nvme=1, keeps_copies=False)
    # 1 was read once; 2 was not; 3 and 4 are there.
    assert (outcome.total("dropped"), outcome.total("unread")) == (2, 1)


def test_windows_divide_the_time_and_late_requests_are_in_the_window_reached() -> None:
    tiers = [VirtualTier("dram", 9, "lru", False)]
    times = [0.0, 10.0, 99.0, 5.0]
    requests = [Request(at, 1, 1, (1,)) for at in times]
    outcome = run_hierarchy(flatten(requests), tiers, windows=10)
    asked = outcome.totals["asked"].tolist()
    assert asked == [1, 2, 2, 2, 2, 2, 2, 2, 2, 4]
    assert outcome.counts["hits"][:, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 3]
