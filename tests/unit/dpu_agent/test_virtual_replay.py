"""``kvlane replay --virtual``: costs, report, JSON, and what it says of wrong input."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.planning.accesses import flatten
from dpu_agent.planning.costs import first_token_ms, load_ms, prefill_of, tokens_left
from dpu_agent.planning.planner import BOUNDS
from dpu_agent.planning.profile import LatencyProfile, load_profile
from host_driver.cli.main import main
from host_driver.replay.chat import chat_requests
from kvlane.jit import JIT_ENABLED
from kvlane.trace import Request
from tests.support.html_page import PageReader

REQUESTS = 60 if JIT_ENABLED else 14
"""The interpreter takes minutes for more."""

PROFILE = """
model: {name: small, kv_bytes_per_token: 2, block_tokens: 512, flops_per_token: 1.0e+9, basis: b}
accelerator: {prefill_tflops: 1, source: measured, basis: a clock}
dram: {latency_us: 100, gigabytes_per_second: 1, source: measured, basis: a clock}
nvme: {latency_us: 500, gigabytes_per_second: 0.5, source: stated, basis: a leaflet}
"""


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE)
    return path


@pytest.fixture
def profile(profile_file: Path) -> LatencyProfile:
    return load_profile(str(profile_file))


# Of 1,200 tokens are three blocks, the last of them of 176 tokens.
ACCESSES = flatten(
    [Request(0, 1200, 1, (1, 2, 3)), Request(0, 600, 1, (1, 2)), Request(0, 9, 1, (7,))]
)
SERVED = np.array([[2, 1], [1, 0], [0, 0]], np.int32)


def test_tokens_of_a_last_block_are_not_more_than_the_prompt_has() -> None:
    assert tokens_left(ACCESSES, SERVED, 512).tolist() == [0, 88, 9]


def test_what_hits_save(profile: LatencyProfile) -> None:
    prefill = prefill_of(ACCESSES, SERVED, profile)
    assert (prefill.tokens_asked, prefill.tokens_saved) == (1809, 1712)
    assert prefill.flops_saved == 1712e9
    assert prefill.seconds_saved == pytest.approx(1.712)
    assert prefill.tokens_left.p50 == 9
    assert prefill.tokens_left_without_cache.p50 == 600


def test_a_load_takes_the_latency_once_and_the_bytes(profile: LatencyProfile) -> None:
    times = load_ms(SERVED, ["dram", "nvme"], profile, 1_000_000)
    assert times["dram"].tolist() == pytest.approx([2.1, 1.1])
    assert times["nvme"].tolist() == pytest.approx([2.5])
    first = first_token_ms(ACCESSES, SERVED, ["dram", "nvme"], profile, 1_000_000)
    assert first.tolist() == pytest.approx([4.6, 1.1 + 88, 9])


def write_trace(path: Path) -> Path:
    path.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": request.timestamp_ms,
                    "input_length": request.input_tokens,
                    "output_length": 1,
                    "hash_ids": request.block_ids,
                }
            )
            + "\n"
            for request in islice(chat_requests(4), REQUESTS)
        )
    )
    return path


def run(tmp_path: Path, *arguments: str) -> Result:
    trace = write_trace(tmp_path / "tr<a>ce.jsonl")
    return CliRunner().invoke(main, ["replay", str(trace), "--virtual", *arguments])


TIERS = ["--tier", "dram=40KiB", "--tier", "nvme=200KiB"]
SIZING = ["--want-hit-rate", "0.1", "--worth-per-gib", "0.001"]


def test_json_and_report_say_all(tmp_path: Path, profile_file: Path) -> None:
    report = tmp_path / "report.html"
    options = [*TIERS, *SIZING, "--policy", "mq", "--profile", str(profile_file), "--json"]
    options += ["--scales", "0.5,1", "--policies", "lru,mq,belady,unbounded"]
    result = run(tmp_path, *options, "--report", str(report))
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    check_json(said)
    page = report.read_text()
    reader = PageReader(page)
    assert reader.fetched == []
    for heading in (
        "Replay in virtual time: tr<a>ce.jsonl",
        "Hit rate against capacity",
        "Hits per tier over time",
        "Time to load, per tier",
        "Bytes moved over time",
        "Tokens left to prefill",
        "Orphans over time",
        "Hit rate against one tier's capacity",
        "Sizing",
        "Figures that this rests on",
    ):
        assert heading in reader.headings
    for shown in ("mq", "belady", "unbounded", "measured", "a leaflet", "P99"):
        assert shown in reader.text


def check_json(said: dict[str, Any]) -> None:
    assert said["mode"] == "virtual"
    assert [tier["tier"] for tier in said["tiers"]] == ["dram", "nvme"]
    assert [tier["policy"] for tier in said["tiers"]] == ["lru", "mq"]
    assert [tier["capacity_blocks"] for tier in said["tiers"]] == [40, 200]
    assert [tier["latency_source"] for tier in said["tiers"]] == ["measured", "stated"]
    assert said["prefix_hit_rate"] == pytest.approx(sum(tier["hit_rate"] for tier in said["tiers"]))
    assert said["hit_rate"] >= said["prefix_hit_rate"] > 0
    assert sum(said["windows"]["asked"]) == said["trace"]["blocks_asked"]
    for tier in said["tiers"]:
        assert sum(said["windows"]["hits"][tier["tier"]]) == tier["hits"]
        assert tier["served_bytes"] == tier["hits"] * 1024
    curve = {(point["policy"], point["capacity_blocks"]): point for point in said["curve"]}
    assert curve["mq", 240]["hit_rate"] == said["hit_rate"]
    distinct = said["trace"]["distinct_blocks"]
    assert set(curve) == {
        *((policy, size) for policy in ("lru", "mq", "belady") for size in (120, 240)),
        ("unbounded", distinct),
    }
    bound = curve["unbounded", distinct]["hit_rate"]
    for size in (120, 240):
        assert curve["mq", size]["hit_rate"] <= curve["belady", size]["hit_rate"] <= bound
    for least in said["sizing"]["least_capacity"]:
        if least["reached"]:
            assert least["reached"]["hit_rate"] >= 0.1
    assert [each["tier"] for each in said["sizing"]["worthwhile_capacity"]] == ["dram", "nvme"]
    assert said["prefetch"] is None
    assert said["prefill"]["tokens_left"]["p99"] >= said["prefill"]["tokens_left"]["p90"]


def test_a_table_is_for_people(tmp_path: Path) -> None:
    options = ["--tier", "dram=1GiB", "--block-bytes", "1MiB", "--policies", "lru", "--scales", "1"]
    result = run(tmp_path, *options, *SIZING)
    assert result.exit_code == 0, result.output
    for shown in ("prefix hit rate", "dram", "1.0 GiB", "how large should it be"):
        assert shown in result.stdout


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--tier", "dram=1KiB"], "holds not one block of 160.0 MiB"),
        (["--tier", "dram=1GiB:/tmp"], "in virtual time there is no place"),
        (["--tier", "nvme=1GiB", "--tier", "dram=1GiB"], "from hot to cold"),
        (["--tier", "dram=1GiB", "--policy", "best"], "unknown policy 'best'; one of arc"),
        (["--tier", "dram=1GiB", "--policy", "nvme=lru"], "no tier 'nvme' here"),
        (["--tier", "dram=1GiB", "--policies", "best"], "unknown policy 'best'"),
        (["--tier", "dram=1GiB", "--scales", "1,0"], "'0' is no factor"),
        (["--tier", "dram=1GiB", "--scales", "nan"], "'nan' is no factor"),
        (["--tier", "dram=1GiB", "--block-bytes", "0"], "--block-bytes must be at least 1"),
        (["--tier", "dram=1GiB", "--block-bytes", "big"], "--block-bytes: 'big' is not a size"),
        (["--tier", "dram=1GiB", "--profile", "none"], "no such profile"),
        ([], "Missing option '--tier'"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], complaint: str) -> None:
    result = run(tmp_path, *options)
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_tier_that_the_profile_lacks_is_named(tmp_path: Path, profile_file: Path) -> None:
    result = run(tmp_path, "--tier", "hbm=1MiB", "--profile", str(profile_file))
    assert result.exit_code == 2
    assert "says nothing of tier hbm" in result.output


def test_help_is_that_of_the_mode() -> None:
    both = [CliRunner().invoke(main, ["replay", *flag, "--help"]) for flag in ([], ["--virtual"])]
    assert "--rdma-device" in both[0].output
    assert "--virtual" in both[0].output
    assert "--want-hit-rate" in both[1].output
    assert [result.exit_code for result in both] == [0, 0]


def test_all_policies_are_compared_unless_told_otherwise(tmp_path: Path) -> None:
    result = run(tmp_path, "--tier", "dram=4GiB", "--scales", "1", "--json")
    points = json.loads(result.stdout)["curve"]
    assert {point["policy"] for point in points} == {*POLICIES, *BOUNDS}
