"""Tiers of blocks without payload: the calls that their policies get for a request.

A request finds its longest prefix that lies in any tier, has it brought into the hottest tier and
stores what is left there. What has to leave a tier goes to the next one, and so does what a tier's
policy refuses; what leaves the last is gone. Each tier has a policy of its own, and each is told of
whole requests.

With one tier the calls are those of ``_simulation_kernels``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy.base import NOT_INTERESTED, NOT_WORTH_A_SLOT
from dpu_agent.planning._tier_state_kernels import (
    NONE,
    block_at,
    counts_at,
    hierarchy_at,
    slots_of,
    small_at,
    tier_at,
    totals_at,
)
from kvlane.calls import call
from kvlane.jit import kernel
from kvlane.rawmem import words_at

_COVERED = -2
"""Instead of a tier: one of those asked has a copy already."""


@kernel
def _key_of(state: int, block: int) -> int:
    hierarchy = hierarchy_at(state, 0)
    return int(words_at(hierarchy.keys, hierarchy.block_count)[block])


@kernel
def _hottest(state: int, block: int) -> int:
    """The first tier that has a block, or ``NONE``."""
    hierarchy = hierarchy_at(state, 0)
    slots = slots_of(hierarchy.blocks, block)
    for tier in range(hierarchy.tier_count):
        if slots[tier] >= 0:
            return tier
    return NONE


@kernel
def _count_child(state: int, block: int, by: int) -> None:
    """One extension more or less of the block before this one lies somewhere."""
    blocks = hierarchy_at(state, 0).blocks
    parent = np.int64(block_at(blocks, block).parent)
    if parent >= 0:
        block_at(blocks, parent).children += by


@kernel
def _put(state: int, tier: int, block: int, slot: int, now: int) -> None:
    hierarchy = hierarchy_at(state, 0)
    row = tier_at(hierarchy.tiers, tier)
    slots_of(hierarchy.blocks, block)[tier] = slot
    small_at(row.block_in, row.capacity)[slot] = block
    call(row.inserted, row.context, slot, _key_of(state, block), now)
    record = block_at(hierarchy.blocks, block)
    record.copies += 1
    if record.copies == 1:
        _count_child(state, block, 1)


@kernel
def _take(state: int, tier: int, block: int, evicted: int) -> int:
    """Take a block out of a tier; its slot, of which the caller makes something."""
    hierarchy = hierarchy_at(state, 0)
    row = tier_at(hierarchy.tiers, tier)
    slots = slots_of(hierarchy.blocks, block)
    slot = np.int64(slots[tier])
    call(row.removed, row.context, slot, evicted, 0)
    slots[tier] = NONE
    record = block_at(hierarchy.blocks, block)
    record.copies -= 1
    if record.copies == 0:
        _count_child(state, block, -1)
    return int(slot)


@kernel
def _home_of(state: int, block: int, first: int, end: int) -> int:
    """The hottest of some tiers that takes a block in, ``NONE``, or ``_COVERED``."""
    hierarchy = hierarchy_at(state, 0)
    slots = slots_of(hierarchy.blocks, block)
    for tier in range(first, end):
        if slots[tier] >= 0:
            return _COVERED
        row = tier_at(hierarchy.tiers, tier)
        if call(row.missed, row.context, _key_of(state, block), 0, 0) != NOT_WORTH_A_SLOT:
            return tier
        counts_at(hierarchy.counts, tier).passed_by += 1
    return NONE


@kernel
def _lose(state: int, block: int) -> None:
    """Count a block that has left a tier and found no other, if it is gone by that."""
    hierarchy = hierarchy_at(state, 0)
    record = block_at(hierarchy.blocks, block)
    if record.copies != 0:
        return
    totals = totals_at(hierarchy.totals, 0)
    totals.dropped += 1
    totals.unread += 1 if record.is_read == 0 else 0
    totals.orphaning += 1 if record.children > 0 else 0
    record.is_read = 0


@kernel
def _room_in(state: int, tier: int) -> tuple[int, int]:
    """A slot to write into and the block that left it, or ``NONE`` for the one that there was not;
    no slot when the policy chose none although nothing is pinned."""
    row = tier_at(hierarchy_at(state, 0).tiers, tier)
    if row.free > 0:
        row.free -= 1
        return int(np.int64(small_at(row.free_slots, row.capacity)[row.free])), NONE
    slot = call(row.victim, row.context, row.slot_table, 0, 0)
    if not 0 <= slot < row.capacity:
        return NONE, NONE
    evicted = np.int64(small_at(row.block_in, row.capacity)[slot])
    _take(state, tier, evicted, 1)
    return int(slot), int(evicted)


@kernel
def _take_in(state: int, home: int, arriving: int, now: int) -> bool:
    """Put a block into a tier, and each that must leave for it into a colder one; False when a
    policy has failed."""
    hierarchy = hierarchy_at(state, 0)
    tier, block = home, arriving
    while True:
        slot, evicted = _room_in(state, tier)
        if slot < 0:
            return False
        _put(state, tier, block, slot, now)
        if evicted < 0:
            return True
        tier = _home_of(state, evicted, tier + 1, hierarchy.tier_count)
        if tier < 0:
            _lose(state, evicted)
            return True
        counts_at(hierarchy.counts, tier).demoted += 1
        block = evicted


@kernel
def _touch(state: int, tier: int, block: int, now: int) -> None:
    hierarchy = hierarchy_at(state, 0)
    row = tier_at(hierarchy.tiers, tier)
    call(row.touched, row.context, np.int64(slots_of(hierarchy.blocks, block)[tier]), now, 0)


@kernel
def _give_up(state: int, tier: int, block: int) -> None:
    """Free the slot of a block that is about to be in a hotter tier."""
    slot = _take(state, tier, block, 0)
    row = tier_at(hierarchy_at(state, 0).tiers, tier)
    small_at(row.free_slots, row.capacity)[row.free] = slot
    row.free += 1


@kernel
def _bring(state: int, block: int, found: int, is_read: bool, now: int) -> bool:
    """Have a block, which lies in a tier or not, in the hottest one that takes it: read from there
    or else written by the host. False when a policy has failed."""
    hierarchy = hierarchy_at(state, 0)
    end = found if found >= 0 else hierarchy.tier_count
    home = _home_of(state, block, 0, end)
    if found >= 0:
        if home >= 0 and tier_at(hierarchy.tiers, found).keeps_copies == 0:
            _give_up(state, found, block)
        else:
            _touch(state, found, block, now)
    if home < 0:
        totals_at(hierarchy.totals, 0).refused += 1 if found < 0 else 0
        return True
    if is_read:
        counts_at(hierarchy.counts, found).promoted += 1
    else:
        counts_at(hierarchy.counts, home).stored += 1
    return bool(_take_in(state, home, block, now))


@kernel
def learn_chain(state: int, chain: NDArray[np.int64], request: int) -> None:
    """Note which block is before which."""
    blocks = hierarchy_at(state, 0).blocks
    before = NONE
    for block in chain:
        record = block_at(blocks, block)
        # A name that a request has twice would else lead back to itself.
        if record.asked_in != request:
            record.asked_in = request
            if record.parent != before:
                if record.copies > 0:
                    _count_child(state, block, -1)
                record.parent = before
                if record.copies > 0:
                    _count_child(state, block, 1)
        before = block


@kernel
def _announce(state: int, chain: NDArray[np.int64], now: int) -> int:
    """Tell the policies that want to know of it of a request; how many blocks that has."""
    hierarchy = hierarchy_at(state, 0)
    keys = words_at(hierarchy.keys, hierarchy.block_count)[chain]
    for tier in range(hierarchy.tier_count):
        row = tier_at(hierarchy.tiers, tier)
        if row.asked != NOT_INTERESTED:
            call(row.asked, row.context, int(keys.ctypes.data), len(keys), now)
    # Used after the calls, so that they live as long.
    return len(keys)


@kernel
def _match(state: int, chain: NDArray[np.int64], served: NDArray[np.int32]) -> int:
    """How many blocks lie in some tier, from the first on; counts them for their tiers."""
    hierarchy = hierarchy_at(state, 0)
    for place in range(len(chain)):
        tier = _hottest(state, chain[place])
        if tier < 0:
            return place
        served[tier] += 1
        counts_at(hierarchy.counts, tier).hits += 1
        block_at(hierarchy.blocks, chain[place]).is_read = 1
    return len(chain)


@kernel
def serve(state: int, chain: NDArray[np.int64], served: NDArray[np.int32], now: int) -> bool:
    """One request; adds to ``served`` how many blocks of its prefix each tier had. False when a
    policy has failed."""
    _announce(state, chain, now)
    matched = _match(state, chain, served)
    totals = totals_at(hierarchy_at(state, 0).totals, 0)
    totals.asked += len(chain)
    for place in range(len(chain)):
        block = chain[place]
        tier = _hottest(state, block)
        if place >= matched and tier >= 0:
            # It lies there, but what is before it must be computed, and so must it.
            totals.stranded += 1
        if tier == 0:
            _touch(state, 0, block, now)
            continue
        # What others pushed out since it was matched has been sent, and is stored again.
        is_read = place < matched and tier > 0
        if not _bring(state, block, tier, is_read, now):
            return False
    return True
