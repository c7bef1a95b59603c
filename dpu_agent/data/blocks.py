"""The blocks of an agent as one of its ports reaches them: the store knows their slots, the pool
holds their bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpu_agent.cache.store import BlockStore, empty_store
from dpu_agent.data.pool import PayloadPool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Metadata and payload of one store."""

    store: BlockStore
    pool: PayloadPool
    cold: BlockStore = field(default_factory=empty_store)
    """What a colder tier has. Its slots are rows of metadata, not places in the pool."""
