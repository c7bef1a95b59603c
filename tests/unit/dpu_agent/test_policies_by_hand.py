"""Each policy over a short sequence that was worked out on paper: who leaves, in which order."""

from __future__ import annotations

import pytest

from dpu_agent.cache.policy.lfu_decay import LfuDecayPolicy
from dpu_agent.cache.policy.lru_k import LruKPolicy
from dpu_agent.cache.policy.mq import MqPolicy
from dpu_agent.cache.policy.registry import POLICIES, make_policy
from tests.support.driven_policy import DrivenPolicy

NS_PER_S = 1_000_000_000


def evictions(driven: DrivenPolicy, accessed: str) -> str:
    """Blocks are letters."""
    left = [driven.access(ord(letter)) for letter in accessed]
    return "".join(chr(key) for key in left if key is not None)


BY_HAND = {
    # T1 = {b}, T2 = {a}; c takes b's place. Its ghost says that T1 should be larger: p = 1, so
    # that T1 = {c} is no longer beyond its size, and a goes.
    "arc": (2, "aabcb", "ba"),
    # a was read and is passed over once: b, then c, and a when the hand comes again.
    "clock": (3, "abcadefg", "bcad"),
    # Four reads are worth three passes, as the third one comes in a's second generation.
    "clock_age": (2, "abaaaacdef", "bcda"),
    "lfu": (2, "aabcccd", "ba"),
    # b comes back with its history: its latest access but one is younger than a's.
    "lru_k": (2, "abacdbe", "bcda"),
    "lru": (3, "abcade", "bc"),
    # a has the frequency 2 and a queue above those of frequency 1.
    "mq": (2, "aabcd", "bc"),
    # SMALL has room for one: a, whose ghost takes it to MAIN at once when it comes back, past k.
    # MAIN is then beyond its size, and the first that came is the first to go.
    "s3_fifo": (10, "abcdefghijkal", "akb"),
    # The hand stays behind a, which was spared, and goes on to the newer ones.
    "sieve": (3, "abcadef", "bcd"),
    # a left IN and comes back by its ghost into MAIN, where nobody disturbs it.
    "two_q": (4, "abcdeafghi", "abcdef"),
    # c was seen no more often than a and has to go; d was, and a goes.
    "w_tinylfu": (3, "aabbcddde", "ca"),
}


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_what_leaves(name: str) -> None:
    capacity, accessed, left = BY_HAND[name]
    assert evictions(DrivenPolicy(make_policy(name, capacity), capacity), accessed) == left


def test_every_policy_is_worked_out() -> None:
    """But for what learns, which ``test_reuse_policy`` has."""
    assert POLICIES.keys() == {*BY_HAND, "lfu_decay", "reuse"}


def test_reads_of_long_ago_count_little() -> None:
    """Five uses at once are worth 5 / 2^3 after three half-lives."""
    driven = DrivenPolicy(LfuDecayPolicy(2, half_life_s=1), 2)
    for _ in range(5):
        driven.access(1, now=0)
    driven.access(2, now=3 * NS_PER_S)
    assert driven.access(3, now=3 * NS_PER_S) == 1
    assert driven.access(4, now=3 * NS_PER_S) == 2


def test_a_block_that_is_not_asked_for_sinks_through_the_queues_of_mq() -> None:
    """When b comes, a's time is over: it goes behind b, and is then older than c."""
    assert evictions(DrivenPolicy(MqPolicy(2, lifetime_accesses=100), 2), "aabcd") == "bc"
    assert evictions(DrivenPolicy(MqPolicy(2, lifetime_accesses=1), 2), "aabcde") == "bac"


def test_lru_k_forgets_what_left_too_long_ago() -> None:
    """With one ghost a slot, so two, b's is gone when it comes back: c, d and e have left since."""
    long = LruKPolicy(2, retained_per_block=4)
    short = LruKPolicy(2, retained_per_block=1)
    assert evictions(DrivenPolicy(long, 2), "abacdefbg") == "bcdefa"
    assert evictions(DrivenPolicy(short, 2), "abacdefbg") == "bcdefb"
