"""A page of metrics as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

SCRAPE_TIMEOUT_S = 60.0
_MAY_FALL = {"gauge", "unknown"}


class MetricsPage:
    """Samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self._never_fall: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"{key} appears twice"
                self.samples[key] = sample.value
                if family.type not in _MAY_FALL:
                    self._never_fall.add(key)

    def value(self, name: str, **labels: str) -> float:
        """The one sample with exactly these labels."""
        return self.samples[name, frozenset(labels.items())]

    def label_values(self, name: str, label: str) -> set[str]:
        """All values that a label of a metric has."""
        return {dict(labels)[label] for known, labels in self.samples if known == name}

    def fallen_since(self, earlier: MetricsPage) -> Iterator[str]:
        """Counts of an earlier page that are gone or smaller."""
        for key in sorted(earlier._never_fall, key=str):
            if self.samples.get(key, -1) < earlier.samples[key]:
                yield f"{key}: {earlier.samples[key]} was before, {self.samples.get(key)} is now"


def scrape(address: str) -> MetricsPage:
    """The page of an agent whose metrics are served at ``host:port``."""
    url = f"http://{address}/metrics"
    with urllib.request.urlopen(url, timeout=SCRAPE_TIMEOUT_S) as response:
        assert response.status == 200
        return MetricsPage(response.read().decode())


def page_of(collector: Collector) -> MetricsPage:
    """What a collector has to say."""
    registry = CollectorRegistry()
    registry.register(collector)
    return MetricsPage(generate_latest(registry).decode())
