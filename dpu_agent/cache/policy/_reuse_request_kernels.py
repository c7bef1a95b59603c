"""What a request means to the policy ``reuse``: which rows it continues, shares and begins.

Its chain is compared with what is known. It continues the row of the deepest tip in it; its blocks
that belong to others are shared; the last, which may be partial, is a tail for itself. All of
them go over to new rows, and what they leave behind in the continued row is a remnant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy._reuse_block_kernels import (
    await_block,
    block_of,
    fetch_block,
    fetch_bucket,
)
from dpu_agent.cache.policy._reuse_features_kernels import (
    NO_PAUSE,
    body_traits,
    shared_traits,
    tail_traits,
)
from dpu_agent.cache.policy._reuse_hazard_kernels import fit, risk_of
from dpu_agent.cache.policy._reuse_history_kernels import end, is_fit_due, log, stratum_in
from dpu_agent.cache.policy._reuse_index_kernels import find_indices, level_of
from dpu_agent.cache.policy._reuse_layout_kernels import (
    BODY,
    FEATURES,
    GROUPS,
    MAX_CHAIN,
    NONE,
    SHARED,
    TAIL,
    VALUES,
    block_at,
    reals_at,
    row_at,
    small_at,
    state_at,
)
from dpu_agent.cache.policy._reuse_rank_kernels import rank_lists
from dpu_agent.cache.policy._reuse_row_kernels import (
    attach,
    demote,
    detach,
    grow_older,
    lead_by_anchor,
    lead_by_tip,
    new_row,
    retire,
)
from kvlane.jit import kernel
from kvlane.rawmem import words_at

_TICK_MS = 1.0
"""The clock goes on by this with each request at least, so that traces without time have ages."""
_NS_PER_MS = 1e6
_REMNANT_LEVELS = 8
_AHEAD = 8
"""Keys of which memory is asked for before they are looked up."""

Chain = NDArray[np.int32]
"""The blocks of a request in order."""


@kernel
def learn(context: int) -> None:
    """Fit the model to all that is recorded, and put the rows in order by it."""
    fit(context)
    find_indices(context)
    rank_lists(context)


@kernel
def _advance(context: int, now_ns: int) -> None:
    state = state_at(context, 0)
    state.clock_ms = max(now_ns / _NS_PER_MS, state.clock_ms + _TICK_MS)
    state.request += 1
    if is_fit_due(state.history):
        learn(context)
    grow_older(context)


@kernel
def _recognise(context: int, keys: int, count: int) -> Chain:
    """The blocks of a chain of keys; of one that names a key twice, what comes before that."""
    state = state_at(context, 0)
    wanted = words_at(keys, min(count, MAX_CHAIN))
    chain: Chain = small_at(state.chain, MAX_CHAIN)
    state.cursor = state.chain_count = 0
    for i in range(len(wanted)):
        if i + _AHEAD < len(wanted):
            fetch_bucket(context, wanted[i + _AHEAD])
        if i + _AHEAD // 2 < len(wanted):
            fetch_block(context, wanted[i + _AHEAD // 2])
        block = block_of(context, wanted[i])
        record = block_at(state.blocks, block)
        if record.asked == state.request:
            return chain[:i]
        record.asked = state.request
        record.source = NONE
        record.refused = 0
        record.has_parent = 1 if i > 0 else 0
        record.parent_key = wanted[i - 1] if i > 0 else 0
        record.unread = 1 if record.slot >= 0 else 0
        if record.slot < 0:
            await_block(context, block)
        chain[i] = block
        state.chain_count = i + 1
    return chain[: len(wanted)]


@kernel
def _find_continued(context: int, chain: Chain) -> int:
    """The row of which the deepest tip is in a chain, or ``NONE``. Shared rows on the way become
    sources of their blocks; tails are reused."""
    state = state_at(context, 0)
    continued, i = NONE, len(chain) - 1
    while i >= 0:
        row = np.int64(block_at(state.blocks, chain[i]).tip_of)
        if row >= 0:
            record = row_at(state.rows, row)
            kind = np.int64(record.kind)
            if kind == TAIL:
                retire(context, row)
            elif kind == SHARED:
                first = min(i, np.int64(record.start))
                for place in range(first, i + 1):
                    block_at(state.blocks, chain[place]).source = row
                i = first
            elif continued == NONE:
                continued = row
        i -= 1
    return int(continued)


@kernel
def _find_branch(context: int, chain: Chain, continued: int) -> int:
    """The position of the last anchor in a chain that leads to a ghost, or ``NONE``; all rows that
    are anchored in it are reused."""
    state = state_at(context, 0)
    found = NONE
    for i in range(len(chain)):
        block = block_at(state.blocks, chain[i])
        row = np.int64(block.anchor_of)
        if row >= 0 and row != continued:
            end(context, row, True)
            if block.slot < 0 and block.source < 0:
                found = i
    return found


@kernel
def _find_sources(context: int, chain: Chain, continued: int) -> int:
    """Let resident blocks of other rows have those as sources; how many blocks are known."""
    state = state_at(context, 0)
    known = 0
    for i in range(len(chain)):
        block = block_at(state.blocks, chain[i])
        is_resident = block.slot >= 0
        if is_resident and block.source < 0 and i < len(chain) - 1:
            owner = np.int64(block.row)
            if owner != continued and row_at(state.rows, owner).kind != TAIL:
                block.source = owner
        if is_resident or block.source >= 0:
            known = i + 1
    return known


@kernel
def _begin(context: int, row: int, kind: int, turn: int, start: int, end_at: int) -> None:
    record = row_at(state_at(context, 0).rows, row)
    record.kind = kind
    record.turn = turn
    record.start = start
    record.end = end_at


@kernel
def _estimate(context: int, row: int, traits: int) -> None:
    """Give a row its place in the model, and record it for the next fit."""
    state = state_at(context, 0)
    record = row_at(state.rows, row)
    record.stratum = stratum_in(traits)
    record.level = level_of(risk_of(reals_at(state.effects, GROUPS * FEATURES * VALUES), traits))
    record.logged = log(context, traits)


@kernel
def _take_over(context: int, block: int, row: int) -> None:
    """A block goes over to a new row; one that is awaited will do so when it comes."""
    record = block_at(state_at(context, 0).blocks, block)
    if record.slot >= 0:
        detach(context, block)
        attach(context, block, row)
    else:
        record.row = row


@kernel
def _share(context: int, chain: Chain, first: int, continued: int) -> int:
    """Begin the row of the blocks from a position on that have the same source; where it ends."""
    state = state_at(context, 0)
    source = np.int64(block_at(state.blocks, chain[first]).source)
    after, covers_tip = first, False
    while after < len(chain) and np.int64(block_at(state.blocks, chain[after]).source) == source:
        covers_tip = covers_tip or np.int64(block_at(state.blocks, chain[after]).tip_of) == source
        after += 1
    before = row_at(state.rows, source)
    times = np.int64(before.turn) + 1 if before.kind == SHARED else 1
    traits = shared_traits(times, state.clock_ms - before.time_ms, after - first)
    if covers_tip and source != continued:
        retire(context, source)
    row = new_row(context)
    _begin(context, row, SHARED, times, first, after - 1)
    _estimate(context, row, traits)
    lead_by_tip(context, chain[after - 1], row)
    for place in range(first, after):
        _take_over(context, chain[place], row)
    return after


@kernel
def _anchor(context: int, chain: Chain, row: int) -> None:
    """Let a body's middle lead to it."""
    state = state_at(context, 0)
    record = row_at(state.rows, row)
    place = (np.int64(record.start) + np.int64(record.end)) // 2
    while np.int64(block_at(state.blocks, chain[place]).source) >= 0:
        place += 1
    lead_by_anchor(context, chain[place], row)


@kernel
def ask(context: int, keys: int, count: int, now_ns: int) -> None:
    """A request for a chain of keys has come, and none of its blocks was read or stored yet."""
    _advance(context, now_ns)
    chain = _recognise(context, keys, count)
    if len(chain) > 0:
        _place(context, chain)


@kernel
def _place(context: int, chain: Chain) -> None:
    """Give every block of a request its row."""
    state = state_at(context, 0)
    continued = _find_continued(context, chain)
    branch = _find_branch(context, chain, continued)
    covered = 0
    if continued >= 0:
        covered = np.int64(row_at(state.rows, continued).end) + 1
    elif branch >= 0:
        continued = np.int64(block_at(state.blocks, chain[branch]).anchor_of)
        covered = branch
    known = min(max(_find_sources(context, chain, continued), covered), len(chain))
    turn, pause_ms = 0, NO_PAUSE
    if continued >= 0:
        turn = np.int64(row_at(state.rows, continued).turn) + 1
        pause_ms = state.clock_ms - row_at(state.rows, continued).time_ms
        retire(context, continued)
    _begin_rows(context, chain, continued, turn, pause_ms, known)
    if continued >= 0 and not row_at(state.rows, continued).is_free:
        _abandon(context, continued)


@kernel
def _abandon(context: int, row: int) -> None:
    """What a continued row has left is unlikely to be asked for again."""
    record = row_at(state_at(context, 0).rows, row)
    if not record.is_live and record.blocks > 0:
        demote(context, row, _REMNANT_LEVELS)


@kernel
def _begin_rows(
    context: int, chain: Chain, continued: int, turn: int, pause_ms: float, known: int
) -> None:
    """The new rows of a request, from the start of its chain."""
    state = state_at(context, 0)
    length = len(chain)
    body, i = NONE, 0
    while i < length:
        if np.int64(block_at(state.blocks, chain[i]).source) >= 0:
            i = _share(context, chain, i, continued)
            continue
        if i == length - 1 and length > 1:
            row = new_row(context)
            _begin(context, row, TAIL, turn, i, i)
            _estimate(context, row, tail_traits(turn, length, length - known))
            lead_by_tip(context, chain[i], row)
        else:
            if body == NONE:
                body = new_row(context)
                _begin(context, body, BODY, turn, i, i)
                _estimate(context, body, body_traits(turn, pause_ms, length, length - known))
            row = body
            row_at(state.rows, body).end = i
        _take_over(context, chain[i], row)
        i += 1
    if body >= 0:
        end_at = np.int64(row_at(state.rows, body).end)
        lead_by_tip(context, chain[end_at], body)
        _anchor(context, chain, body)
