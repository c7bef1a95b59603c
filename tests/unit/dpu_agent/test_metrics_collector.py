"""The page of metrics: all of the catalogue, from snapshots of stores and agents as they are."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest

from dpu_agent.cache.store import Guesses
from dpu_agent.control.core import StoreStats
from dpu_agent.data.counting import (
    BOUNDS_NS,
    JITTER_SUM_NS,
    JITTERS,
    LATENCY_CLASSES,
    SUM_NS,
    TIERS,
    latency_row,
)
from dpu_agent.metrics.catalogue import CATALOGUE, Kind
from dpu_agent.metrics.collector import (
    COMPRESSION_FIGURES,
    GUESS_FIGURES,
    LOG_FIGURES,
    STORE_FIGURES,
    TIER_FIGURES,
    AgentCollector,
)
from dpu_agent.metrics.figures import AgentFigures, StoreFigures
from dpu_agent.segments.requests import Usage
from dpu_agent.tiers.compressed_medium import CompressionFigures
from dpu_agent.tiers.figures import TierFigures
from kvlane.capsule import Opcode
from tests.support.metrics_page import MetricsPage, page_of
from tests.support.snapshots import BUSY, IDLE

LATENCY = "kvlane_command_latency_seconds"
JITTER = "kvlane_command_jitter_seconds"
SHOWN_APART = {"block_bytes", "hits", "misses", "evicted"}
"""Of ``StoreStats``: as bytes, by tenant, and by cause."""


def page_for(figures: AgentFigures) -> MetricsPage:
    return page_of(AgentCollector(lambda: figures))


def family(name: str) -> str:
    """Counters lose their suffix when they are read."""
    return name.removesuffix("_total")


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert re.fullmatch(r"kvlane(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert not re.search(r"_(ms|us|ns|kb|mb|percent|count|sum|bucket)(_|$)", metric.name)
        assert not {kind.value for kind in Kind} & set(metric.name.split("_"))
        assert not metric.meaning[0].isupper()
        assert not metric.meaning.endswith(".")


def test_every_metric_is_there_and_nothing_else() -> None:
    page = page_for(BUSY)
    wanted = {family(metric.name): metric.kind.value for metric in CATALOGUE}
    assert page.kinds == wanted
    assert {family(re.sub(r"_(bucket|sum|count)$", "", name)) for name, _ in page.samples} == {
        family(re.sub(r"_(bucket|sum|count)$", "", metric.name)) for metric in CATALOGUE
    }


def test_labels_are_those_of_the_catalogue() -> None:
    labels = {family(metric.name): set(metric.labels) for metric in CATALOGUE}
    for name, pairs in page_for(BUSY).samples:
        known = re.sub(r"_(bucket|sum|count|total)$", "", name)
        assert {label for label, _ in pairs} - {"le"} == labels.get(known, labels.get(name))


def test_every_figure_of_a_tier_is_shown() -> None:
    assert set(TIER_FIGURES) == {field.name for field in fields(TierFigures)}
    assert set(STORE_FIGURES) | SHOWN_APART == {field.name for field in fields(StoreStats)}
    assert set(COMPRESSION_FIGURES) == {field.name for field in fields(CompressionFigures)}
    assert set(GUESS_FIGURES) | {"open_bytes"} == {field.name for field in fields(Guesses)}
    apart = {"capacity_bytes", "records", "failed_directories"}
    assert set(LOG_FIGURES) | apart == {field.name for field in fields(Usage)}


def test_an_agent_without_a_lower_tier_says_nothing_of_one() -> None:
    page = page_for(replace(IDLE, tenants={0: "a"}))
    for metric in CATALOGUE:
        if "tier" in metric.labels and metric.name in {name for name, _ in page.samples}:
            assert page.label_values(metric.name, "tier") == {"memory"}
    assert 'tier="nvme"' not in page.text
    assert "segment_log" not in page.text


def test_latencies_are_cumulative_and_in_seconds() -> None:
    latencies = IDLE.data.latencies.copy()
    row = latencies[latency_row(Opcode.RETRIEVE, TIERS.index("nvme"))]
    row[3], row[10], row[LATENCY_CLASSES - 1] = 5, 2, 1
    row[SUM_NS], row[JITTER_SUM_NS], row[JITTERS] = 30 * 10**9, 4_000, 7
    page = page_for(replace(BUSY, data=replace(BUSY.data, latencies=latencies)))
    where = {"operation": "retrieve", "tier": "nvme"}
    bounds = [repr(int(bound) / 1e9) for bound in BOUNDS_NS] + ["+Inf"]
    counts = [page.value(f"{LATENCY}_bucket", le=bound, **where) for bound in bounds]
    assert counts == [0] * 3 + [5] * 7 + [7] * (LATENCY_CLASSES - 11) + [8]
    assert bounds[:3] == ["1e-06", "1.5e-06", "2e-06"]
    assert all(float(low) < float(high) for low, high in pairwise(bounds))
    assert page.value(f"{LATENCY}_count", **where) == 8
    assert page.value(f"{LATENCY}_sum", **where) == 30
    assert page.value(f"{JITTER}_count", **where) == 7
    assert page.value(f"{JITTER}_sum", **where) == pytest.approx(4e-6)


def test_what_memory_misses_is_looked_for_below() -> None:
    tenants = IDLE.data.tenants.copy()
    tenants[0, :3] = (10, 4, 3)
    tenants[0, 9:11] = (1000, 2000)
    page = page_for(replace(BUSY, data=replace(BUSY.data, tenants=tenants)))
    where = {"namespace": "a tenant", "operation": "retrieve"}
    hits, misses = "kvlane_lookup_hits_total", "kvlane_lookup_misses_total"
    assert page.value(hits, tier="memory", **where) == 10
    assert page.value(misses, tier="memory", **where) == 7
    assert page.value(hits, tier="nvme", **where) == 4
    assert page.value(misses, tier="nvme", **where) == 3
    moved = "kvlane_host_bytes_total"
    assert page.value(moved, namespace="a tenant", direction="stored") == 1000
    assert page.value(moved, namespace="a tenant", direction="retrieved") == 2000


def test_any_printable_name_of_a_namespace_is_a_label() -> None:
    name = 'x"\\{}=,äö\u4e2d'
    page = page_for(replace(IDLE, tenants={5: name}))
    assert page.label_values("kvlane_host_bytes_total", "namespace") == {name}


def test_fragmentation_of_both_tiers() -> None:
    stats = StoreStats(capacity_blocks=10, block_bytes=1000, blocks=4, bytes=3000)
    log = Usage(8000, 600, 200, 7200, 5, 500, 900, 100, 0, 0, ("gone",))
    assert BUSY.nvme is not None
    nvme = replace(BUSY.nvme, log=log)
    page = page_for(replace(BUSY, memory=StoreFigures(stats, 3, 5), nvme=nvme))
    ratio = "kvlane_tier_fragmentation_ratio"
    assert page.value(ratio, tier="memory") == pytest.approx(0.25)
    assert page.value(ratio, tier="nvme") == pytest.approx(0.25)
    assert page.value("kvlane_tier_capacity_bytes", tier="memory") == 10_000
    assert page.value("kvlane_tier_capacity_bytes", tier="nvme") == 8000
    assert page.value("kvlane_evicted_blocks_total", tier="memory", cause="capacity") == 3
    assert page.value("kvlane_evicted_blocks_total", tier="memory", cause="demotion") == 5
    assert page.value("kvlane_segment_log_failed_directories") == 1
    assert page.value("kvlane_tier_moved_bytes_total", direction="compacted") == 100


def test_nothing_is_asked_for_after_the_end() -> None:
    asked: list[int] = []

    def figures() -> AgentFigures:
        asked.append(1)
        return IDLE

    collector = AgentCollector(figures)
    assert page_of(collector).samples
    collector.close()
    before = len(asked)
    assert page_of(collector).samples == {}
    assert len(asked) == before


def test_a_fall_is_noticed() -> None:
    earlier = page_for(replace(IDLE, data=replace(IDLE.data, commands={"STORE": 2})))
    later = page_for(replace(IDLE, data=replace(IDLE.data, commands={"STORE": 1})))
    assert len(list(later.fallen_since(earlier))) == 1
    assert list(earlier.fallen_since(later)) == []


def test_counts_beyond_what_a_float_holds_are_no_error() -> None:
    latencies = np.full_like(IDLE.data.latencies, 1 << 55)
    page = page_for(replace(IDLE, data=replace(IDLE.data, latencies=latencies)))
    assert page.value(f"{LATENCY}_count", operation="store", tier="memory") > 1 << 55
