"""A cache without payload: the calls that a store makes to its policy, over a whole trace.

Every missed block is taken in that the policy does not refuse. A hit counts towards the prefix
while no block of the request before it was missed.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy.base import NOT_INTERESTED, NOT_WORTH_A_SLOT, PolicyCalls
from dpu_agent.planning.accesses import Accesses
from kvlane.calls import call
from kvlane.jit import kernel

FAULT = -1
"""Hits of a policy that found no block to evict although none is pinned."""


@kernel
def _announce(policy: PolicyCalls, accesses: Accesses, first: int, request: int, now: int) -> int:
    """Tell a policy that wants to know of it of a request's chain; how many blocks that has."""
    if policy.asked == NOT_INTERESTED:
        return 0
    chain = accesses.keys[accesses.blocks[first : accesses.request_ends[request]]]
    call(policy.asked, policy.context, int(chain.ctypes.data), len(chain), now)
    # Used after the call, so that it lives as long.
    return len(chain)


@kernel
def simulate(
    policy: PolicyCalls, accesses: Accesses, capacity: int, slot_table: int
) -> tuple[int, int]:
    """Hits, and hits in unbroken prefixes, of a cache of that many slots."""
    slot_of = np.full(len(accesses.keys), -1, np.int32)
    block_in = np.empty(capacity, np.int32)
    used, hits, prefix_hits, first = 0, 0, 0, 0
    for request in range(len(accesses.request_ends)):
        now = accesses.arrivals_ns[request]
        unbroken = True
        _announce(policy, accesses, first, request, now)
        for position in range(first, accesses.request_ends[request]):
            block = accesses.blocks[position]
            slot = np.int64(slot_of[block])
            if slot >= 0:
                hits += 1
                prefix_hits += 1 if unbroken else 0
                call(policy.touched, policy.context, slot, now, 0)
                continue
            unbroken = False
            key = accesses.keys[block]
            if call(policy.missed, policy.context, key, 0, 0) == NOT_WORTH_A_SLOT:
                continue
            if used < capacity:
                slot = used
                used += 1
            else:
                slot = call(policy.victim, policy.context, slot_table, 0, 0)
                if not 0 <= slot < capacity:
                    return FAULT, FAULT
                call(policy.removed, policy.context, slot, 1, 0)
                slot_of[block_in[slot]] = -1
            slot_of[block] = slot
            block_in[slot] = block
            call(policy.inserted, policy.context, slot, key, now)
        first = accesses.request_ends[request]
    return hits, prefix_hits
