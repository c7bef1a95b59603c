"""Rows of the policy ``reuse``: how they get and lose blocks, grow old, and become ghosts.

A row with resident blocks is in the list of its bin of age, in the order of time; a live one
without is a ghost. When there is no unused row the oldest ghost is forgotten.
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache.policy._list_kernels import append, oldest, unlink
from dpu_agent.cache.policy._reuse_block_kernels import release
from dpu_agent.cache.policy._reuse_hazard_kernels import bin_of
from dpu_agent.cache.policy._reuse_history_kernels import end
from dpu_agent.cache.policy._reuse_layout_kernels import (
    BINS,
    EDGES_MS,
    GHOSTS,
    NONE,
    UNUSED,
    block_at,
    row_at,
    state_at,
)
from dpu_agent.cache.policy._reuse_rank_kernels import consider, strike
from kvlane.jit import kernel


@kernel
def _move(context: int, row: int, target: int) -> None:
    """Make a row the newest of another list by age."""
    state = state_at(context, 0)
    unlink(state.age_links, row)
    append(state.age_links, state.row_count + target, row)


@kernel
def lead_by_tip(context: int, block: int, row: int) -> None:
    """Let the key of a block lead to a row, whose last it is."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    other = np.int64(record.tip_of)
    if other >= 0:
        row_at(state.rows, other).tip = NONE
    record.tip_of = row
    row_at(state.rows, row).tip = block


@kernel
def lead_by_anchor(context: int, block: int, row: int) -> None:
    """Let the key of a block lead to a row that branches behind it."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    other = np.int64(record.anchor_of)
    if other >= 0:
        row_at(state.rows, other).anchor = NONE
    record.anchor_of = row
    row_at(state.rows, row).anchor = block


@kernel
def _lead_no_more(context: int, row: int) -> None:
    state = state_at(context, 0)
    record = row_at(state.rows, row)
    tip, anchor = np.int64(record.tip), np.int64(record.anchor)
    record.tip = NONE
    record.anchor = NONE
    if tip >= 0:
        block_at(state.blocks, tip).tip_of = NONE
    if anchor >= 0:
        block_at(state.blocks, anchor).anchor_of = NONE
        release(context, anchor)
    if tip >= 0 and tip != anchor:
        release(context, tip)


@kernel
def retire(context: int, row: int) -> None:
    """A row was continued: its key is another's now, and what is left of it a remnant."""
    state = state_at(context, 0)
    end(context, row, True)
    _lead_no_more(context, row)
    record = row_at(state.rows, row)
    record.is_live = 0
    if record.blocks == 0:
        record.is_free = 1
        _move(context, row, UNUSED)


@kernel
def new_row(context: int) -> int:
    """A live row without blocks."""
    state = state_at(context, 0)
    unused = np.int64(state.row_count) + UNUSED
    if oldest(state.age_links, unused) == unused:
        ghost = oldest(state.age_links, state.row_count + GHOSTS)
        end(context, ghost, False)
        _lead_no_more(context, ghost)
        _move(context, ghost, UNUSED)
    row = oldest(state.age_links, unused)
    _move(context, row, GHOSTS)
    record = row_at(state.rows, row)
    record.time_ms = state.clock_ms
    record.request = state.request
    record.logged = NONE
    record.top = NONE
    record.blocks = 0
    record.bin = 0
    record.tip = NONE
    record.anchor = NONE
    record.is_candidate = 0
    record.is_live = 1
    record.is_free = 0
    return row


@kernel
def attach(context: int, block: int, row: int) -> None:
    """A resident block that is in no row becomes the top of one."""
    state = state_at(context, 0)
    record, owner = block_at(state.blocks, block), row_at(state.rows, row)
    strike(context, row)
    if owner.blocks == 0:
        owner.bin = bin_of(state.clock_ms - owner.time_ms)
        _move(context, row, np.int64(owner.bin))
    top = np.int64(owner.top)
    record.row = row
    record.below = top
    record.above = NONE
    if top >= 0:
        block_at(state.blocks, top).above = block
    owner.top = block
    owner.blocks += 1
    consider(context, row)


@kernel
def detach(context: int, block: int) -> None:
    """Take a resident block out of its row."""
    state = state_at(context, 0)
    record = block_at(state.blocks, block)
    row = np.int64(record.row)
    owner = row_at(state.rows, row)
    above, below = np.int64(record.above), np.int64(record.below)
    if below >= 0:
        block_at(state.blocks, below).above = above
    if above >= 0:
        block_at(state.blocks, above).below = below
    else:
        owner.top = below
    owner.blocks -= 1
    consider(context, row)
    if owner.blocks > 0:
        return
    if owner.is_live:
        _move(context, row, GHOSTS)
    else:
        owner.is_free = 1
        _move(context, row, UNUSED)


@kernel
def demote(context: int, row: int, levels: int) -> None:
    """Hold a row for less likely to be asked for."""
    record = row_at(state_at(context, 0).rows, row)
    strike(context, row)
    record.level = max(0, np.int64(record.level) - levels)
    consider(context, row)


@kernel
def grow_older(context: int) -> None:
    """Move the rows that have outgrown their bins."""
    state = state_at(context, 0)
    for which in range(BINS - 1):
        head = np.int64(state.row_count) + which
        row = oldest(state.age_links, head)
        latest_ms = state.clock_ms - EDGES_MS[which + 1]
        while row != head and row_at(state.rows, row).time_ms <= latest_ms:
            strike(context, row)
            row_at(state.rows, row).bin = which + 1
            _move(context, row, which + 1)
            consider(context, row)
            row = oldest(state.age_links, head)
