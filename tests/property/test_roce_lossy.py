"""Over a link that drops, repeats, reorders, delays and corrupts, everything completes right.

RC: whatever is posted completes once, in order, with the right bytes; atomics take effect
exactly once; and where mishaps are rare, 7 retries of either kind are enough. UC and UD: what
is told of is whole and right, and nothing else is touched.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlane.jit import JIT_ENABLED
from kvlane.verbs.enums import QpType, WrOpcode
from tests.support.bad_link import Odds
from tests.support.datagram_workload import run_datagrams
from tests.support.rc_workload import HEAVY, LIGHT, TIGHT, Load, Outcome, Plan, run_plan

# 25 operations in each direction of 1 to 3 connections; fewer examples when every packet is
# interpreted.
WILD_EXAMPLES = 130 if JIT_ENABLED else 3
MILD_EXAMPLES = 45 if JIT_ENABLED else 3
DATAGRAM_EXAMPLES = 60 if JIT_ENABLED else 4
LEAST_OPERATIONS = 10_000 if JIT_ENABLED else 200
LEAST_CLOSINGS = 100 if JIT_ENABLED else 0
"""Of either window, each counted in every burst that it is closed."""


def plans(most: float, *loads: Load, endless: bool) -> st.SearchStrategy[Plan]:
    """Plans whose mishaps are each at most so likely."""
    odds = st.floats(0, most)
    return st.builds(
        Plan,
        seed=st.integers(0, 2**32),
        odds=st.builds(Odds, odds, odds, odds, odds, odds),
        mtu=st.sampled_from([256, 512, 1024, 2048, 4096]),
        first_psn=st.sampled_from([0, 0xFFFFF0, 0x7FFFF0, None]),
        connections=st.integers(1, 3),
        shared=st.booleans(),
        late=st.booleans(),
        endless=st.just(endless),
        depth=st.integers(1, 4),
        load=st.sampled_from(loads),
    )


wild_plans = plans(0.2, LIGHT, TIGHT, endless=True)
mild_plans = plans(0.02, LIGHT, TIGHT, HEAVY, endless=False)


def test_connected_operations_complete_once_in_order_with_the_right_bytes() -> None:
    """Over the worst links with endless retries, and over mild ones with 7 of either kind;
    and so often that windows close meanwhile."""
    runs: list[Outcome] = []

    @settings(max_examples=WILD_EXAMPLES)
    @given(plan=wild_plans)
    def over_wild_links(plan: Plan) -> None:
        runs.append(run_plan(plan))

    @settings(max_examples=MILD_EXAMPLES)
    @given(plan=mild_plans)
    def over_mild_links(plan: Plan) -> None:
        runs.append(run_plan(plan))

    over_wild_links()
    over_mild_links()
    kinds = sum((run.kinds for run in runs), Counter[WrOpcode]())
    assert kinds.total() >= LEAST_OPERATIONS
    assert set(kinds) == set(WrOpcode)
    assert sum(run.send_closings for run in runs) >= LEAST_CLOSINGS
    assert sum(run.read_closings for run in runs) >= LEAST_CLOSINGS


@settings(max_examples=DATAGRAM_EXAMPLES)
@given(plan=wild_plans, kind=st.sampled_from([QpType.UC, QpType.UD]))
def test_what_arrives_unreliably_is_right(plan: Plan, kind: QpType) -> None:
    run_datagrams(plan, kind)


@pytest.mark.parametrize("kind", [QpType.UC, QpType.UD])
@pytest.mark.parametrize("shared", [False, True])
def test_without_mishaps_everything_arrives(kind: QpType, shared: bool) -> None:
    plan = Plan(1, Odds(), mtu=256, shared=shared)
    assert run_datagrams(plan, kind) == plan.operations


def test_the_worst_of_all_links_is_got_over() -> None:
    run_plan(Plan(7, Odds(0.2, 0.2, 0.2, 0.2, 0.2), mtu=256, connections=2, shared=True))


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_a_plan_is_decided_by_its_seed(seed: int) -> None:
    assert Plan.drawn(seed) == Plan.drawn(seed)
