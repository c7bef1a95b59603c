"""Blocks by key, of the policy ``reuse``: an open-addressing table over records.

A record lives while anything refers to it: a slot, a row that its key leads to, a resident child,
or the hope that it will be stored. Hopes are bounded: the oldest is given up.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._list_kernels import append, oldest, unlink
from dpu_agent.cache.policy._reuse_layout_kernels import (
    AWAITED,
    BLOCK,
    IDLE,
    MAX_AWAITED,
    NONE,
    block_at,
    small_at,
    state_at,
)
from kvlane.atomics import prefetch
from kvlane.jit import kernel

_BLOCK_BYTES = int(BLOCK.itemsize)
NO_KEY = -(1 << 63)
"""Of a record that stands for no block."""


@kernel
def _home_of(key: int, bucket_count: int) -> int:
    """The bucket where the search for a key begins; its upper 31 bits are a hash."""
    return (((key >> 31) & 0x7FFFFFFF) * bucket_count) >> 31


@kernel
def _bucket_of(context: int, key: int) -> int:
    """The bucket that leads to a key's block, or the empty one where the search ends."""
    state = state_at(context, 0)
    count = np.int64(state.bucket_count)
    buckets = small_at(state.buckets, count)
    bucket = _home_of(key, count)
    while True:
        block = np.int64(buckets[bucket]) - 1
        if block < 0 or np.int64(block_at(state.blocks, block).key) == key:
            return int(bucket)
        bucket = bucket + 1 if bucket + 1 < count else 0


@kernel
def fetch_bucket(context: int, key: int) -> None:
    """A key will be looked up soon."""
    state = state_at(context, 0)
    prefetch(state.buckets + 4 * _home_of(key, np.int64(state.bucket_count)))


@kernel
def fetch_block(context: int, key: int) -> None:
    """A key will be looked up very soon, and its bucket is here."""
    state = state_at(context, 0)
    count = np.int64(state.bucket_count)
    block = np.int64(small_at(state.buckets, count)[_home_of(key, count)]) - 1
    if block >= 0:
        prefetch(state.blocks + _BLOCK_BYTES * block)


@kernel
def find_block(context: int, key: int) -> int:
    """The block of a key, or ``NONE``."""
    state = state_at(context, 0)
    return int(np.int64(small_at(state.buckets, state.bucket_count)[_bucket_of(context, key)]) - 1)


@kernel
def _close_gap(context: int, hole: int) -> None:
    """Empty a bucket, and shift back what could not be found beyond it."""
    state = state_at(context, 0)
    count = np.int64(state.bucket_count)
    buckets = small_at(state.buckets, count)
    bucket = hole
    while True:
        bucket = bucket + 1 if bucket + 1 < count else 0
        block = np.int64(buckets[bucket]) - 1
        if block < 0:
            break
        home = _home_of(np.int64(block_at(state.blocks, block).key), count)
        # An entry may fill the hole unless its home lies after the hole on its way.
        if (bucket - home) % count >= (bucket - hole) % count:
            buckets[hole] = block + 1
            hole = bucket
    buckets[hole] = 0


@kernel
def release(context: int, block: int) -> None:
    """Forget a block to which nothing refers any more."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    if record.slot >= 0 or record.awaited or record.children > 0:
        return
    if record.tip_of >= 0 or record.anchor_of >= 0:
        return
    _close_gap(context, _bucket_of(context, np.int64(record.key)))
    # Who remembers the record must not take it for the key's any more.
    record.key = NO_KEY
    append(state.block_links, state.block_count + IDLE, block)


@kernel
def stop_awaiting(context: int, block: int) -> None:
    """A block has come, or will not; the caller releases it."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    if record.awaited:
        record.awaited = 0
        unlink(state.block_links, block)
        state.awaited -= 1


@kernel
def _give_up_oldest(context: int) -> None:
    state = state_at(context, 0)
    block = oldest(state.block_links, state.block_count + AWAITED)
    stop_awaiting(context, block)
    release(context, block)


@kernel
def await_block(context: int, block: int) -> None:
    """Expect that a block will be stored: it becomes the newest of those."""
    state = state_at(context, 0)
    stop_awaiting(context, block)
    append(state.block_links, state.block_count + AWAITED, block)
    block_at(state.blocks, block).awaited = 1
    state.awaited += 1
    if state.awaited > MAX_AWAITED:
        _give_up_oldest(context)


@kernel
def block_of(context: int, key: int) -> int:
    """The block of a key, which is made if it is not known; the caller gives it a purpose."""
    state = state_at(context, 0)
    buckets = small_at(state.buckets, state.bucket_count)
    bucket = _bucket_of(context, key)
    known = np.int64(buckets[bucket]) - 1
    if known >= 0:
        return int(known)
    # The table has room for all that can be referred to, so there is an idle one.
    block = oldest(state.block_links, state.block_count + IDLE)
    unlink(state.block_links, block)
    buckets[bucket] = block + 1
    record = block_at(state.blocks, block)
    record.key = key
    record.asked = 0
    record.slot = NONE
    record.row = NONE
    record.tip_of = NONE
    record.anchor_of = NONE
    record.parent = NONE
    record.children = 0
    record.awaited = 0
    record.has_parent = 0
    return int(block)
