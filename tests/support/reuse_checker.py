"""What holds of the records of the policy ``reuse`` between any two calls."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._list_kernels import listed
from dpu_agent.cache.policy._reuse_block_kernels import find_block
from dpu_agent.cache.policy._reuse_layout_kernels import (
    AWAITED,
    BINS,
    GHOSTS,
    IDLE,
    LEVELS,
    LISTS,
    MAX_AWAITED,
    NONE,
    UNUSED,
)
from dpu_agent.cache.policy.reuse import ReusePolicy


def check_reuse(policy: ReusePolicy) -> None:
    """Raise ``AssertionError`` at the first rule that does not hold."""
    _check_blocks(policy)
    _check_rows(policy)
    _check_candidates(policy)


def _check_blocks(policy: ReusePolicy) -> None:
    blocks, count = policy._blocks, len(policy._blocks)
    context = policy.calls.context
    awaited = listed(policy._block_links, count + AWAITED)
    idle = set(listed(policy._block_links, count + IDLE))
    assert len(awaited) == policy._state["awaited"][0] <= MAX_AWAITED
    assert np.count_nonzero(policy._buckets) == count - len(idle)
    resident = policy._block_in[policy._block_in != NONE]
    assert len(set(resident.tolist())) == len(resident) == policy._state["resident"][0]
    for number in sorted(set(range(count)) - idle):
        block = blocks[number]
        assert find_block(context, int(block["key"])) == number
        assert block["awaited"] == (number in awaited)
        if block["slot"] >= 0:
            assert policy._block_in[block["slot"]] == number
            assert not block["awaited"]
        children = resident[blocks["parent"][resident] == number]
        assert block["children"] == len(children)


def _check_rows(policy: ReusePolicy) -> None:
    rows, count = policy._rows, len(policy._rows)
    seen: set[int] = set()
    for which in range(BINS + 2):
        for row in listed(policy._age_links, count + which):
            assert row not in seen
            seen.add(row)
            if which == UNUSED:
                continue
            stack, block = [], int(rows["top"][row])
            while block != NONE:
                assert policy._blocks["row"][block] == row
                stack.append(block)
                block = int(policy._blocks["below"][block])
            assert len(stack) == rows["blocks"][row]
            assert (which == GHOSTS) == (not stack)
            if stack:
                assert rows["bin"][row] == which
            for name, back in (("tip", "tip_of"), ("anchor", "anchor_of")):
                if rows[name][row] != NONE:
                    assert policy._blocks[back][rows[name][row]] == row
    assert len(seen) == count


def _check_candidates(policy: ReusePolicy) -> None:
    rows, count = policy._rows, len(policy._rows)
    found: set[int] = set()
    for number in range(LISTS):
        if policy._candidate_links["newer"][count + number] == count + number:
            continue
        for row in listed(policy._candidate_links, count + number):
            record = rows[row]
            place = (record["stratum"] * LEVELS + record["level"]) * BINS + record["bin"]
            assert place == number
            found.add(row)
    tops = {
        row
        for row in np.unique(policy._blocks["row"][policy._block_in[policy._block_in != NONE]])
        if policy._blocks["children"][rows["top"][row]] == 0
    }
    assert found == tops
