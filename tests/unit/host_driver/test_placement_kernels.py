"""Held: blocks are found as a plain search finds them, and staging is counted to the byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from host_driver._placement_kernels import (
    NOWHERE,
    SEVERAL,
    list_rows,
    locate_blocks,
    sum_room,
)

SPANS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=6)
"""Regions in order: the gap before each, and its length."""
BLOCKS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 9)), max_size=8)


def words(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(SPANS, BLOCKS)
def test_each_block_is_in_the_region_that_holds_all_of_it(
    spans: list[tuple[int, int]], blocks: list[tuple[int, int]]
) -> None:
    starts, ends = [], []
    at = 0
    for gap, length in spans:
        starts.append(at + gap)
        at = starts[-1] + length
        ends.append(at)
    wanted = [
        next(
            (i for i in range(len(starts)) if starts[i] <= addr and addr + length <= ends[i]),
            NOWHERE,
        )
        for addr, length in blocks
    ]
    found = np.full(len(blocks), 99, np.int64)
    addrs, lengths = words([b[0] for b in blocks]), words([b[1] for b in blocks])
    common = locate_blocks(words(starts), words(ends), addrs, lengths, found)
    assert found.tolist() == wanted
    if len(set(wanted)) > 1:
        assert common == SEVERAL
    else:
        assert common == (wanted[0] if wanted else NOWHERE)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500)), max_size=20))
def test_only_blocks_without_a_key_need_room(blocks: list[tuple[bool, int]]) -> None:
    rkeys = words([7 if has_key else -1 for has_key, _ in blocks])
    lengths = words([length for _, length in blocks])
    before = np.full(len(blocks) + 1, 99, np.int64)
    rooms = [0 if has_key else -(-length // 64) * 64 for has_key, length in blocks]
    assert sum_room(rkeys, lengths, 64, before) == sum(rooms)
    assert before.tolist() == [sum(rooms[:i]) for i in range(len(rooms) + 1)]


def test_rows_lie_a_step_apart() -> None:
    addrs, lengths = words([0] * 3), words([0] * 3)
    list_rows(1000, -24, 16, addrs, lengths)
    assert addrs.tolist() == [1000, 976, 952]
    assert lengths.tolist() == [16] * 3
