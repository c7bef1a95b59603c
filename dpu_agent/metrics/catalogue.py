"""Every metric of the agent: name, kind, labels and meaning. docs/metrics.md says the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Kinds of metrics, as Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; its name says the unit."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


COMMANDS = (
    Metric("kvlane_commands_total", Kind.COUNTER, ("operation",), "commands executed"),
    Metric(
        "kvlane_command_latency_seconds",
        Kind.HISTOGRAM,
        ("operation", "tier"),
        "from the turn of the data loop that finds a command to the end of the one that posts its "
        "response; `tier` is `nvme` where it waited for that tier, else `memory`",
    ),
    Metric(
        "kvlane_command_jitter_seconds",
        Kind.SUMMARY,
        ("operation", "tier"),
        "by how much the latencies of two commands differ that follow each other in one session, "
        "with the same operation and tier",
    ),
    Metric(
        "kvlane_commands_in_flight",
        Kind.GAUGE,
        (),
        "commands whose payload moves, or that wait for the nvme tier",
    ),
    Metric(
        "kvlane_commands_unread",
        Kind.GAUGE,
        (),
        "commands that have arrived and wait until an earlier response is delivered",
    ),
)

LOOKUPS = (
    Metric(
        "kvlane_lookup_hits_total",
        Kind.COUNTER,
        ("namespace", "operation", "tier"),
        "keys that a command found, by the tier that had the block; of a MATCH, the prefix",
    ),
    Metric(
        "kvlane_lookup_misses_total",
        Kind.COUNTER,
        ("namespace", "operation", "tier"),
        "keys that were looked for in a tier and not found there; of a MATCH, all that follow the "
        "prefix",
    ),
)

BYTES_MOVED = (
    Metric(
        "kvlane_host_bytes_total",
        Kind.COUNTER,
        ("namespace", "direction"),
        "payload moved between hosts and memory: `stored` or `retrieved`",
    ),
    Metric(
        "kvlane_tier_moved_bytes_total",
        Kind.COUNTER,
        ("direction",),
        "payload moved between tiers: `promoted` into memory or `demoted` to nvme; or within nvme, "
        "`compacted`",
    ),
    Metric(
        "kvlane_tier_moved_blocks_total",
        Kind.COUNTER,
        ("direction",),
        "blocks `promoted` into memory, or copied to nvme (`demoted`)",
    ),
)

TIERS = (
    Metric("kvlane_tier_blocks", Kind.GAUGE, ("tier",), "blocks that can be found"),
    Metric("kvlane_tier_capacity_blocks", Kind.GAUGE, ("tier",), "blocks that there is room for"),
    Metric("kvlane_tier_bytes", Kind.GAUGE, ("tier",), "payload of the blocks that can be found"),
    Metric("kvlane_tier_capacity_bytes", Kind.GAUGE, ("tier",), "bytes that the tier may take"),
    Metric("kvlane_tier_pinned_blocks", Kind.GAUGE, ("tier",), "blocks that are being read"),
    Metric("kvlane_tier_writing_blocks", Kind.GAUGE, ("tier",), "blocks that are being written"),
    Metric(
        "kvlane_tier_fragmentation_ratio",
        Kind.GAUGE,
        ("tier",),
        "share of the occupied space that holds no payload: of memory, the ends of slots behind "
        "shorter blocks; of nvme, what is dead in the segment log",
    ),
    Metric(
        "kvlane_tier_published_blocks_total",
        Kind.COUNTER,
        ("tier",),
        "blocks that came, from hosts or from the other tier",
    ),
    Metric(
        "kvlane_tier_duplicate_blocks_total",
        Kind.COUNTER,
        ("tier",),
        "blocks that were there already, or on their way",
    ),
    Metric(
        "kvlane_tier_refused_blocks_total",
        Kind.COUNTER,
        ("tier",),
        "blocks for which there was no room, or that the policy did not want",
    ),
    Metric(
        "kvlane_tier_aborted_blocks_total",
        Kind.COUNTER,
        ("tier",),
        "blocks whose transfer did not end well",
    ),
    Metric(
        "kvlane_tier_policy_faults_total",
        Kind.COUNTER,
        ("tier",),
        "failures of the eviction policy, which is not asked again after one",
    ),
)

LEAVING = (
    Metric(
        "kvlane_evicted_blocks_total",
        Kind.COUNTER,
        ("tier", "cause"),
        "blocks that made room for others: `capacity`, pushed out by a new block at once; "
        "`demotion`, early, so that nvme could take a copy before",
    ),
    Metric(
        "kvlane_deleted_blocks_total",
        Kind.COUNTER,
        ("tier",),
        "blocks deleted by hosts; of nvme, damaged ones too",
    ),
    Metric(
        "kvlane_lost_blocks_total",
        Kind.COUNTER,
        ("cause",),
        "blocks that nvme did not keep: `dropped`, there was no room or they could not be written; "
        "`damaged`, they could not be read, or not with the right checksum",
    ),
    Metric(
        "kvlane_promotions_refused_total",
        Kind.COUNTER,
        (),
        "blocks that could not come back from nvme, as all of memory was pinned or being written",
    ),
)

PREFETCH = (
    Metric(
        "kvlane_prefetch_started_blocks_total",
        Kind.COUNTER,
        (),
        "blocks that came from nvme though nobody had asked for them yet",
    ),
    Metric(
        "kvlane_prefetch_started_bytes_total",
        Kind.COUNTER,
        (),
        "their payload",
    ),
    Metric(
        "kvlane_prefetch_skipped_blocks_total",
        Kind.COUNTER,
        (),
        "guesses that were not followed: too late, or too many",
    ),
    Metric(
        "kvlane_prefetch_blocks_total",
        Kind.COUNTER,
        ("outcome",),
        "what became of them: `useful`, a RETRIEVE found them in memory, or `wasted`, they left "
        "before",
    ),
    Metric(
        "kvlane_prefetch_bytes_total",
        Kind.COUNTER,
        ("outcome",),
        "the payload of these",
    ),
    Metric(
        "kvlane_prefetch_open_blocks",
        Kind.GAUGE,
        (),
        "blocks in memory of which it is not known yet",
    ),
)

COMPRESSION = (
    Metric(
        "kvlane_compression_blocks_total",
        Kind.COUNTER,
        ("kind",),
        "blocks that were `compressed`, stored as they are (`raw`), or `decompressed`",
    ),
    Metric(
        "kvlane_compression_bytes_total",
        Kind.COUNTER,
        ("form",),
        "payload given to nvme, `plain`, and what was stored for it, `stored`",
    ),
    Metric(
        "kvlane_compression_cpu_seconds_total",
        Kind.COUNTER,
        ("direction",),
        "processor time to `compress` and to `decompress`",
    ),
)

SEGMENT_LOG = (
    Metric(
        "kvlane_segment_log_bytes",
        Kind.GAUGE,
        ("state",),
        "bytes of the files: `live`, `dead` until compaction gives them back, or `free`",
    ),
    Metric(
        "kvlane_segment_log_appended_bytes_total",
        Kind.COUNTER,
        (),
        "payload that was to be written",
    ),
    Metric(
        "kvlane_segment_log_written_bytes_total",
        Kind.COUNTER,
        (),
        "bytes that were written for it, with headers and compaction",
    ),
    Metric(
        "kvlane_segment_log_errors_total",
        Kind.COUNTER,
        ("kind",),
        "what the devices did wrong: `checksum` of a block, or `io`",
    ),
    Metric(
        "kvlane_segment_log_failed_directories",
        Kind.GAUGE,
        (),
        "directories that are not written to any more",
    ),
)

NIC = (
    Metric(
        "kvlane_nic_events_total",
        Kind.COUNTER,
        ("counter",),
        "what the ports of the NIC have counted, by the names of docs/counters.md",
    ),
)

AGENT = (
    Metric(
        "kvlane_build_info",
        Kind.GAUGE,
        ("version", "boot_id", "device"),
        "always 1: which agent this is; `boot_id` is new at every start",
    ),
    Metric("kvlane_uptime_seconds", Kind.GAUGE, (), "time since the agent was started"),
    Metric("kvlane_sessions", Kind.GAUGE, (), "sessions that are open"),
    Metric("kvlane_draining", Kind.GAUGE, (), "1 when no new sessions are taken, else 0"),
)

SECTIONS = {
    "Commands": COMMANDS,
    "Hits and misses": LOOKUPS,
    "Bytes moved": BYTES_MOVED,
    "Tiers": TIERS,
    "What leaves": LEAVING,
    "Prefetch": PREFETCH,
    "Compression": COMPRESSION,
    "Segment log": SEGMENT_LOG,
    "NIC": NIC,
    "Agent": AGENT,
}
"""By the headings of docs/metrics.md."""

CATALOGUE = tuple(metric for section in SECTIONS.values() for metric in section)
