"""The blocks of an agent as one of its ports reaches them: the store knows their slots, the pool
holds their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from dpu_agent.cache.store import BlockStore
from dpu_agent.data.pool import PayloadPool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Metadata and payload of one store."""

    store: BlockStore
    pool: PayloadPool
