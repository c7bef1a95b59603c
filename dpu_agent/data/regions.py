"""The host memory that a session's commands may name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpu_agent.control.core import RemoteRegion
from kvlane.errors import CapacityError, SessionError
from kvlane.limits import MAX_REGIONS_PER_SESSION

_ADDRESS_SPACE = 1 << 64


class RegionTable:
    """Regions by rkey, with a check of whole batches of ranges.

    The NIC of the host would refuse a bad range as well, but by breaking the connection;
    checked here, it costs one key its status and nothing else.
    """

    def __init__(self) -> None:
        self._regions: dict[int, RemoteRegion] = {}
        self._index()

    def add(self, regions: Sequence[RemoteRegion]) -> None:
        """Add all of the regions or none; one that is there already, exactly so, stays.

        That is a registration whose answer was lost and which is sent again. ``SessionError``
        for a range beyond the address space, for an rkey that is there with another range or
        twice in ``regions``; ``CapacityError`` for more than ``MAX_REGIONS_PER_SESSION``.
        """
        added: dict[int, RemoteRegion] = {}
        for region in regions:
            if not 0 < region.length <= _ADDRESS_SPACE - region.addr:
                raise SessionError(
                    f"region 0x{region.addr:x} of {region.length} bytes lies outside the "
                    f"address space; register a range that exists"
                )
            if region.rkey in added or self._regions.get(region.rkey, region) != region:
                raise SessionError(
                    f"rkey 0x{region.rkey:x} is registered already; deregister it first"
                )
            added[region.rkey] = region
        if len(self._regions.keys() | added.keys()) > MAX_REGIONS_PER_SESSION:
            raise CapacityError(
                f"more than {MAX_REGIONS_PER_SESSION} regions in one session; register fewer, "
                f"larger ones"
            )
        self._regions.update(added)
        self._index()

    def remove(self, rkeys: Iterable[int]) -> None:
        """Remove all of the regions or, with ``SessionError`` for an unknown rkey, none."""
        listed = set(rkeys)
        for rkey in listed:
            if rkey not in self._regions:
                raise SessionError(f"rkey 0x{rkey:x} is not registered in this session")
        for rkey in listed:
            del self._regions[rkey]
        self._index()

    def contains(
        self,
        addrs: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        rkeys: NDArray[np.integer[Any]],
    ) -> NDArray[np.bool_]:
        """Per range (addr, length), whether it lies in the region of its rkey.

        No sum of address and length is formed, so none can wrap around.
        """
        if not len(self._rkeys):
            return np.zeros(len(addrs), np.bool_)
        starts_at, wanted, keys = (a.astype(np.uint64) for a in (addrs, lengths, rkeys))
        index = np.minimum(np.searchsorted(self._rkeys, keys), len(self._rkeys) - 1)
        starts, sizes = self._starts[index], self._sizes[index]
        inside = (self._rkeys[index] == keys) & (starts_at >= starts) & (wanted <= sizes)
        # Where ``inside`` is still true, neither difference is negative.
        verdict: NDArray[np.bool_] = inside & (starts_at - starts <= sizes - wanted)
        return verdict

    def _index(self) -> None:
        ordered = sorted(self._regions.values(), key=lambda region: region.rkey)
        self._rkeys = np.array([region.rkey for region in ordered], np.uint64)
        self._starts = np.array([region.addr for region in ordered], np.uint64)
        self._sizes = np.array([region.length for region in ordered], np.uint64)
