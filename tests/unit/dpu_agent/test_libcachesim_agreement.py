"""Hit counts beside libcachesim's, an independent implementation of the textbook."""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import islice
from typing import Any

import pytest

from dpu_agent.cache.policy.lru_k import LruKPolicy
from dpu_agent.planning.accesses import Accesses, flatten
from dpu_agent.planning.planner import hits_of, simulated_hits
from kvlane.jit import JIT_ENABLED
from kvlane.trace import read_trace
from tests.support.access_patterns import as_accesses, zipf_names
from tests.support.conversation_trace import conversation_trace
from tests.support.requirements import lacking

CLASSES = {
    "arc": "ARC",
    "belady": "Belady",
    "clock": "Clock",
    "lfu": "LFU",
    "lru": "LRU",
    "mq": "MQ",
    "s3_fifo": "S3FIFO",
    "sieve": "Sieve",
    "two_q": "TwoQ",
}
"""The policy's name -> libcachesim's class, which has the same definition and parameters."""

_TABLE_BITS = 18
"""Of libcachesim's hash table: its default of 24 takes longer to clear than a test to run."""

# The interpreter gets a beginning of each trace, and capacities that fit it.
ZIPF_ACCESSES = 40_000 if JIT_ENABLED else 6_000
ZIPF_CAPACITIES = [100, 1_000] if JIT_ENABLED else [100]
REQUESTS = None if JIT_ENABLED else 120
CAPACITIES = [1_000, 3_000, 10_000, 30_000, 50_000] if JIT_ENABLED else [100, 300]

every_policy = pytest.mark.parametrize("name", sorted(CLASSES))
every_capacity = pytest.mark.parametrize("capacity", CAPACITIES)
every_zipf_trace = pytest.mark.parametrize(
    ("exponent", "capacity"), [(each, size) for each in (0.6, 1.0) for size in ZIPF_CAPACITIES]
)


def independent_hits(class_name: str, accesses: Accesses, capacity: int) -> int:
    try:
        libcachesim: Any = importlib.import_module("libcachesim")
    except ImportError as error:
        lacking(f"libcachesim cannot be imported ({error}): pip install 'kvlane[test]'")
    cache = getattr(libcachesim, class_name)(capacity, hashpower=_TABLE_BITS)
    request = libcachesim.Request()
    request.obj_size = 1
    following = next_uses(accesses)
    hits = 0
    for block, next_use in zip(accesses.blocks.tolist(), following, strict=True):
        request.obj_id = block
        request.next_access_vtime = next_use
        hits += cache.get(request)
    return hits


def next_uses(accesses: Accesses) -> list[int]:
    """What libcachesim's Belady is told: where each block is asked for again, far off if never."""
    never = (1 << 63) - 1
    upcoming: dict[int, int] = {}
    found: list[int] = []
    for position, block in reversed(list(enumerate(accesses.blocks.tolist()))):
        found.append(upcoming.get(block, never))
        upcoming[block] = position
    return found[::-1]


@lru_cache
def zipf_accesses(exponent: float) -> Accesses:
    return as_accesses(zipf_names(distinct=5_000, count=ZIPF_ACCESSES, exponent=exponent, seed=7))


@pytest.fixture(scope="module")
def conversations() -> Accesses:
    return flatten(islice(read_trace(conversation_trace()), REQUESTS))


@every_policy
@every_zipf_trace
def test_on_a_zipf_trace(name: str, exponent: float, capacity: int) -> None:
    accesses = zipf_accesses(exponent)
    expected = independent_hits(CLASSES[name], accesses, capacity)
    assert hits_of(name, accesses, capacity)[0] == expected


@every_policy
@every_capacity
def test_on_conversations(name: str, capacity: int, conversations: Accesses) -> None:
    expected = independent_hits(CLASSES[name], conversations, capacity)
    assert hits_of(name, conversations, capacity)[0] == expected


def lru_k_without_history(accesses: Accesses, capacity: int) -> int:
    """As libcachesim has it: it forgets a block's accesses when the block leaves."""
    return simulated_hits(LruKPolicy(capacity, retained_per_block=0), accesses, capacity)[0]


@every_zipf_trace
def test_lru_k_on_a_zipf_trace(exponent: float, capacity: int) -> None:
    accesses = zipf_accesses(exponent)
    expected = independent_hits("LRUK", accesses, capacity)
    assert lru_k_without_history(accesses, capacity) == expected


@every_capacity
def test_lru_k_on_conversations(capacity: int, conversations: Accesses) -> None:
    expected = independent_hits("LRUK", conversations, capacity)
    assert lru_k_without_history(conversations, capacity) == expected


def w_tinylfu_advantage(accesses: Accesses, capacity: int) -> float:
    """Our hit rate beyond libcachesim's. Its sketch counts no hit in the window, counts each
    meeting at the gate as a use, and ages only with hits in the main cache (docs/policies.md)."""
    ours = hits_of("w_tinylfu", accesses, capacity)[0]
    return (ours - independent_hits("WTinyLFU", accesses, capacity)) / len(accesses.blocks)


@every_zipf_trace
def test_w_tinylfu_is_near_on_a_zipf_trace(exponent: float, capacity: int) -> None:
    assert abs(w_tinylfu_advantage(zipf_accesses(exponent), capacity)) < 0.03


@every_capacity
def test_w_tinylfu_is_not_far_on_conversations(capacity: int, conversations: Accesses) -> None:
    assert -0.01 < w_tinylfu_advantage(conversations, capacity) < 0.05
