"""Snapshots of agents that do not run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpu_agent.cache.store import Guesses
from dpu_agent.control.core import StoreStats
from dpu_agent.data.counting import LATENCY_ROWS, LATENCY_WORDS, MAX_TENANTS, TENANT_WORDS
from dpu_agent.metrics.figures import AgentFigures, DataFigures, NvmeFigures, StoreFigures
from dpu_agent.segments.requests import Usage
from dpu_agent.tiers.compressed_medium import CompressionFigures
from dpu_agent.tiers.figures import TierFigures

IDLE = AgentFigures(
    boot_id=bytes(16),
    device="a NIC",
    uptime_ns=0,
    sessions=0,
    draining=False,
    tenants={},
    data=DataFigures(
        commands={},
        latencies=np.zeros((LATENCY_ROWS, LATENCY_WORDS), np.int64),
        tenants=np.zeros((MAX_TENANTS + 1, TENANT_WORDS), np.int64),
        in_flight=0,
        unread=0,
        nic_counters={},
    ),
    memory=StoreFigures(StoreStats(), 0, 0),
    nvme=None,
)
"""An agent without a tier below memory that nobody has asked for anything."""

BUSY = replace(
    IDLE,
    tenants={0: "a tenant"},
    data=replace(IDLE.data, nic_counters={"rx_frames": 7}),
    nvme=NvmeFigures(
        StoreFigures(StoreStats(), 0, 0),
        TierFigures(),
        Guesses(0, 0, 0, 0, 0, 0),
        CompressionFigures(),
        Usage(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ()),
    ),
)
"""One that has something to say of every metric."""
