"""Ghosts: what is remembered of evicted keys, in memory that is laid out once.

A ghost is a row with a key and a value, in one of a few lists that are ordered by age, and in the
chain of rows of its bucket. What a write under way has asked for is *claimed*: it counts in no
list any more and waits for ``take``. Writes that are given up leave claims behind; the oldest
claims make room when no row is free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy._list_kernels import append, new_links, newest, oldest, unlink
from kvlane.errors import ConfigError
from kvlane.jit import kernel
from kvlane.rawmem import array_accessor, record_accessor, words_at

FIRST, SECOND, _CLAIMED, _FREE = 0, 1, 2, 3
_LISTS = 4
ABSENT = -1

_GHOSTS = np.dtype(
    [
        ("rows", "i8"),
        ("row_count", "i8"),
        ("buckets", "i8"),
        ("bucket_count", "i8"),
        ("links", "i8"),
        ("counts", "i8"),
    ]
)
_ROW = np.dtype([("key", "i8"), ("value", "i8"), ("list", "i4"), ("next", "i4")])
_CHAIN = np.dtype(np.int32)
"""The first row of a bucket's chain, as ``next`` is what follows a row: row + 1, 0 at the end."""
_ghosts_at = record_accessor(_GHOSTS)
_row_at = record_accessor(_ROW)
_chains_at = array_accessor(_CHAIN)
_MAX_ROWS = (1 << 31) - 1


class GhostMemory:
    """Room for ``kept`` ghosts, and for claims of as many writes as there are slots."""

    def __init__(self, kept: int, capacity_blocks: int) -> None:
        # One more: a policy may remember before it forgets.
        count = self.row_count = kept + capacity_blocks + 1
        if count + _LISTS > _MAX_ROWS:
            raise ConfigError(
                f"a policy can remember {_MAX_ROWS} blocks and not {count}; give it fewer slots"
            )
        self._rows = np.zeros(count, _ROW)
        self._buckets = np.zeros(2 * count, _CHAIN)
        self._links = new_links(count, _LISTS)
        self._counts = np.zeros(_LISTS, np.int64)
        self._state: NDArray[np.void] = np.zeros(1, _GHOSTS)
        self._state[0] = (
            self._rows.ctypes.data,
            count,
            self._buckets.ctypes.data,
            len(self._buckets),
            self._links.ctypes.data,
            self._counts.ctypes.data,
        )
        self.address = int(self._state.ctypes.data)
        _free_all(self.address)


@kernel
def _free_all(ghosts: int) -> None:
    state = _ghosts_at(ghosts, 0)
    for row in range(state.row_count):
        append(state.links, state.row_count + _FREE, row)


@kernel
def _bucket_of(ghosts: int, key: int) -> int:
    """By the upper 31 bits of the key, which are a hash."""
    return int(((key >> 31) * _ghosts_at(ghosts, 0).bucket_count) >> 31)


@kernel
def row_of(ghosts: int, key: int) -> int:
    """The row of a key's ghost, or ``ABSENT``."""
    state = _ghosts_at(ghosts, 0)
    chains = _chains_at(state.buckets, state.bucket_count)
    row = np.int64(chains[_bucket_of(ghosts, key)]) - 1
    while row >= 0 and _row_at(state.rows, row).key != key:
        row = np.int64(_row_at(state.rows, row).next) - 1
    return int(row)


@kernel
def _chain(ghosts: int, row: int, key: int) -> None:
    """Give a row a key that no other has."""
    state = _ghosts_at(ghosts, 0)
    chains = _chains_at(state.buckets, state.bucket_count)
    bucket = _bucket_of(ghosts, key)
    record = _row_at(state.rows, row)
    record.key = key
    record.next = chains[bucket]
    chains[bucket] = row + 1


@kernel
def _unchain(ghosts: int, row: int) -> None:
    """No key leads to a row any more."""
    state = _ghosts_at(ghosts, 0)
    chains = _chains_at(state.buckets, state.bucket_count)
    record = _row_at(state.rows, row)
    bucket = _bucket_of(ghosts, np.int64(record.key))
    before = np.int64(chains[bucket]) - 1
    if before == row:
        chains[bucket] = record.next
        return
    while _row_at(state.rows, before).next != row + 1:
        before = np.int64(_row_at(state.rows, before).next) - 1
    _row_at(state.rows, before).next = record.next


@kernel
def _move(ghosts: int, row: int, target: int) -> None:
    """Make a row the newest of another list."""
    state = _ghosts_at(ghosts, 0)
    counts = words_at(state.counts, _LISTS)
    record = _row_at(state.rows, row)
    counts[record.list] -= 1
    counts[target] += 1
    record.list = target
    unlink(state.links, row)
    append(state.links, state.row_count + target, row)


@kernel
def _forget(ghosts: int, row: int) -> None:
    _unchain(ghosts, row)
    _move(ghosts, row, _FREE)


@kernel
def count_in(ghosts: int, which: int) -> int:
    """Ghosts in a list."""
    return int(words_at(_ghosts_at(ghosts, 0).counts, _LISTS)[which])


@kernel
def forget_oldest(ghosts: int, which: int) -> None:
    """Drop the oldest ghost of a list, if there is one."""
    state = _ghosts_at(ghosts, 0)
    head = np.int64(state.row_count) + which
    row = oldest(state.links, head)
    if row != head:
        _forget(ghosts, row)


@kernel
def remember(ghosts: int, which: int, key: int, value: int) -> int:
    """Make a key the newest ghost of a list, which may not outgrow what the memory was made for;
    the ghost's row."""
    state = _ghosts_at(ghosts, 0)
    row = row_of(ghosts, key)
    if row == ABSENT:
        free = np.int64(state.row_count) + _FREE
        if newest(state.links, free) == free:
            forget_oldest(ghosts, _CLAIMED)
        row = newest(state.links, free)  # freed last, so it is still in the processor's cache
        _row_at(state.rows, row).list = _FREE
        _chain(ghosts, row, key)
    _row_at(state.rows, row).value = value
    _move(ghosts, row, which)
    return row


@kernel
def claim(ghosts: int, key: int) -> int:
    """The list of a key's ghost, which leaves it for a write under way; ``ABSENT`` if there is
    none, or a write has claimed it already."""
    row = row_of(ghosts, key)
    if row == ABSENT:
        return ABSENT
    which = int(_row_at(_ghosts_at(ghosts, 0).rows, row).list)
    if which == _CLAIMED:
        return ABSENT
    _move(ghosts, row, _CLAIMED)
    return which


@kernel
def take(ghosts: int, key: int) -> int:
    """The value of a key's ghost, which is forgotten; ``ABSENT`` if there is none."""
    row = row_of(ghosts, key)
    if row == ABSENT:
        return ABSENT
    value = int(_row_at(_ghosts_at(ghosts, 0).rows, row).value)
    _forget(ghosts, row)
    return value
