"""The host memory that a session's commands may name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dpu_agent.control.core import RemoteRegion
from dpu_agent.data._region_kernels import is_inside
from kvlane.errors import CapacityError, SessionError
from kvlane.limits import MAX_REGIONS_PER_SESSION

_ADDRESS_SPACE = 1 << 64


class RegionTable:
    """Regions by rkey.

    The NIC of the host would refuse a bad range as well, but by breaking the connection;
    checked here, it costs one key its status and nothing else.
    """

    def __init__(self, connection: Any) -> None:
        """``connection`` is the CONNECTION record that kernels look the regions up in."""
        self._regions: dict[int, RemoteRegion] = {}
        self._connection = connection
        self._columns = np.zeros((3, MAX_REGIONS_PER_SESSION), np.int64)
        for row, column in enumerate(("rkeys", "starts", "sizes")):
            connection[f"region_{column}"] = self._columns[row].ctypes.data
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

    def contains(self, addr: int, length: int, rkey: int) -> bool:
        """Whether a range lies in the region of its rkey, as commands are judged."""
        return bool(is_inside(self._connection, addr, length, rkey))

    def _index(self) -> None:
        ordered = sorted(self._regions.values(), key=lambda region: region.rkey)
        count = len(ordered)
        self._columns[0, :count] = [region.rkey for region in ordered]
        # Addresses and lengths of 64 bits, as the signed words of the same bits.
        unsigned = self._columns.view(np.uint64)
        unsigned[1, :count] = [region.addr for region in ordered]
        unsigned[2, :count] = [region.length for region in ordered]
        self._connection.region_count = count
