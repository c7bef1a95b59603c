"""The report: rates and percentiles are right, and table and JSON say the same."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from host_driver.replay.report import Latency, ReplayResult

RESULT = ReplayResult(
    requests=10,
    blocks_asked=2000,
    blocks_hit=500,
    unbounded_hits=800,
    blocks_stored=1490,
    blocks_refused=3,
    blocks_evicted=7,
    bytes_stored=3_000_000_000,
    bytes_retrieved=1_000_000_000,
    verification_errors=1,
    retransmissions=4,
    match=Latency(10, 20.0, 30.0),
    retrieve=Latency(0, None, None),
    store=Latency(9, 1234.5, 2345.6),
    seconds=2.0,
)
NOTHING = dataclasses.replace(
    RESULT, blocks_asked=0, blocks_hit=0, unbounded_hits=0, bytes_stored=0, bytes_retrieved=0
)


def printed(result: ReplayResult) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(result.to_table())
    return out.getvalue()


def test_rates() -> None:
    assert RESULT.hit_rate == 0.25
    assert RESULT.unbounded_hit_rate == 0.4
    assert RESULT.gigabytes_per_second == 2.0


def test_a_replay_of_nothing_has_rates_of_zero() -> None:
    nothing = dataclasses.replace(NOTHING, seconds=0.0)
    assert nothing.hit_rate == nothing.unbounded_hit_rate == nothing.gigabytes_per_second == 0.0


def test_percentiles_are_of_the_samples_in_microseconds() -> None:
    latency = Latency.of([i * 1000 for i in range(101)])
    assert latency == Latency(101, 50.0, 99.0)
    assert Latency.of([]) == Latency(0, None, None)


def test_json_is_one_line_with_every_field_and_the_rates() -> None:
    text = RESULT.to_json()
    assert "\n" not in text
    said = json.loads(text)
    assert {field.name for field in dataclasses.fields(ReplayResult)} < set(said)
    assert said["hit_rate"] == 0.25
    assert said["gigabytes_per_second"] == 2.0
    assert said["match"] == {"commands": 10, "p50_us": 20.0, "p99_us": 30.0}
    assert said["retrieve"] == {"commands": 0, "p50_us": None, "p99_us": None}


@pytest.mark.parametrize(
    "shown",
    ["500 (25.00%)", "800 (40.00%)", "3.000 GB", "2.000 GB/s", "1,234.5 / 2,345.6 us", "none"],
)
def test_the_table_shows(shown: str) -> None:
    assert shown in printed(RESULT)
