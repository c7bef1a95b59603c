"""Turns snapshots of the agent into a page of metrics, whenever somebody asks for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dpu_agent.data.counting import (
    BOUNDS_NS,
    JITTER_SUM_NS,
    JITTERS,
    LATENCY_CLASSES,
    OPERATIONS,
    SUM_NS,
    TIERS,
    Found,
    TenantWord,
    latency_row,
)
from dpu_agent.metrics.figures import AgentFigures, DataFigures, NvmeFigures, StoreFigures
from dpu_agent.metrics.page import Page

MEMORY, NVME = TIERS

STORE_FIGURES = {
    "blocks": "kvlane_tier_blocks",
    "capacity_blocks": "kvlane_tier_capacity_blocks",
    "bytes": "kvlane_tier_bytes",
    "pinned": "kvlane_tier_pinned_blocks",
    "writing": "kvlane_tier_writing_blocks",
    "stored": "kvlane_tier_published_blocks_total",
    "already_stored": "kvlane_tier_duplicate_blocks_total",
    "refused": "kvlane_tier_refused_blocks_total",
    "aborted": "kvlane_tier_aborted_blocks_total",
    "deleted": "kvlane_deleted_blocks_total",
    "policy_faults": "kvlane_tier_policy_faults_total",
}
"""What shows each field of ``StoreStats``, with the tier as its label."""

TIER_FIGURES: dict[str, tuple[str, ...]] = {
    "promoted": ("kvlane_tier_moved_blocks_total", "promoted"),
    "promoted_bytes": ("kvlane_tier_moved_bytes_total", "promoted"),
    "demoted": ("kvlane_tier_moved_blocks_total", "demoted"),
    "demoted_bytes": ("kvlane_tier_moved_bytes_total", "demoted"),
    "prefetched": ("kvlane_prefetch_started_blocks_total",),
    "prefetched_bytes": ("kvlane_prefetch_started_bytes_total",),
    "prefetch_skipped": ("kvlane_prefetch_skipped_blocks_total",),
    "dropped": ("kvlane_lost_blocks_total", "dropped"),
    "no_room": ("kvlane_promotions_refused_total",),
    "damaged": ("kvlane_lost_blocks_total", "damaged"),
}
"""What shows each field of ``TierFigures``, with labels."""

GUESS_FIGURES: dict[str, tuple[str, ...]] = {
    "open": ("kvlane_prefetch_open_blocks",),
    "useful": ("kvlane_prefetch_blocks_total", "useful"),
    "useful_bytes": ("kvlane_prefetch_bytes_total", "useful"),
    "wasted": ("kvlane_prefetch_blocks_total", "wasted"),
    "wasted_bytes": ("kvlane_prefetch_bytes_total", "wasted"),
}
"""What shows the fields of ``Guesses``, with labels."""

COMPRESSION_FIGURES: dict[str, tuple[str, ...]] = {
    "compressed": ("kvlane_compression_blocks_total", "compressed"),
    "stored_raw": ("kvlane_compression_blocks_total", "raw"),
    "decompressed": ("kvlane_compression_blocks_total", "decompressed"),
    "plain_bytes": ("kvlane_compression_bytes_total", "plain"),
    "stored_bytes": ("kvlane_compression_bytes_total", "stored"),
    "compress_cpu_us": ("kvlane_compression_cpu_seconds_total", "compress"),
    "decompress_cpu_us": ("kvlane_compression_cpu_seconds_total", "decompress"),
}
"""What shows each field of ``CompressionFigures``, with labels."""

LOG_FIGURES: dict[str, tuple[str, ...]] = {
    "live_bytes": ("kvlane_segment_log_bytes", "live"),
    "dead_bytes": ("kvlane_segment_log_bytes", "dead"),
    "free_bytes": ("kvlane_segment_log_bytes", "free"),
    "user_bytes": ("kvlane_segment_log_appended_bytes_total",),
    "written_bytes": ("kvlane_segment_log_written_bytes_total",),
    "compacted_bytes": ("kvlane_tier_moved_bytes_total", "compacted"),
    "checksum_failures": ("kvlane_segment_log_errors_total", "checksum"),
    "io_errors": ("kvlane_segment_log_errors_total", "io"),
}
"""What shows the fields of ``Usage``, with labels."""

_LOOKUPS = {
    "retrieve": TenantWord.RETRIEVE_KEYS,
    "exist": TenantWord.EXIST_KEYS,
    "match": TenantWord.MATCH_KEYS,
}
_HOST_BYTES = {
    "stored": TenantWord.STORED_BYTES,
    "retrieved": TenantWord.RETRIEVED_BYTES,
}
_WAITING_OPERATIONS = ("STORE", "RETRIEVE", "DELETE")
"""Those that may wait for the nvme tier."""
_BOUNDS = [*(repr(int(bound) / 1e9) for bound in BOUNDS_NS), "+Inf"]


class AgentCollector(Collector):
    """Reads, and counts nothing itself. One scrape at a time takes a snapshot; what it gets is
    written out and sent without keeping the next one waiting."""

    def __init__(self, figures: Callable[[], AgentFigures]) -> None:
        """``figures()`` may be called from any thread."""
        self._figures: Callable[[], AgentFigures] | None = figures
        self._version = _version()
        self._gate = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """All metrics, without values."""
        return Page().metrics()

    def collect(self) -> Iterable[Metric]:
        """All metrics that have values now; none once this is closed."""
        with self._gate:
            figures = self._figures() if self._figures is not None else None
        page = Page()
        if figures is not None:
            self._fill(page, figures)
        return page.filled()

    def close(self) -> None:
        """Ask the agent for nothing any more, from when this returns."""
        with self._gate:
            self._figures = None

    def _fill(self, page: Page, figures: AgentFigures) -> None:
        _add_commands(page, figures.data, has_nvme=figures.nvme is not None)
        _add_tenants(page, figures)
        _add_memory(page, figures.memory)
        if figures.nvme is not None:
            _add_nvme(page, figures.nvme)
        for name, value in figures.data.nic_counters.items():
            page.add("kvlane_nic_events_total", value, name)
        page.add("kvlane_build_info", 1, self._version, figures.boot_id.hex(), figures.device)
        page.add("kvlane_uptime_seconds", figures.uptime_ns / 1e9)
        page.add("kvlane_sessions", figures.sessions)
        page.add("kvlane_draining", int(figures.draining))


def _version() -> str:
    try:
        return metadata.version("kvlane")
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a checkout that nobody has installed


def _add_commands(page: Page, data: DataFigures, *, has_nvme: bool) -> None:
    for operation in OPERATIONS:
        name = operation.name.lower()
        page.add("kvlane_commands_total", data.commands.get(operation.name, 0), name)
        for number, tier in enumerate(TIERS):
            if tier == MEMORY or (has_nvme and operation.name in _WAITING_OPERATIONS):
                row = data.latencies[latency_row(operation, number)].tolist()
                _add_latency(page, row, name, tier)
    page.add("kvlane_commands_in_flight", data.in_flight)
    page.add("kvlane_commands_unread", data.unread)


def _add_latency(page: Page, row: list[int], operation: str, tier: str) -> None:
    buckets = list(zip(_BOUNDS, accumulate(row[:LATENCY_CLASSES]), strict=True))
    seconds = row[SUM_NS] / 1e9
    page.add_histogram("kvlane_command_latency_seconds", buckets, seconds, operation, tier)
    count, jitter = row[JITTERS], row[JITTER_SUM_NS] / 1e9
    page.add_summary("kvlane_command_jitter_seconds", count, jitter, operation, tier)


def _add_tenants(page: Page, figures: AgentFigures) -> None:
    for number, namespace in figures.tenants.items():
        row = figures.data.tenants[number].tolist()
        for operation, first in _LOOKUPS.items():
            found = row[first : first + len(Found)]
            _add_lookups(page, found, namespace, operation, has_nvme=figures.nvme is not None)
        for direction, word in _HOST_BYTES.items():
            page.add("kvlane_host_bytes_total", row[word], namespace, direction)


def _add_lookups(
    page: Page, found: list[int], namespace: str, operation: str, *, has_nvme: bool
) -> None:
    """What memory does not have is looked for in the tier below."""
    hits, misses = "kvlane_lookup_hits_total", "kvlane_lookup_misses_total"
    in_memory, in_nvme, nowhere = found
    page.add(hits, in_memory, namespace, operation, MEMORY)
    page.add(misses, in_nvme + nowhere, namespace, operation, MEMORY)
    if has_nvme:
        page.add(hits, in_nvme, namespace, operation, NVME)
        page.add(misses, nowhere, namespace, operation, NVME)


def _add_store(page: Page, store: StoreFigures, tier: str) -> None:
    for field, name in STORE_FIGURES.items():
        page.add(name, getattr(store.stats, field), tier)
    page.add("kvlane_evicted_blocks_total", store.displaced, tier, "capacity")


def _add_memory(page: Page, store: StoreFigures) -> None:
    _add_store(page, store, MEMORY)
    stats = store.stats
    page.add("kvlane_evicted_blocks_total", store.demoted, MEMORY, "demotion")
    page.add("kvlane_tier_capacity_bytes", stats.capacity_blocks * stats.block_bytes, MEMORY)
    occupied = stats.blocks * stats.block_bytes
    wasted = 1 - stats.bytes / occupied if occupied else 0.0
    page.add("kvlane_tier_fragmentation_ratio", wasted, MEMORY)


def _add_fields(page: Page, shown: Mapping[str, tuple[str, ...]], figures: object) -> None:
    """Some fields of a record, each under the metric and labels that show it; in seconds those that
    are in microseconds."""
    for field, (name, *labels) in shown.items():
        value = getattr(figures, field)
        page.add(name, value / 1e6 if field.endswith("_us") else value, *labels)


def _add_nvme(page: Page, nvme: NvmeFigures) -> None:
    _add_store(page, nvme.store, NVME)
    _add_fields(page, TIER_FIGURES, nvme.moves)
    _add_fields(page, GUESS_FIGURES, nvme.guesses)
    _add_fields(page, COMPRESSION_FIGURES, nvme.compression)
    _add_fields(page, LOG_FIGURES, nvme.log)
    page.add("kvlane_segment_log_failed_directories", len(nvme.log.failed_directories))
    page.add("kvlane_tier_capacity_bytes", nvme.log.capacity_bytes, NVME)
    page.add("kvlane_tier_fragmentation_ratio", nvme.log.fragmentation, NVME)
