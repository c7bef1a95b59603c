"""The policy ``reuse`` as the store calls it: what a block's coming and going means to its row."""

from __future__ import annotations

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy._list_kernels import newer_than, oldest
from dpu_agent.cache.policy._reuse_block_kernels import find_block, release, stop_awaiting
from dpu_agent.cache.policy._reuse_layout_kernels import (
    MAX_CHAIN,
    NONE,
    block_at,
    row_at,
    small_at,
    state_at,
)
from dpu_agent.cache.policy._reuse_rank_kernels import (
    consider,
    head_at,
    index_of,
    least,
    next_rank,
)
from dpu_agent.cache.policy._reuse_request_kernels import ask
from dpu_agent.cache.policy._reuse_row_kernels import attach, detach
from dpu_agent.cache.policy.base import NO_VICTIM, NOT_WORTH_A_SLOT, PolicyFunctions
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import words_at


@kernel
def _find_next(context: int, key: int) -> int:
    """As ``find_block``, for a key that is most likely the next of the request's chain or the one
    of the last call: those are found without a search."""
    state = state_at(context, 0)
    latest = np.int64(state.latest)
    if latest >= 0 and block_at(state.blocks, latest).key == key:
        return int(latest)
    cursor = np.int64(state.cursor)
    block = NONE
    if cursor < state.chain_count:
        block = np.int64(small_at(state.chain, MAX_CHAIN)[cursor])
        state.cursor = cursor + 1
    if block < 0 or block_at(state.blocks, block).key != key:
        block = find_block(context, key)
    state.before = latest
    state.latest = block
    return int(block)


@kernel
def _ask_for_one(context: int, key: int, now_ns: int) -> None:
    """Take a block for a request of its own."""
    single = state_at(context, 0).single
    words_at(single, 1)[0] = key
    ask(context, single, 1, now_ns)


@kernel
def _awaited_block(context: int, key: int, now_ns: int) -> int:
    """The block of a key and the row that it will be in: where no request has named it, its own."""
    state = state_at(context, 0)
    block = _find_next(context, key)
    if block >= 0:
        record = block_at(state.blocks, block)
        if record.awaited:
            row = row_at(state.rows, np.int64(record.row))
            # The row may be another by now: those that wait too long for blocks are used again.
            if row.request == record.asked and not row.is_free:
                return block
    _ask_for_one(context, key, now_ns)
    return _find_next(context, key)


@kernel
def _parent_of(context: int, block: int) -> int:
    """The block before one in its chain, where it is known, or ``NONE``."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    if not record.has_parent:
        return NONE
    before = np.int64(state.before)
    if before >= 0 and block_at(state.blocks, before).key == record.parent_key:
        return int(before)
    return find_block(context, np.int64(record.parent_key))


@kernel
def _consider_row_of(context: int, block: int) -> None:
    record = block_at(state_at(context, 0).blocks, block)
    if record.slot >= 0:
        consider(context, np.int64(record.row))


@kernel
def _adopt(context: int, block: int) -> None:
    """Tie a block that has come to the one before it, which must not go first."""
    state = state_at(context, 0)
    parent = _parent_of(context, block)
    block_at(state.blocks, block).parent = parent
    if parent >= 0:
        block_at(state.blocks, parent).children += 1
        _consider_row_of(context, parent)


@kernel
def _orphan(context: int, block: int) -> None:
    """Untie a block that has gone."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    parent = np.int64(record.parent)
    record.parent = NONE
    if parent >= 0:
        block_at(state.blocks, parent).children -= 1
        _consider_row_of(context, parent)
        release(context, parent)


def _asked(context: int, keys: int, count: int, now_ns: int) -> int:
    ask(context, keys, count, now_ns)
    return 0


def _inserted(context: int, slot: int, key: int, now_ns: int) -> int:
    state = state_at(context, 0)
    block = _find_next(context, key)
    if block >= 0 and block_at(state.blocks, block).slot >= 0:
        # Two keys look alike to the policy. Keys are not negative, so this one is nobody else's.
        key = -1 - slot
    block = _awaited_block(context, key, now_ns)
    stop_awaiting(context, block)
    record = block_at(state.blocks, block)
    record.slot = slot
    record.unread = 0
    small_at(state.block_in, state.capacity)[slot] = block
    state.resident += 1
    attach(context, block, np.int64(record.row))
    _adopt(context, block)
    return 0


def _touched(context: int, slot: int, now_ns: int, _third: int) -> int:
    state = state_at(context, 0)
    block = np.int64(small_at(state.block_in, state.capacity)[slot])
    record = block_at(state.blocks, block)
    if record.unread:
        record.unread = 0
        state.cursor += 1
        state.latest = block
    else:
        _ask_for_one(context, np.int64(record.key), now_ns)
        record.unread = 0
    return 0


def _removed(context: int, slot: int, _evicted: int, _third: int) -> int:
    state = state_at(context, 0)
    blocks = small_at(state.block_in, state.capacity)
    block = np.int64(blocks[slot])
    blocks[slot] = NONE
    state.resident -= 1
    detach(context, block)
    block_at(state.blocks, block).slot = NONE
    _orphan(context, block)
    release(context, block)
    return 0


def _missed(context: int, key: int, _second: int, _third: int) -> int:
    state = state_at(context, 0)
    state.missed += 1
    block = _awaited_block(context, key, 0)
    if state.resident < state.capacity:
        return 0
    record = block_at(state.blocks, block)
    row = np.int64(record.row)
    parent = _parent_of(context, block)
    refused = False
    if parent >= 0:
        before = block_at(state.blocks, parent)
        # Without the block before it, it could never be part of a prefix.
        refused = bool(before.refused and before.asked == record.asked)
    if not refused:
        worst = least(context)
        # Nor is one block of a request worth another of the same.
        refused = worst >= 0 and (
            row_at(state.rows, worst).request == record.asked
            or index_of(context, worst) >= index_of(context, row)
        )
    record.refused = 1 if refused else 0
    return NOT_WORTH_A_SLOT if refused else 0


@kernel
def _any_unpinned(context: int, slot_table: int) -> int:
    """The next slot in turn that is not pinned: when all candidates are, a prefix must go."""
    state = state_at(context, 0)
    blocks = small_at(state.block_in, state.capacity)
    slot = np.int64(state.hand)
    for _ in range(state.capacity):
        slot = slot + 1 if slot + 1 < state.capacity else 0
        if blocks[slot] >= 0 and not is_pinned_at(slot_table, slot):
            state.hand = slot
            return int(slot)
    return NO_VICTIM


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    state = state_at(context, 0)
    rank = next_rank(context, 0)
    while rank != NONE:
        head = head_at(context, rank)
        row = oldest(state.candidate_links, head)
        while row != head:
            top = np.int64(row_at(state.rows, row).top)
            slot = np.int64(block_at(state.blocks, top).slot)
            if not is_pinned_at(slot_table, slot):
                return int(slot)
            row = newer_than(state.candidate_links, row)
        rank = next_rank(context, rank + 1)
    return _any_unpinned(context, slot_table)


FUNCTIONS = PolicyFunctions(
    inserted=exported(_inserted),
    touched=exported(_touched),
    removed=exported(_removed),
    missed=exported(_missed),
    victim=exported(_victim),
    asked=exported(_asked),
)
