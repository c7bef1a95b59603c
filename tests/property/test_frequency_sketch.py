"""The sketch of W-TinyLFU against counters in plain Python, and what a sketch promises."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.cache.policy._frequency_sketch_kernels import (
    MAX_COUNT,
    ROWS,
    FrequencySketch,
    add,
    estimate,
)

any_keys = st.lists(st.integers(0, (1 << 62) - 1), max_size=60)
few_keys = st.lists(st.integers(0, 5), max_size=60)
WIDTH, SAMPLE = 256, 10
"""Of the sketch for one block."""


class PlainSketch:
    """The same counters as a dictionary for each row."""

    def __init__(self) -> None:
        self.rows = [Counter[int]() for _ in range(ROWS)]
        self.additions = 0

    def places(self, key: int) -> list[int]:
        return [(key + row * (key >> 31 | 1)) % WIDTH for row in range(ROWS)]

    def estimate(self, key: int) -> int:
        return min(self.rows[row][place] for row, place in enumerate(self.places(key)))

    def add(self, key: int) -> None:
        least = self.estimate(key)
        for row, place in enumerate(self.places(key)):
            if self.rows[row][place] == least < MAX_COUNT:
                self.rows[row][place] += 1
        self.additions += 1
        if self.additions == SAMPLE:
            self.additions //= 2
            self.rows = [Counter({at: n // 2 for at, n in row.items()}) for row in self.rows]


@given(keys=st.one_of(any_keys, few_keys))
def test_like_plain_counters(keys: list[int]) -> None:
    sketch, plain = FrequencySketch(1), PlainSketch()
    for key in keys:
        add(sketch.address, key)
        plain.add(key)
        assert estimate(sketch.address, key) == plain.estimate(key)
    assert all(estimate(sketch.address, key) == plain.estimate(key) for key in keys)


@given(keys=st.one_of(any_keys, few_keys))
def test_it_never_counts_too_low(keys: list[int]) -> None:
    sketch = FrequencySketch(100)
    for key in keys:
        add(sketch.address, key)
    for key, count in Counter(keys).items():
        assert min(count, MAX_COUNT) <= estimate(sketch.address, key) <= MAX_COUNT


def test_what_is_not_seen_any_more_is_forgotten() -> None:
    sketch = FrequencySketch(2)
    for _ in range(12):
        add(sketch.address, 7)
    others = range(1 << 40, (1 << 40) + 100)
    for key in others:
        add(sketch.address, key)
    assert estimate(sketch.address, 7) == 0
