"""docs/policies.md names every policy, and its figures are what ``kvlane plan`` prints."""

from __future__ import annotations

import re

import pytest

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.planning.accesses import flatten
from dpu_agent.planning.planner import BELADY, plan_rates
from kvlane.jit import JIT_ENABLED
from kvlane.trace import read_trace
from tests.support.conversation_trace import conversation_trace
from tests.support.repository import ROOT

TEXT = (ROOT / "docs/policies.md").read_text()
CAPACITIES_BLOCKS = [1_000, 3_000, 10_000, 30_000, 50_000]


def first_cells(heading: str) -> list[str]:
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.M)


def test_every_policy_is_explained() -> None:
    assert sorted(first_cells("What there is")) == sorted(POLICIES)
    assert sorted(first_cells("On the conversation trace")) == sorted([*POLICIES, BELADY])


@pytest.mark.skipif(not JIT_ENABLED, reason="17 million accesses take the interpreter hours")
def test_the_figures_are_those_of_plan() -> None:
    accesses = flatten(read_trace(conversation_trace()))
    wanted = first_cells("On the conversation trace")
    rates = plan_rates(accesses, wanted, CAPACITIES_BLOCKS)
    cells = [f"{rate.hit_rate:.4f}" for rate in rates]
    width = len(CAPACITIES_BLOCKS)
    rows = [cells[at : at + width] for at in range(0, len(cells), width)]
    for policy, row in zip(wanted, rows, strict=True):
        assert f"| `{policy}` | {' | '.join(row)} |" in TEXT
