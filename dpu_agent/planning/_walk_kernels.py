"""A trace through a hierarchy of tiers, with all counts at the end of each window of time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpu_agent.planning._hierarchy_kernels import learn_chain, serve
from dpu_agent.planning._orphan_kernels import count_orphans
from dpu_agent.planning._tier_state_kernels import COUNTS, TOTALS, hierarchy_at, totals_at
from dpu_agent.planning.accesses import Accesses
from kvlane.jit import kernel
from kvlane.rawmem import copy

_COUNTS_BYTES, _TOTALS_BYTES = COUNTS.itemsize, TOTALS.itemsize


class Windows(NamedTuple):
    """Windows of equal length over the time of a trace."""

    ns: int
    counts: NDArray[np.void]
    """Shape (windows, tiers), dtype COUNTS: since the start, at the end of each window."""
    totals: NDArray[np.void]
    """Shape (windows,), dtype TOTALS: the same."""
    with_orphans: bool
    """Whether to count orphans at each end, which takes a look at every block."""


@kernel
def _close(state: int, windows: Windows, window: int) -> None:
    hierarchy = hierarchy_at(state, 0)
    if windows.with_orphans:
        totals = totals_at(hierarchy.totals, 0)
        totals.present, totals.orphaned = count_orphans(state)
    row_bytes = hierarchy.tier_count * _COUNTS_BYTES
    copy(int(windows.counts.ctypes.data) + window * row_bytes, hierarchy.counts, row_bytes)
    copy(int(windows.totals.ctypes.data) + window * _TOTALS_BYTES, hierarchy.totals, _TOTALS_BYTES)


@kernel
def walk(state: int, accesses: Accesses, windows: Windows, served: NDArray[np.int32]) -> bool:
    """Serve all requests; False when a policy has failed.

    ``served`` has a row for each request, or one for all: blocks of its prefix by tier. A request
    that comes late belongs to the window that the ones before it have reached.
    """
    window, first = 0, 0
    for request in range(len(accesses.request_ends)):
        now = accesses.arrivals_ns[request]
        while window < len(windows.totals) - 1 and now >= (window + 1) * windows.ns:
            _close(state, windows, window)
            window += 1
        end = accesses.request_ends[request]
        chain = accesses.blocks[first:end]
        learn_chain(state, chain, request)
        if not serve(state, chain, served[request if len(served) > 1 else 0], now):
            return False
        first = end
    for left in range(window, len(windows.totals)):
        _close(state, windows, left)
    return True
