"""Rows that may give up a block, of the policy ``reuse``, and which of them is worth least.

One list for each index that a row can have, and a bitmap of those with rows in it, in the order of
the indices: the least is found by looking at a few words. A row is a candidate while its top block
has no resident child: a prefix never goes before what extends it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.cache.policy._list_kernels import append, oldest, unlink
from dpu_agent.cache.policy._reuse_index_kernels import list_of
from dpu_agent.cache.policy._reuse_layout_kernels import (
    LISTS,
    NONE,
    block_at,
    reals_at,
    row_at,
    small_at,
    state_at,
)
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor, words_at

_WORD_BITS = 32
_DIGIT_BITS = 12
_DIGITS = 1 << _DIGIT_BITS
_UNTOLD_BITS = 64 - 2 * _DIGIT_BITS
"""Of a double; those before are the exponent and 12 of the fraction, which is 1 part in 4096."""
_WORDS = LISTS // _WORD_BITS + 1
_GROUPS = _WORDS // _WORD_BITS + 1
BITMAP_WORDS = _WORDS + _GROUPS

RANKED = np.dtype([("bitmap", "i8"), ("rank_of", "i8"), ("list_at", "i8")])
"""``bitmap`` has a bit for each list by rank, then one for each word of it that is not 0."""
_ranked_at = record_accessor(RANKED)


@kernel
def _lowest_bit(word: int) -> int:
    """The place of the lowest bit of a word that is not 0."""
    place = 0
    if word & 0xFFFF == 0:
        word >>= 16
        place += 16
    if word & 0xFF == 0:
        word >>= 8
        place += 8
    if word & 0xF == 0:
        word >>= 4
        place += 4
    if word & 0x3 == 0:
        word >>= 2
        place += 2
    return place if word & 1 else place + 1


@kernel
def _mark(ranked: int, rank: int) -> None:
    bitmap = words_at(_ranked_at(ranked, 0).bitmap, BITMAP_WORDS)
    word = rank // _WORD_BITS
    bitmap[word] |= 1 << (rank % _WORD_BITS)
    bitmap[_WORDS + word // _WORD_BITS] |= 1 << (word % _WORD_BITS)


@kernel
def _clear(ranked: int, rank: int) -> None:
    bitmap = words_at(_ranked_at(ranked, 0).bitmap, BITMAP_WORDS)
    word = rank // _WORD_BITS
    bitmap[word] &= ~(1 << (rank % _WORD_BITS))
    if bitmap[word] == 0:
        bitmap[_WORDS + word // _WORD_BITS] &= ~(1 << (word % _WORD_BITS))


@kernel
def next_rank(context: int, rank: int) -> int:
    """The lowest rank from this one on whose list has a row, or ``NONE``."""
    bitmap = words_at(_ranked_at(state_at(context, 0).ranked, 0).bitmap, BITMAP_WORDS)
    word = rank // _WORD_BITS
    if word < _WORDS:
        rest = bitmap[word] >> (rank % _WORD_BITS)
        if rest != 0:
            return int(rank + _lowest_bit(rest))
        word += 1
    group = word // _WORD_BITS
    if group >= _GROUPS:
        return NONE
    rest = (bitmap[_WORDS + group] >> (word % _WORD_BITS)) << (word % _WORD_BITS)
    while rest == 0:
        group += 1
        if group == _GROUPS:
            return NONE
        rest = bitmap[_WORDS + group]
    word = group * _WORD_BITS + _lowest_bit(rest)
    return int(word * _WORD_BITS + _lowest_bit(bitmap[word]))


@kernel
def head_at(context: int, rank: int) -> int:
    """The head of the list of a rank, in the candidates' links."""
    state = state_at(context, 0)
    lists = small_at(_ranked_at(state.ranked, 0).list_at, LISTS)
    return int(np.int64(state.row_count) + np.int64(lists[rank]))


@kernel
def least(context: int) -> int:
    """A row of the least index, or ``NONE``."""
    rank = next_rank(context, 0)
    if rank == NONE:
        return NONE
    return oldest(state_at(context, 0).candidate_links, head_at(context, rank))


@kernel
def _list_of_row(context: int, row: int) -> int:
    record = row_at(state_at(context, 0).rows, row)
    return int(list_of(np.int64(record.stratum), np.int64(record.level), np.int64(record.bin)))


@kernel
def index_of(context: int, row: int) -> float:
    """What keeping a block of a row is worth now."""
    indices = reals_at(state_at(context, 0).indices, LISTS)
    return float(indices[_list_of_row(context, row)])


@kernel
def strike(context: int, row: int) -> None:
    """A row is no candidate, or is about to change its index."""
    state = state_at(context, 0)
    record = row_at(state.rows, row)
    if not record.is_candidate:
        return
    record.is_candidate = 0
    unlink(state.candidate_links, row)
    number = _list_of_row(context, row)
    head = np.int64(state.row_count) + number
    if oldest(state.candidate_links, head) == head:
        _clear(state.ranked, np.int64(small_at(_ranked_at(state.ranked, 0).rank_of, LISTS)[number]))


@kernel
def consider(context: int, row: int) -> None:
    """Make a row a candidate or not, as its top block demands."""
    state = state_at(context, 0)
    record = row_at(state.rows, row)
    if record.top < 0 or np.int64(block_at(state.blocks, np.int64(record.top)).children) > 0:
        strike(context, row)
    elif not record.is_candidate:
        record.is_candidate = 1
        number = _list_of_row(context, row)
        append(state.candidate_links, np.int64(state.row_count) + number, row)
        _mark(state.ranked, np.int64(small_at(_ranked_at(state.ranked, 0).rank_of, LISTS)[number]))


@kernel
def _sort_by(words: Any, shift: int, source: Any, target: Any) -> None:
    """Order numbers by some bits of their words, and otherwise as they were."""
    places = np.zeros(_DIGITS + 1, np.int64)
    for i in range(len(source)):
        places[((words[source[i]] >> shift) & (_DIGITS - 1)) + 1] += 1
    for digit in range(_DIGITS):
        places[digit + 1] += places[digit]
    for i in range(len(source)):
        digit = (words[source[i]] >> shift) & (_DIGITS - 1)
        target[places[digit]] = source[i]
        places[digit] += 1


@kernel
def _sort(indices: Any, order: Any) -> None:
    """Put the lists in the order of their indices, as exactly as their leading bits tell: numbers
    of 0 and more are ordered as their representations are."""
    words = indices.view(np.int64)
    between = np.empty(LISTS, np.int32)
    for number in range(LISTS):
        order[number] = number
    _sort_by(words, _UNTOLD_BITS, order, between)
    _sort_by(words, _UNTOLD_BITS + _DIGIT_BITS, between, order)


@kernel
def rank_lists(context: int) -> None:
    """Put the lists in the order of their indices, which have changed."""
    state = state_at(context, 0)
    ranked = _ranked_at(state.ranked, 0)
    rank_of, list_at = small_at(ranked.rank_of, LISTS), small_at(ranked.list_at, LISTS)
    words_at(ranked.bitmap, BITMAP_WORDS)[:] = 0
    _sort(reals_at(state.indices, LISTS), list_at)
    for rank in range(LISTS):
        number = np.int64(list_at[rank])
        rank_of[number] = rank
        head = np.int64(state.row_count) + number
        if oldest(state.candidate_links, head) != head:
            _mark(state.ranked, rank)
