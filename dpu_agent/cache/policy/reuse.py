"""Reuse: keeps what is likely to be asked for again soon, as it learns from the requests it sees.

Every request for a chain of blocks becomes rows of blocks that share a fate; a model of hazards by
age, fitted online to what became of past rows, says what keeping each is worth (``_reuse_*``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy._list_kernels import append_all, new_links
from dpu_agent.cache.policy._reuse_history_kernels import HISTORY, KEPT, RECORD
from dpu_agent.cache.policy._reuse_kernels import FUNCTIONS
from dpu_agent.cache.policy._reuse_layout_kernels import (
    AGE_LISTS,
    BINS,
    BLOCK,
    FEATURES,
    GROUPS,
    IDLE,
    LEVELS,
    LISTS,
    MAX_AWAITED,
    MAX_CHAIN,
    MIN_GHOSTS,
    NONE,
    REUSE,
    ROW,
    STRATA,
    UNUSED,
    VALUES,
)
from dpu_agent.cache.policy._reuse_learnt import read_learnt, write_learnt
from dpu_agent.cache.policy._reuse_rank_kernels import BITMAP_WORDS, RANKED
from dpu_agent.cache.policy._reuse_request_kernels import learn
from dpu_agent.cache.policy.base import SlotArray

_LINE_BYTES = 64


def _at_cache_lines(count: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Zeroed records that begin at a cache line: those of 64 bytes then lie in one each."""
    raw = np.zeros(count * dtype.itemsize + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + count * dtype.itemsize].view(dtype)


class ReusePolicy:
    """``EvictionPolicy``; about 0.7 KiB for each block of capacity, and 7 MiB."""

    def __init__(self, capacity_blocks: int, *, learnt: bytes = b"") -> None:
        """``learnt`` is what an earlier policy has given; ``ConfigError`` if it is not."""
        rows = 2 * capacity_blocks + MIN_GHOSTS
        # Residents and their parents, what is awaited, and two keys that lead to each row.
        blocks = 2 * capacity_blocks + MAX_AWAITED + 2 * rows + 1
        self._blocks = _at_cache_lines(blocks, BLOCK)
        self._rows = np.zeros(rows, ROW)
        self._buckets = np.zeros(2 * blocks, np.int32)
        self._block_links = new_links(blocks, 2)
        self._candidate_links = new_links(rows, LISTS)
        self._age_links = new_links(rows, AGE_LISTS)
        self._block_in = np.full(capacity_blocks, NONE, np.int32)
        self._chain = np.zeros(MAX_CHAIN, np.int32)
        self._single = np.zeros(1, np.int64)
        self._hazards = np.zeros(STRATA * BINS)
        self._effects = np.ones(GROUPS * FEATURES * VALUES)
        self._indices = np.zeros(LISTS)
        self._bitmap = np.zeros(BITMAP_WORDS, np.int64)
        self._rank_of = np.arange(LISTS, dtype=np.int32)
        self._list_at = np.arange(LISTS, dtype=np.int32)
        self._ranked = np.zeros(1, RANKED)
        self._ranked[0] = tuple(
            array.ctypes.data for array in (self._bitmap, self._rank_of, self._list_at)
        )
        self._records = np.zeros(KEPT, RECORD)
        self._history = np.zeros(1, HISTORY)
        self._history["records"] = self._records.ctypes.data
        self._history["stride"] = 1
        self._state: NDArray[np.void] = np.zeros(1, REUSE)
        self._describe(capacity_blocks)
        append_all(self._block_links, blocks, IDLE)
        append_all(self._age_links, rows, UNUSED)
        if learnt:
            count = read_learnt(learnt, self._records)
            self._history["logged"] = count
            self._history["due"] = count + count // 8
            learn(int(self._state.ctypes.data))
        self.calls = FUNCTIONS.on(self._state)

    def _describe(self, capacity_blocks: int) -> None:
        state = self._state
        for name, array in (
            ("blocks", self._blocks),
            ("block_links", self._block_links),
            ("buckets", self._buckets),
            ("rows", self._rows),
            ("candidate_links", self._candidate_links),
            ("age_links", self._age_links),
            ("block_in", self._block_in),
            ("chain", self._chain),
            ("single", self._single),
            ("ranked", self._ranked),
            ("history", self._history),
            ("hazards", self._hazards),
            ("effects", self._effects),
            ("indices", self._indices),
        ):
            state[name] = array.ctypes.data
        state["block_count"] = len(self._blocks)
        state["bucket_count"] = len(self._buckets)
        state["row_count"] = len(self._rows)
        state["capacity"] = capacity_blocks
        state["latest"] = state["before"] = NONE

    def take_fault(self) -> None:
        """Nothing: compiled, and without anything that can fail."""

    def learnt(self) -> bytes:
        """What became of past requests, for the policy of the next start; at most 512 KiB."""
        return write_learnt(self._records, self._history, float(self._state["clock_ms"][0]))

    def ordered(self) -> SlotArray:
        """The least worth keeping first; what others extend comes after all that may go."""
        slots = np.flatnonzero(self._block_in != NONE)
        blocks = self._blocks[self._block_in[slots]]
        rows = self._rows[blocks["row"]]
        lists = (rows["stratum"] * LEVELS + rows["level"]) * BINS + rows["bin"]
        order = np.lexsort((slots, self._indices[lists], blocks["children"] > 0))
        ordered: SlotArray = slots[order].astype(np.int64)
        return ordered
