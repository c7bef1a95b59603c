"""The page that a scrape gets: the metrics of the catalogue, and the values that they have now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from dpu_agent.metrics.catalogue import CATALOGUE, Kind

_FAMILIES = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
    Kind.SUMMARY: SummaryMetricFamily,
}


class Page:
    """Values are given by name; labels in the order of the catalogue."""

    def __init__(self) -> None:
        self._labels = {metric.name: metric.labels for metric in CATALOGUE}
        self._families: Mapping[str, Any] = {
            metric.name: _FAMILIES[metric.kind](metric.name, metric.meaning, labels=metric.labels)
            for metric in CATALOGUE
        }

    def add(self, name: str, value: float, *labels: str) -> None:
        """A value of a counter or a gauge."""
        self._family(name, labels).add_metric(labels, value)

    def add_histogram(
        self, name: str, buckets: Sequence[tuple[str, int]], total: float, *labels: str
    ) -> None:
        """A histogram: how many there are up to each bound, and their sum."""
        self._family(name, labels).add_metric(labels, buckets, total)

    def add_summary(self, name: str, count: int, total: float, *labels: str) -> None:
        """A summary without quantiles."""
        self._family(name, labels).add_metric(labels, count, total)

    def _family(self, name: str, labels: tuple[str, ...]) -> Any:
        assert len(labels) == len(self._labels[name]), f"{name} has labels {self._labels[name]}"
        return self._families[name]

    def metrics(self) -> Iterable[Metric]:
        """All of the catalogue, with or without values."""
        return self._families.values()

    def filled(self) -> Iterable[Metric]:
        """Those that have values."""
        return [family for family in self._families.values() if family.samples]
