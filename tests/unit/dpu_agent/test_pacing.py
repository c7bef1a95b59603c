"""Token buckets: never more than the rate allows, and everything in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.tiers.pacing import UNLIMITED, TokenBucket
from kvlane.errors import ConfigError

NS_PER_S = 1_000_000_000


@given(
    rate=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.integers(0, NS_PER_S), st.integers(1, 20_000)), max_size=50),
)
def test_no_more_is_given_than_rate_and_burst(rate: int, steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate)
    now = given_bytes = last = 0
    for pause_ns, nbytes in steps:
        now += pause_ns
        if bucket.is_open(now):
            bucket.take(nbytes)
            given_bytes += nbytes
            last = nbytes
        assert given_bytes - last <= rate * (now / NS_PER_S + 1) + 1e-6


def test_it_opens_when_it_says() -> None:
    bucket = TokenBucket(1000)
    assert bucket.is_open(5)
    assert bucket.opens_in_ns() == 0
    bucket.take(1500)
    wait_ns = bucket.opens_in_ns()
    assert not bucket.is_open(5 + NS_PER_S // 4)
    assert bucket.opens_in_ns() < wait_ns
    assert bucket.is_open(5 + wait_ns)


def test_without_a_limit_it_is_always_open() -> None:
    bucket = TokenBucket(UNLIMITED)
    bucket.take(1 << 60)
    assert bucket.is_open(0)
    assert bucket.opens_in_ns() == 0


def test_a_rate_below_zero_is_none() -> None:
    with pytest.raises(ConfigError, match="no limit"):
        TokenBucket(-1)
