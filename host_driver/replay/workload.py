"""What a replay replays, and how much memory it takes to keep all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from host_driver.replay.chat import chat_requests
from kvlane.trace import Request, read_trace

CHAT_REQUESTS = 1000
"""Requests of the synthetic chat, which has no end of its own."""

AVAILABLE_MEMORY_SHARE = 0.5
"""How much of the memory that is available the blocks may take."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a trace, or of the synthetic chat."""

    trace: Path | None
    limit: int | None
    seed: int

    @property
    def total(self) -> int | None:
        """How many requests there will be, where that is known before they are read."""
        return self.limit if self.trace else self.limit or CHAT_REQUESTS

    def requests(self) -> Iterator[Request]:
        """The requests, read or made as they are needed."""
        source = read_trace(self.trace) if self.trace else chat_requests(self.seed)
        return islice(source, self.total)

    def unique_blocks(self) -> int:
        """How many different blocks there are: what a cache must hold to evict none."""
        return len({block for request in self.requests() for block in request.block_ids})


def capacity_bytes(blocks: int, block_bytes: int, available_bytes: int) -> int:
    """Room for so many blocks, as far as available memory allows, and for one at least."""
    affordable = int(available_bytes * AVAILABLE_MEMORY_SHARE) // block_bytes
    return max(1, min(blocks, affordable)) * block_bytes


def available_memory_bytes() -> int:
    """Memory that new processes can have without swapping, as the kernel estimates it."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    facts = dict(line.split(":", 1) for line in lines)
    return int(facts["MemAvailable"].split()[0]) << 10
