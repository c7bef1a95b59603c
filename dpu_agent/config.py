"""The agent's configuration: every setting with its default, unit and rule of thumb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.tiers.encoded_block import ELEMENT_BYTES
from kvlane.config import BYTES, parse_endpoint, setting
from kvlane.errors import ConfigError
from kvlane.limits import (
    DEFAULT_CONTROL_PORT,
    MAX_BLOCK_BYTES,
    MAX_QUEUE_DEPTH,
    MAX_SESSIONS,
    MAX_WORKERS,
    MIN_BLOCK_BYTES,
)
from kvlane.verbs.backends import BACKENDS


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Where the control plane listens."""

    listen: str = setting(
        f"127.0.0.1:{DEFAULT_CONTROL_PORT}",
        "Endpoint of the gRPC control plane, host:port or [ipv6]:port; port 0 takes a free one.",
        rule="The control plane has no authentication: bind it to loopback or to a network "
        "that only the hosts of this agent share.",
        check=parse_endpoint,
    )


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The NIC that carries the data path."""

    verbs: str = setting(
        "emulator",
        "Which implementation of the verbs serves the data path.",
        choices=BACKENDS,
    )
    options: Mapping[str, object] = setting(
        {}, "Options of that implementation, which checks them itself."
    )


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The memory that holds the blocks."""

    capacity_bytes: int = setting(
        1 << 30,
        "Memory for blocks; it holds capacity_bytes / block_bytes of them, rounded down.",
        unit=BYTES,
        rule="Leave a quarter of the DPU's memory to everything else.",
    )
    block_bytes: int = setting(
        1 << 20,
        "Size of a slot, so the longest block that can be stored.",
        unit=BYTES,
        rule="The largest block of any namespace that attaches; a shorter block wastes the "
        "rest of its slot.",
        minimum=MIN_BLOCK_BYTES,
        maximum=MAX_BLOCK_BYTES,
    )
    policy: str = setting(
        "lru",
        "Eviction policy, which chooses the blocks that leave a full store.",
        choices=POLICIES,
    )

    def validate(self) -> None:
        """``ConfigError`` when not even one block fits."""
        if self.capacity_bytes < self.block_bytes:
            raise ConfigError(
                f"capacity_bytes ({self.capacity_bytes}) must hold at least one block of "
                f"block_bytes ({self.block_bytes}); raise the one or lower the other"
            )


@dataclass(frozen=True, slots=True)
class NvmeConfig:
    """The tier below memory: files that blocks go to before they would be evicted."""

    directories: str = setting(
        "",
        "Directories for it, with ':' between them, best one a device; empty: there is none.",
        rule="Nothing else may write there. What is there is found again at the next start.",
    )
    capacity_bytes: int = setting(
        16 << 30,
        "Room that it may take in each directory; it is allocated as it is needed.",
        unit=BYTES,
        rule="Leave a tenth of the device free, so that it need not slow down.",
    )
    segment_bytes: int = setting(
        256 << 20,
        "Size of a file. Space is given back by whole files.",
        unit=BYTES,
        rule="Some hundred times a block; capacity_bytes must hold four.",
    )
    policy: str = setting(
        "lru",
        "Eviction policy, which chooses the blocks that leave a full tier.",
        choices=POLICIES,
    )
    read_depth: int = setting(16, "Reads under way at a time, for each directory.", minimum=1)
    write_depth: int = setting(8, "Writes under way at a time, for each directory.", minimum=1)
    prefetch: str = setting(
        "match",
        "What brings blocks into memory before they are asked for: nothing; a MATCH that has found "
        "them here; or the expected next turn of a conversation as well.",
        choices=("none", "match", "next_turn"),
        rule="See how many nvme_prefetch_useful are beside nvme_prefetch_wasted before you leave "
        "next_turn on.",
    )
    prefetch_bytes_per_s: int = setting(
        256 << 20,
        "How much may be brought into memory so, in a second; 0 is no limit.",
        unit=BYTES,
        rule="A part of what the devices read, the rest of which is for those who ask.",
        minimum=0,
    )
    demote_bytes_per_s: int = setting(
        0,
        "How much may leave memory for here in a second; 0 is no limit. Stores that come faster "
        "evict, and what they evict is lost.",
        unit=BYTES,
        minimum=0,
    )
    compact_bytes_per_s: int = setting(
        128 << 20,
        "About how much is moved within the files in a second to give space back.",
        unit=BYTES,
        rule="Not less than is deleted or evicted here in a second, in the long run.",
        minimum=1 << 20,
    )
    direct: str = setting(
        "auto",
        "O_DIRECT: used where the file system has it, an error where it has not, or never used.",
        choices=("auto", "require", "off"),
    )
    compression: str = setting(
        "none",
        "Whether blocks are compressed before they are written. What is there is read either way.",
        rule="zstd where room or bandwidth of the device is scarcer than processors: a core "
        "compresses about 1 GB/s. It needs the extra kvlane[compression].",
        choices=("none", "zstd"),
    )
    compression_level: int = setting(
        1,
        "Level of zstd.",
        rule="Higher ones are several times slower and make numbers hardly smaller.",
        minimum=1,
        maximum=19,
    )
    element_bytes: int = setting(
        2,
        "Bytes of the numbers in a block: 1, 2 or 4. Those in the same place of each number lie "
        "together when a block is compressed.",
        unit="bytes of a number",
        rule="2 for bf16 and fp16, 4 for fp32, 1 for fp8 and whatever is no number.",
        minimum=min(ELEMENT_BYTES),
        maximum=max(ELEMENT_BYTES),
    )

    def validate(self) -> None:
        """``ConfigError`` for numbers that nobody has."""
        if self.element_bytes not in ELEMENT_BYTES:
            raise ConfigError(f"element_bytes ({self.element_bytes}) must be 1, 2 or 4")


@dataclass(frozen=True, slots=True)
class StateConfig:
    """What an agent remembers beside the blocks."""

    directory: str = setting(
        "",
        "Directory for what the eviction policy reuse has learnt, a file of up to 512 KiB a tier; "
        "empty: it learns anew at each start.",
        rule="On a disk that outlasts a restart. It is written every five minutes and at the end.",
    )


@dataclass(frozen=True, slots=True)
class SessionsConfig:
    """What hosts may take of the agent."""

    max_sessions: int = setting(
        64,
        "Sessions open at once; one more is refused.",
        rule="One session for each worker process of each host that attaches.",
        minimum=1,
        maximum=MAX_SESSIONS,
    )
    max_queue_depth: int = setting(
        64,
        "Most commands that one session may have in flight; a host that asks for more is "
        "granted this many.",
        rule="Each costs a receive buffer of one capsule, 64 KiB, for every session.",
        minimum=1,
        maximum=MAX_QUEUE_DEPTH,
    )
    watch_grace_ms: int = setting(
        10_000,
        "How long a new session may wait for the stream that watches it before the agent "
        "closes it.",
        unit="milliseconds",
        rule="Well above the time between a host's OpenSession and its WatchSession.",
        minimum=1,
        maximum=3_600_000,
    )


def _parse_listen(listen: str) -> None:
    """``ConfigError`` unless it is an endpoint, or empty."""
    if listen:
        parse_endpoint(listen)


DEFAULT_SPIN_US = 50


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The threads that serve commands."""

    workers: int = setting(
        0,
        "How many there are, each with a port of its own and its share of the sessions; 0 is "
        "one for every two processors that the agent may use, by its affinity and by the quota of "
        "its control group, and one at least.",
        rule="A worker that is busy takes a whole core. On the udp link each has a UDP port: with "
        "a port in the listen address they follow each other from it, so that 3 workers at 4791 "
        "take 4791, 4792 and 4793; with port 0 they are any. A raw link, a capture and a trace "
        "have one worker.",
        minimum=0,
        maximum=MAX_WORKERS,
    )

    spin_us: int = setting(
        DEFAULT_SPIN_US,
        "How long a thread looks for work before it sleeps; 0 sleeps at once.",
        unit="microseconds",
        rule="Waking up takes 5 to 50 us. Others who are ready get the core meanwhile; a core that "
        "does nothing else may spin for milliseconds.",
        minimum=0,
        maximum=1_000_000,
    )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Metrics for Prometheus, over HTTP at /metrics."""

    listen: str = setting(
        "",
        "Endpoint that is scraped, host:port or [ipv6]:port; port 0 takes a free one. Empty: there "
        "is none.",
        rule="It has no authentication, and shows the names of namespaces: bind it to loopback or "
        "to a network of trust.",
        check=_parse_listen,
    )


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything that an agent is told when it starts."""

    control: ControlConfig = ControlConfig()
    device: DeviceConfig = DeviceConfig()
    store: StoreConfig = StoreConfig()
    nvme: NvmeConfig = NvmeConfig()
    state: StateConfig = StateConfig()
    sessions: SessionsConfig = SessionsConfig()
    data: DataConfig = DataConfig()
    metrics: MetricsConfig = MetricsConfig()
