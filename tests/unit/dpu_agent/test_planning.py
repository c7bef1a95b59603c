"""``kvlane plan``: bounds, both rates, and what it says of wrong input."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.planning.cli import MAX_CAPACITY_BLOCKS
from dpu_agent.planning.planner import BOUNDS, hits_of
from host_driver.cli.main import main
from tests.support.access_patterns import as_accesses, zipf_names


def best_hits(names: list[int], capacity: int) -> int:
    """The most hits that any choice of victims gives, by trying all."""
    reached = {frozenset[int](): 0}
    for name in names:
        following: dict[frozenset[int], int] = {}
        for cached, hits in reached.items():
            if name in cached:
                states = [(cached, hits + 1)]
            elif len(cached) < capacity:
                states = [(cached | {name}, hits)]
            else:
                states = [(cached - {victim} | {name}, hits) for victim in cached]
            for state, count in states:
                following[state] = max(following.get(state, 0), count)
        reached = following
    return max(reached.values())


@pytest.mark.parametrize(("seed", "capacity"), list(product(range(6), [1, 2, 4])))
def test_belady_is_the_best_there_is(seed: int, capacity: int) -> None:
    names = zipf_names(distinct=8, count=40, exponent=0.5, seed=seed)
    assert hits_of("belady", as_accesses(names), capacity)[0] == best_hits(names, capacity)


def test_unbounded_misses_each_block_once() -> None:
    names = zipf_names(distinct=50, count=400, exponent=0.7, seed=2)
    assert hits_of("unbounded", as_accesses(names), 1)[0] == len(names) - len(set(names))


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "belady"])
def test_where_all_fits_only_first_accesses_miss(policy: str) -> None:
    names = zipf_names(distinct=50, count=400, exponent=0.7, seed=2)
    for capacity in (len(set(names)), MAX_CAPACITY_BLOCKS):
        assert hits_of(policy, as_accesses(names), capacity)[0] == len(names) - len(set(names))


def test_a_hit_behind_a_miss_is_not_in_the_prefix() -> None:
    # 1 2 3 | 1 9 3: of the second request 1 and 3 are hits, and only 1 comes before the miss.
    assert hits_of("lru", as_accesses([1, 2, 3, 1, 9, 3], per_request=3), 6) == (2, 1)


TRACE = "".join(
    f'{{"timestamp": {at}, "input_length": 9, "output_length": 1, "hash_ids": {ids}}}\n'
    for at, ids in enumerate([[0, 1], [0, 1, 2], [0, 3], [0, 1, 2]])
)
TRACE_WITHOUT_BLOCKS = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}'


def run(tmp_path: Path, *arguments: str, trace: str = TRACE) -> Result:
    path = tmp_path / "trace.jsonl"
    path.write_text(trace)
    return CliRunner().invoke(main, ["plan", str(path), *arguments])


def test_json_lists_policies_capacities_and_bounds(tmp_path: Path) -> None:
    result = run(tmp_path, "--policies", "all", "--capacities", "2,3", "--json")
    rows = json.loads(result.stdout)
    assert {tuple(row) for row in rows} == {
        ("policy", "capacity_blocks", "hit_rate", "prefix_hit_rate")
    }
    wanted = [*product([*sorted(POLICIES), "belady"], [2, 3]), ("unbounded", 4)]
    assert [(row["policy"], row["capacity_blocks"]) for row in rows] == wanted
    rate = {(row["policy"], row["capacity_blocks"]): row["hit_rate"] for row in rows}
    assert rate["unbounded", 4] == 0.6
    for policy, capacity in product(POLICIES, [2, 3]):
        assert rate[policy, capacity] <= rate["belady", capacity] <= rate["unbounded", 4]


def test_a_table_is_for_people(tmp_path: Path) -> None:
    result = run(tmp_path, "--policies", "lru, unbounded", "--capacities", "1000")
    assert result.exit_code == 0
    assert "lru" in result.stdout
    assert "1,000" in result.stdout
    assert "0.6000" in result.stdout


@pytest.mark.parametrize("capacities", ["", "0", "-1", "1e3", "5,", "9" * 30, "²"])
def test_a_wrong_capacity_is_named(tmp_path: Path, capacities: str) -> None:
    result = run(tmp_path, "--capacities", capacities)
    assert result.exit_code == 2
    assert "is no number of blocks from 1" in result.output


def test_an_unknown_policy_lists_the_known(tmp_path: Path) -> None:
    result = run(tmp_path, "--policies", "lru,LRU", "--capacities", "5")
    assert result.exit_code == 2
    assert "unknown policy 'LRU'" in result.output
    assert all(name in result.output for name in (*POLICIES, *BOUNDS))


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        ("", "no request in it"),
        (TRACE + "{", "trace.jsonl:5: not JSON"),
        (TRACE_WITHOUT_BLOCKS, "names a block"),
    ],
)
def test_a_bad_trace_is_named(tmp_path: Path, trace: str, complaint: str) -> None:
    result = run(tmp_path, "--capacities", "5", trace=trace)
    assert result.exit_code == 2
    assert complaint in result.output
