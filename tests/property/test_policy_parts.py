"""What several policies are built from: ghosts against dictionaries, and the choice among pins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.cache.policy._ghost_kernels import (
    ABSENT,
    FIRST,
    SECOND,
    GhostMemory,
    claim,
    count_in,
    forget_oldest,
    remember,
    row_of,
    take,
)
from dpu_agent.cache.policy.base import NO_VICTIM
from dpu_agent.cache.policy.registry import make_policy
from tests.support.driven_policy import DrivenPolicy

KEPT, CAPACITY = 4, 2
keys = st.one_of(
    st.integers(0, 7),  # of one bucket, as the upper bits are alike
    st.integers(0, 7).map(lambda high: high << 59 | 1),
    st.integers(0, (1 << 62) - 1),
)
calls = st.sampled_from(["remember", "claim", "take", "forget"])
steps = st.lists(st.tuples(calls, keys, st.sampled_from([FIRST, SECOND])), max_size=80)


class PlainGhosts:
    """Lists as dictionaries, oldest first; what is claimed has one of its own."""

    def __init__(self) -> None:
        self.lists: dict[int, dict[int, int]] = {FIRST: {}, SECOND: {}}
        self.claimed: dict[int, int] = {}

    def remember(self, which: int, key: int, value: int) -> None:
        self.take(key)
        if self.size() == KEPT + CAPACITY + 1:
            del self.claimed[next(iter(self.claimed))]
        self.lists[which][key] = value

    def size(self) -> int:
        return len(self.claimed) + sum(map(len, self.lists.values()))

    def claim(self, key: int) -> int:
        for which, ghosts in self.lists.items():
            if key in ghosts:
                self.claimed[key] = ghosts.pop(key)
                return which
        return ABSENT

    def take(self, key: int) -> int:
        for ghosts in (*self.lists.values(), self.claimed):
            if key in ghosts:
                return ghosts.pop(key)
        return ABSENT

    def forget_oldest(self, which: int) -> None:
        if self.lists[which]:
            del self.lists[which][next(iter(self.lists[which]))]


@given(steps=steps)
def test_ghosts_like_dictionaries(steps: list[tuple[str, int, int]]) -> None:
    memory, plain = GhostMemory(KEPT, CAPACITY), PlainGhosts()
    ghosts = memory.address
    for value, (call, key, which) in enumerate(steps):
        if call == "claim":
            assert claim(ghosts, key) == plain.claim(key)
        elif call == "take":
            assert take(ghosts, key) == plain.take(key)
        elif call == "forget":
            forget_oldest(ghosts, which)
            plain.forget_oldest(which)
        else:
            if sum(map(len, plain.lists.values())) == KEPT:
                fuller = max(plain.lists, key=lambda each: len(plain.lists[each]))
                forget_oldest(ghosts, fuller)
                plain.forget_oldest(fuller)
            row = remember(ghosts, which, key, value)
            plain.remember(which, key, value)
            assert row == row_of(ghosts, key)
        for each in (FIRST, SECOND):
            assert count_in(ghosts, each) == len(plain.lists[each])


@pytest.mark.parametrize("name", ["lfu", "lfu_decay", "lru", "lru_k", "mq"])
@given(
    accessed=st.lists(st.integers(0, 11), max_size=60),
    pinned=st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8),
)
def test_the_first_that_is_not_pinned_leaves(
    name: str, accessed: list[int], pinned: list[set[int]]
) -> None:
    driven = DrivenPolicy(make_policy(name, 8), 8)
    for now, key in enumerate(accessed):
        driven.access(key, now << 30)
    ordered = driven.policy.ordered().tolist()
    assert sorted(ordered) == sorted(driven.slots.values())
    for some in pinned:
        allowed = [slot for slot in ordered if slot not in some]
        assert driven.victim(some) == (allowed[0] if allowed else NO_VICTIM)
