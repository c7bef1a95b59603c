"""Belady's optimum: the block whose next use lies farthest ahead goes first."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from dpu_agent.planning.accesses import Accesses
from kvlane.jit import kernel


@kernel
def _next_uses(accesses: Accesses) -> NDArray[np.int64]:
    """For each access the position of the next one to its block, beyond the end if there is none:
    then the number of accesses plus the position of this one, which no other access has."""
    count = len(accesses.blocks)
    next_uses = np.empty(count, np.int64)
    upcoming = np.full(len(accesses.keys), -1, np.int64)
    for position in range(count - 1, -1, -1):
        block = accesses.blocks[position]
        following = upcoming[block]
        next_uses[position] = following if following >= 0 else count + position
        upcoming[block] = position
    return next_uses


@kernel
def simulate_belady(accesses: Accesses, capacity: int) -> tuple[int, int]:
    """Hits, and hits in unbroken prefixes, when the future is known."""
    count = len(accesses.blocks)
    next_uses = _next_uses(accesses)
    is_cached = np.zeros(len(accesses.keys), np.bool_)
    # Negative, so that the farthest comes first. What was used meanwhile leaves a stale position,
    # which is past and so is never the farthest.
    farthest = [-next_uses[0] for _ in range(0)]
    used, hits, prefix_hits, first = 0, 0, 0, 0
    for end in accesses.request_ends:
        unbroken = True
        for position in range(first, end):
            block = accesses.blocks[position]
            if is_cached[block]:
                hits += 1
                prefix_hits += 1 if unbroken else 0
            else:
                unbroken = False
                if used == capacity:
                    is_cached[accesses.blocks[-heapq.heappop(farthest) % count]] = False
                else:
                    used += 1
                is_cached[block] = True
            heapq.heappush(farthest, -next_uses[position])
        first = end
    return hits, prefix_hits
