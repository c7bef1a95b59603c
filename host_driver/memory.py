"""Host memory that the agent may reach: registered regions, found again by address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from host_driver._placement_kernels import NOWHERE, SEVERAL, locate_blocks
from kvlane.errors import ConfigError
from kvlane.limits import MAX_REGIONS_PER_SESSION
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import MemoryRegion

REMOTE_ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
"""What an agent needs: it reads blocks on a store and writes them on a retrieve."""

TEMPORARY_REGIONS = 63
"""Regions of a session that are kept for blocks that must be registered for one call."""

CALLER_REGIONS = MAX_REGIONS_PER_SESSION - TEMPORARY_REGIONS - 1
"""Regions that a caller may have; the one that is left is the staging."""


@dataclass(slots=True, eq=False)
class Region:
    """Registered memory."""

    memory_region: MemoryRegion
    owner: Any
    """Keeps the memory alive until the region is closed."""
    announced: bool = False
    """True once the agent knows the region, so that commands may name it."""
    released: bool = False
    """True once it is on its way to being deregistered; no command may name it any more."""

    @property
    def addr(self) -> int:
        """Address of the first byte."""
        return self.memory_region.addr

    @property
    def length(self) -> int:
        """Bytes."""
        return self.memory_region.length

    @property
    def rkey(self) -> int:
        """Key for the agent."""
        return self.memory_region.rkey


class Located(NamedTuple):
    """Where blocks were found in a table."""

    rkeys: NDArray[np.int64]
    """Remote key for each block, -1 where no region holds all of it."""
    regions: tuple[Region, ...]
    """The regions that hold them, each once."""


class RegionTable:
    """Disjoint regions, ordered by address."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._starts = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        self._rkeys = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._regions)

    def require_free(self, addr: int, length: int) -> None:
        """``ConfigError`` when a region overlaps the range."""
        index = int(np.searchsorted(self._ends, addr, side="right"))
        if index < len(self._regions) and self._starts[index] < addr + length:
            taken = self._regions[index]
            raise ConfigError(
                f"0x{addr:x}+{length} overlaps 0x{taken.addr:x}+{taken.length}, which is "
                f"registered already; views of registered memory need no registration"
            )

    def add(self, region: Region) -> None:
        """Add a region; the errors of ``require_free``."""
        self.require_free(region.addr, region.length)
        self._replace([*self._regions, region])

    def remove(self, addr: int) -> Region:
        """Take out the region that starts at ``addr``; ``ConfigError`` when none does."""
        index = int(np.searchsorted(self._starts, addr))
        if index == len(self._regions) or self._starts[index] != addr:
            raise ConfigError(
                f"no registered memory starts at 0x{addr:x}; pass the array that alloc "
                f"returned or register was given"
            )
        region = self._regions[index]
        self._replace(self._regions[:index] + self._regions[index + 1 :])
        return region

    def locate(self, addrs: NDArray[np.int64], lengths: NDArray[np.int64]) -> Located:
        """The region around each of many ranges."""
        found = np.empty(len(addrs), np.int64)
        common = locate_blocks(self._starts, self._ends, addrs, lengths, found)
        if common == SEVERAL:
            used = np.unique(found[found >= 0])
            rkeys = np.where(found >= 0, self._rkeys[found], -1)
            return Located(rkeys, tuple(self._regions[i] for i in used))
        if common == NOWHERE:
            return Located(found, ())
        found.fill(self._rkeys.item(common))
        return Located(found, (self._regions[common],))

    def drain(self) -> list[Region]:
        """Take out all regions."""
        regions = self._regions
        self._replace([])
        return regions

    def _replace(self, regions: list[Region]) -> None:
        self._regions = sorted(regions, key=lambda region: region.addr)
        self._starts = np.array([region.addr for region in self._regions], np.int64)
        self._ends = np.array([r.addr + r.length for r in self._regions], np.int64)
        self._rkeys = np.array([region.rkey for region in self._regions], np.int64)
