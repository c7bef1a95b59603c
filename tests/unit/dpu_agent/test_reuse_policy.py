"""The policy ``reuse``: what it gains where, and that its learning is bounded and kept."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dpu_agent.cache._slot_kernels import new_slot_table
from dpu_agent.cache.policy._reuse_history_kernels import KEPT
from dpu_agent.cache.policy._reuse_layout_kernels import BINS, EDGES_MS, MAX_AWAITED
from dpu_agent.cache.policy.reuse import ReusePolicy
from dpu_agent.planning._simulation_kernels import simulate
from dpu_agent.planning.accesses import Accesses, flatten
from dpu_agent.planning.planner import hits_of
from kvlane.errors import ConfigError
from kvlane.jit import JIT_ENABLED
from kvlane.trace import Request, read_trace
from tests.support.call_kernels import call_through
from tests.support.chain_traffic import KINDS, Names, chats, trace_of
from tests.support.conversation_trace import conversation_trace
from tests.support.reuse_checker import check_reuse

RIVALS = ("lru", "mq", "arc", "s3_fifo", "sieve", "lfu", "two_q", "clock", "w_tinylfu")
compiled_only = pytest.mark.skipif(not JIT_ENABLED, reason="too much for the interpreter")


@cache
def mooncake() -> Accesses:
    return flatten(read_trace(conversation_trace()))


@cache
def traffic(kind: str) -> Accesses:
    return trace_of(KINDS[kind](1, Names()))


@compiled_only
@pytest.mark.parametrize(
    ("capacity", "best_known", "ratio"),
    [
        (1_000, 0.0777, 1.07),
        (3_000, 0.1329, 1.06),
        (10_000, 0.2320, 1.02),
        (30_000, 0.3295, 1.01),
        (50_000, 0.3557, 1.00),
    ],
)
def test_more_hits_than_the_best_known_on_conversations(
    capacity: int, best_known: float, ratio: float
) -> None:
    """``best_known`` is the best of libcachesim's policies."""
    hits, prefix_hits = hits_of("reuse", mooncake(), capacity)
    assert hits / len(mooncake().blocks) >= ratio * best_known
    assert prefix_hits == hits


@compiled_only
@pytest.mark.parametrize("capacity", [300, 1_000, 3_000, 10_000])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_never_far_from_the_best_whatever_the_traffic(kind: str, capacity: int) -> None:
    best = max(hits_of(rival, traffic(kind), capacity)[0] for rival in RIVALS)
    assert hits_of("reuse", traffic(kind), capacity)[0] >= 0.99 * best


def small_chats() -> Accesses:
    return trace_of(chats(5, Names(), duration_s=40, per_s=1.0))


def run(policy: ReusePolicy, accesses: Accesses, capacity: int) -> tuple[int, int]:
    table = new_slot_table(capacity)
    hits, prefix_hits = simulate(policy.calls, accesses, capacity, int(table.ctypes.data))
    return int(hits), int(prefix_hits)


def test_the_same_requests_give_the_same_hits() -> None:
    accesses = small_chats()
    first, second = ReusePolicy(40), ReusePolicy(40)
    assert run(first, accesses, 40) == run(second, accesses, 40)
    assert first.learnt() == second.learnt()
    check_reuse(first)


def test_a_cache_that_holds_all_refuses_nothing() -> None:
    accesses = small_chats()
    capacity = len(accesses.keys)
    assert hits_of("reuse", accesses, capacity) == hits_of("lru", accesses, capacity)


def test_hits_are_prefixes() -> None:
    hits, prefix_hits = hits_of("reuse", small_chats(), 40)
    assert hits == prefix_hits > 0


@compiled_only
def test_what_was_learnt_helps_at_the_next_start() -> None:
    before = trace_of(chats(7, Names(), duration_s=3600))
    after = trace_of(chats(8, Names(), duration_s=600))
    teacher = ReusePolicy(1_000)
    run(teacher, before, 1_000)
    ignorant, taught = ReusePolicy(1_000), ReusePolicy(1_000, learnt=teacher.learnt())
    assert run(taught, after, 1_000)[0] > run(ignorant, after, 1_000)[0]


def test_learning_can_be_saved_and_loaded() -> None:
    teacher = ReusePolicy(40)
    run(teacher, small_chats(), 40)
    pupil = ReusePolicy(40, learnt=teacher.learnt())
    assert pupil.learnt() == teacher.learnt()
    # It knows before its first request what is worth more than nothing.
    assert pupil._indices.min() > 0
    assert np.isfinite(pupil._indices).all()


@pytest.mark.parametrize("damage", ["short", "cut", "flipped", "foreign", "long"])
def test_what_was_not_saved_by_it_is_refused(damage: str) -> None:
    teacher = ReusePolicy(40)
    run(teacher, small_chats(), 40)
    learnt = bytearray(teacher.learnt())
    if damage == "short":
        del learnt[10:]
    elif damage == "cut":
        del learnt[-1:]
    elif damage == "flipped":
        learnt[-3] ^= 1
    elif damage == "foreign":
        learnt[0] ^= 1
    else:
        learnt += b"\0"
    with pytest.raises(ConfigError, match="delete it to start without"):
        ReusePolicy(40, learnt=bytes(learnt))


@compiled_only
def test_its_memory_is_bounded_whatever_is_asked_for() -> None:
    """More chains than it can remember, of which nothing is ever stored, and some that are."""
    policy = ReusePolicy(100)
    rng = np.random.default_rng(3)
    for number in range(4_000):
        chain = rng.integers(0, 1 << 62, 30)
        call_through(policy.calls.asked, policy.calls.context, int(chain.ctypes.data), 30, number)
    assert policy._state["awaited"][0] == MAX_AWAITED
    flood = [
        Request(float(i), 1, 1, tuple(range(20 * i, 20 * i + 1 + i % 19))) for i in range(30_000)
    ]
    run(policy, flatten(flood), 100)
    assert policy._history["logged"][0] > KEPT
    check_reuse(policy)


def test_a_chain_may_be_empty_or_name_a_key_twice() -> None:
    policy = ReusePolicy(4)
    calls = policy.calls
    assert call_through(calls.asked, calls.context, 0, 0, 1) == 0
    chain = np.array([5, 6, 5, 6], np.int64)
    assert call_through(calls.asked, calls.context, int(chain.ctypes.data), 4, 2) == 0
    for slot, key in enumerate((5, 6)):
        assert call_through(calls.missed, calls.context, key, 0, 0) == 0
        assert call_through(calls.inserted, calls.context, slot, key, 3) == 0
    check_reuse(policy)


def test_time_may_stand_still() -> None:
    """The clock goes on by itself, so that ages tell what came first."""
    requests = [Request(0.0, 1, 1, (i % 3, 100 + i)) for i in range(60)]
    policy = ReusePolicy(8)
    run(policy, flatten(requests), 8)
    assert 0 < policy._state["clock_ms"][0] < EDGES_MS[BINS]
    check_reuse(policy)
