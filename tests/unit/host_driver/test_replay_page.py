"""The report of a replay against an agent, and the windows and tokens that are in it."""

from __future__ import annotations

import dataclasses

import pytest

from host_driver.replay.page import as_page
from host_driver.replay.report import Latency, ReplayResult
from host_driver.replay.timeline import SHARES, Timeline, TimeWindows, Tokens, quantiles_us
from tests.support.html_page import PageReader

TIMELINE = Timeline(block_tokens=512)
for row in ((1_000, 4, 0, 2000), (2_000, 4, 4, 2000), (60_000, 2, 1, 700)):
    TIMELINE.add(*row)

RESULT = ReplayResult(
    requests=3,
    blocks_asked=10,
    blocks_hit=5,
    unbounded_hits=5,
    blocks_stored=5,
    blocks_refused=0,
    blocks_evicted=0,
    bytes_stored=5,
    bytes_retrieved=5,
    verification_errors=0,
    retransmissions=0,
    match=Latency.of([1000, 2000]),
    retrieve=Latency.of([]),
    store=Latency.of([5000]),
    seconds=0.00006,
    tokens=TIMELINE.tokens(),
    windows=TIMELINE.windows(0),
    latency_quantiles_us=quantiles_us({"match": [1000, 2000], "retrieve": [], "store": [5000]}),
    tier_counters={"nvme_promoted": 12345},
)


def test_tokens_saved_are_those_of_the_blocks_that_were_there() -> None:
    # A prompt of 2,000 tokens has four blocks, the last of which is not full.
    assert RESULT.tokens.asked == 4700
    assert RESULT.tokens.saved == 2000 + 512
    assert RESULT.tokens.left_p50 == 188
    assert Timeline(512).tokens() == Tokens()


def test_windows_hold_every_request() -> None:
    windows = RESULT.windows
    assert sum(windows.blocks_asked) == 10
    assert sum(windows.blocks_hit) == 5
    assert windows.blocks_hit[-1] == 1
    assert windows.end_seconds[-1] == pytest.approx(60_000e-9, rel=0.01)
    assert Timeline(512).windows(0) == TimeWindows()


def test_quantiles_are_of_the_commands_that_there_were() -> None:
    assert set(RESULT.latency_quantiles_us) == {"match", "store"}
    assert len(RESULT.latency_quantiles_us["match"]) == len(SHARES)
    assert RESULT.latency_quantiles_us["match"][SHARES.index(0.5)] == pytest.approx(1.5)


def test_the_page_shows_what_was_measured_and_counted() -> None:
    reader = PageReader(as_page(RESULT, "<a trace>"))
    assert reader.fetched == []
    assert "Replay: <a trace>" in reader.headings
    for heading in ("Hit rate over time", "Time of commands", "What moved"):
        assert heading in reader.headings
    for shown in ("50.00%", "nvme_promoted", "12,345", "2,512", "match", "1.5"):
        assert shown in reader.text


def test_a_replay_of_nothing_has_a_page_too() -> None:
    nothing = dataclasses.replace(
        RESULT,
        tokens=Tokens(),
        windows=TimeWindows(),
        latency_quantiles_us={},
        tier_counters={},
        blocks_asked=0,
        seconds=0.0,
    )
    assert "Replay" in PageReader(as_page(nothing, "none")).text
