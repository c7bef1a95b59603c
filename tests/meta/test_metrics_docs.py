"""docs/metrics.md and the dashboard say what the agent serves, in its names and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from dpu_agent.config import AgentConfig
from dpu_agent.metrics.catalogue import CATALOGUE, SECTIONS, Kind
from kvlane.config import load_mapping
from tests.support.repository import ROOT

TEXT = (ROOT / "docs/metrics.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana/kvlane.json").read_text())
ROWS = ["Traffic", "Latency", "Tiers", "Evictions", "Bytes moved", "Fragmentation"]
GRID_COLUMNS = 24
EVERYWHERE = {"job", "instance"}
"""Labels that Prometheus gives to all that it scrapes."""
_AFTER = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.SUMMARY: ("_sum", "_count")}
_LABELS = re.compile(r"\{([^}]*)\}|\b(?:by|without) ?\(([^)]*)\)")


def known_series() -> dict[str, set[str]]:
    """Every name of a series that an agent serves, and its labels."""
    known = {}
    for metric in CATALOGUE:
        for suffix in _AFTER.get(metric.kind, ("",)):
            extra = {"le"} if suffix == "_bucket" else set()
            known[metric.name + suffix] = {*metric.labels, *extra, *EVERYWHERE}
    for family in ProcessCollector(registry=CollectorRegistry()).collect():
        for sample in family.samples:
            known[sample.name] = set(EVERYWHERE)
    return known


KNOWN = known_series()


def wrong_with(expression: str) -> list[str]:
    """Names in a query that no agent serves, and labels that none of its series has."""
    code = re.sub(r'"[^"]*"', '""', expression)
    names = set(re.findall(r"\b(?:kvlane|process|python)_[a-z_]+\b", code))
    labels: set[str] = set()
    for matchers, grouping in _LABELS.findall(code):
        labels.update(re.findall(r"[a-z_]+", matchers), re.findall(r"[a-z_]+", grouping))
    allowed = set().union(*(KNOWN.get(name, set()) for name in names))
    return sorted(names - set(KNOWN)) + sorted(labels - allowed) + ([] if names else ["no metric"])


def panels(kind: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] == kind]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for panel in panels("timeseries"):
        for target in panel["targets"]:
            yield f"{panel['title']}-{target['refId']}", target["expr"]


def documented_queries() -> list[str]:
    return re.findall(r"^```promql\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_metric_is_documented(heading: str) -> None:
    section = TEXT.split(f"\n### {heading}\n")[1].split("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    wanted = []
    for metric in SECTIONS[heading]:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        wanted.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} |")
    assert rows == wanted


def test_nothing_else_is_documented() -> None:
    headings = re.findall(r"^### (.*)$", TEXT, re.M)
    assert headings == list(SECTIONS)
    assert set(re.findall(r"\bkvlane_[a-z_]+\b", TEXT)) <= {*KNOWN, *(m.name for m in CATALOGUE)}


def test_the_settings_in_it_are_settings() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)
    agent, prometheus = (yaml.safe_load(block) for block in blocks)
    listen = load_mapping(AgentConfig, agent).metrics.listen
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": [listen]}]


@pytest.mark.parametrize("query", documented_queries())
def test_queries_ask_for_what_there_is(query: str) -> None:
    assert wrong_with(query) == []


@pytest.mark.parametrize("query", [pytest.param(q, id=name) for name, q in dashboard_queries()])
def test_panels_ask_for_what_there_is(query: str) -> None:
    assert wrong_with(query) == []
    assert query.count("kvlane_") + query.count("process_") == query.count('job=~"$job"')


def test_the_dashboard_has_the_rows() -> None:
    assert [panel["title"] for panel in panels("row")][: len(ROWS)] == ROWS
    assert {panel["type"] for panel in DASHBOARD["panels"]} == {"row", "timeseries"}


def test_the_data_source_is_a_variable() -> None:
    first, *others = DASHBOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    asking = [*others, *panels("timeseries")]
    asking += [target for panel in panels("timeseries") for target in panel["targets"]]
    assert all(each["datasource"] == wanted for each in asking)
    for variable in others:
        assert wrong_with(variable["definition"].removeprefix("label_values")) == []


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < GRID_COLUMNS
        taken |= cells


def test_control_queries() -> None:
    assert wrong_with('sum by (tier) (rate(kvlane_tier_blocks{job="x"}[5m]))') == []
    assert wrong_with("kvlane_nothing") == ["kvlane_nothing"]
    assert wrong_with("kvlane_command_latency_seconds") == ["kvlane_command_latency_seconds"]
    assert wrong_with("sum by (cause) (kvlane_tier_blocks)") == ["cause"]
    assert wrong_with('kvlane_sessions{tier="memory"}') == ["tier"]
    assert wrong_with("up") == ["no metric"]
