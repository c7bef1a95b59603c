"""What no transfer over a link can beat by much."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from emulator.bench.blast import Blast
from emulator.bench.clock import rate_gbps
from emulator.bench.memcpy import Memcpy
from emulator.bench.rounds import Measure
from emulator.bench.transfer import Size
from emulator.bench.workload import PCIE, UDP

MEMCPY = "memcpy in one thread"
BLAST = "UDP blast between two processes"
LIMIT_NAMES: Mapping[str, str] = {PCIE: MEMCPY, UDP: BLAST}
"""By link."""


def limit_of(link: str, size: Size, undo: ExitStack, *, stores: bool = False) -> Measure:
    """GB/s of a turn of as many bytes, around as much memory; ``undo`` ends it.

    A Retrieve goes from the stored blocks into the rows, a Store from the rows into all slots.
    """
    sources, targets = (size.depth, size.slots) if stores else (size.stored, size.depth)
    if link == UDP:
        blast = Blast(sources * size.block_bytes, targets * size.block_bytes, undo)
        return lambda: blast.gigabytes_per_second(size.turn_bytes)
    copies = Memcpy(size.block_bytes, sources, targets)
    return lambda: rate_gbps(lambda: copies.copy(size.turn_blocks))
