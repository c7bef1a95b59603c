"""A snapshot of what the agent has counted, for whoever publishes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpu_agent.cache.store import BlockStore, Guesses
from dpu_agent.control.core import StoreStats
from dpu_agent.data.counting import Words
from dpu_agent.segments.requests import Usage
from dpu_agent.tiers.compressed_medium import CompressionFigures
from dpu_agent.tiers.figures import TierFigures


@dataclass(frozen=True, slots=True)
class DataFigures:
    """Of the data path: the sums over all lanes."""

    commands: Mapping[str, int]
    """Executed, by name of opcode."""
    latencies: Words
    """Rows as in ``LaneCounts``; so is the next."""
    tenants: Words
    in_flight: int
    unread: int
    nic_counters: Mapping[str, int]
    """Empty when the lanes do not answer any more."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Of one tier's block store."""

    stats: StoreStats
    displaced: int
    """Of the blocks evicted, those that made room at once; the next left early."""
    demoted: int

    @classmethod
    def of(cls, store: BlockStore) -> StoreFigures:
        """What they are now."""
        return cls(store.stats(), store.displaced_blocks, store.demoted_blocks)


@dataclass(frozen=True, slots=True)
class NvmeFigures:
    """Of the tier below memory."""

    store: StoreFigures
    moves: TierFigures
    guesses: Guesses
    compression: CompressionFigures
    log: Usage


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """Of the whole agent."""

    boot_id: bytes
    device: str
    uptime_ns: int
    sessions: int
    draining: bool
    tenants: Mapping[int, str]
    """Names of the rows of ``data.tenants`` that somebody has."""
    data: DataFigures
    memory: StoreFigures
    nvme: NvmeFigures | None
