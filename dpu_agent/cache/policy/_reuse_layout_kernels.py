"""Where the policy ``reuse`` keeps what it knows: records and arrays that are laid out once.

A *block* is a key that is resident, awaited, or remembered; a *row* is what one request left
behind: the blocks that share a fate, or the ghost of them. Times are milliseconds of the policy's
own clock.
"""

from __future__ import annotations

import numpy as np

from kvlane.rawmem import array_accessor, record_accessor

NONE = -1

BODY, TAIL, SHARED = 0, 1, 2
"""Kinds of rows: what a request has for itself, its last block, what other requests had too."""

STRATA = 7
"""Bodies of new requests; of requests that follow the one before soon, later, late; tails; what
was shared a few times; what was shared often. Each has its own hazard by age."""
TAIL_STRATUM = 4
GROUPS = 4
"""Bodies, tails and both kinds of shared rows: each with its own effects of features."""
FEATURES = 4
VALUES = 16
"""A feature is a number below this."""

BINS = 40
"""Ages in steps of a half more, from a millisecond to two hours."""
BIN_RATIO = 1.5
EDGES_MS = np.concatenate(([0.0], BIN_RATIO ** np.arange(BINS)))
"""Bin j is from ``EDGES_MS[j]`` to the next; the last also takes what is older."""

LEVELS = 40
LEVEL_STEP = 0.25
MIDDLE_LEVEL = 24
"""Levels of a row's hazard relative to its stratum's: steps of the logarithm, from -6 to 3.75."""
LISTS = STRATA * LEVELS * BINS
"""Lists of candidates, one for each index that a row can have."""

MAX_CHAIN = 8192
"""Blocks of a request that are looked at; what follows is taken for single blocks."""
MAX_AWAITED = 2 * MAX_CHAIN
"""Keys that were asked for and may yet be stored."""
MIN_GHOSTS = 16_384

REUSE = np.dtype(
    [
        ("blocks", "i8"),
        ("block_count", "i8"),
        ("block_links", "i8"),
        ("buckets", "i8"),
        ("bucket_count", "i8"),
        ("rows", "i8"),
        ("row_count", "i8"),
        ("candidate_links", "i8"),
        ("age_links", "i8"),
        ("block_in", "i8"),
        ("chain", "i8"),
        ("single", "i8"),
        ("ranked", "i8"),
        ("history", "i8"),
        ("hazards", "i8"),
        ("effects", "i8"),
        ("indices", "i8"),
        ("capacity", "i8"),
        ("resident", "i8"),
        ("awaited", "i8"),
        ("chain_count", "i8"),
        ("cursor", "i8"),
        ("latest", "i8"),
        ("before", "i8"),
        ("request", "i8"),
        ("missed", "i8"),
        ("hand", "i8"),
        ("clock_ms", "f8"),
    ]
)
"""Addresses of the arrays and how many records they have, then gauges. ``block_in`` leads from a
slot to its block, ``chain`` holds the blocks of the request at hand and ``single`` the key of a
block that is asked for alone; ``hand`` is where the search for a block of last resort goes on."""

BLOCK = np.dtype(
    [
        ("key", "i8"),
        ("parent_key", "i8"),
        ("asked", "i8"),
        ("slot", "i4"),
        ("row", "i4"),
        ("source", "i4"),
        ("tip_of", "i4"),
        ("anchor_of", "i4"),
        ("parent", "i4"),
        ("children", "i4"),
        ("above", "i4"),
        ("below", "i4"),
        ("awaited", "i1"),
        ("refused", "i1"),
        ("unread", "i1"),
        ("has_parent", "i1"),
    ]
)
"""``asked`` is the last request with this block. ``tip_of`` and ``anchor_of`` are the rows that the
key leads to. ``parent`` is the block before it in its chain, ``children`` the resident ones after
it. ``above`` and ``below`` are its neighbours in its row, towards the chain's end and start."""

ROW = np.dtype(
    [
        ("time_ms", "f8"),
        ("request", "i8"),
        ("logged", "i8"),
        ("top", "i4"),
        ("blocks", "i4"),
        ("kind", "i4"),
        ("stratum", "i4"),
        ("level", "i4"),
        ("bin", "i4"),
        ("turn", "i4"),
        ("start", "i4"),
        ("end", "i4"),
        ("tip", "i4"),
        ("anchor", "i4"),
        ("is_candidate", "i1"),
        ("is_live", "i1"),
        ("is_free", "i1"),
        ("unused", "i1"),
    ]
)
"""``top`` is the resident block nearest to the chain's end, the first to go. ``start`` and ``end``
are positions in the chain. ``tip`` is the last block: a request with it continues the row.
``anchor`` is one half-way: a request with it but without the tip leaves the row at a branch. A row
is live until it is continued."""

AWAITED, IDLE = 0, 1
"""Lists of blocks."""
GHOSTS, UNUSED = BINS, BINS + 1
"""Lists of rows beside those by age."""
AGE_LISTS = BINS + 2

state_at = record_accessor(REUSE)
block_at = record_accessor(BLOCK)
row_at = record_accessor(ROW)
small_at = array_accessor(np.dtype(np.int32))
reals_at = array_accessor(np.dtype(np.float64))
