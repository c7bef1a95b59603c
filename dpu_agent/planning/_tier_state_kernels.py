"""The state of a hierarchy of tiers: records that refer to each other by address.

A hierarchy is passed on as the address of its record, since to pass a dozen arrays with every call
would take longer than what is called.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel
from kvlane.rawmem import array_accessor, record_accessor

MAX_TIERS = 4
NONE = -1

COUNTS = np.dtype(
    [
        ("hits", "i8"),
        ("stored", "i8"),
        ("promoted", "i8"),
        ("demoted", "i8"),
        ("passed_by", "i8"),
    ]
)
"""Of a tier, in blocks: those of unbroken prefixes that were found here; new ones that the host
wrote here; those that were read from here into a hotter tier; those that came because a hotter one
had no room; those that the policy did not take in."""

TOTALS = np.dtype(
    [
        ("asked", "i8"),
        ("stranded", "i8"),
        ("refused", "i8"),
        ("dropped", "i8"),
        ("unread", "i8"),
        ("orphaning", "i8"),
        ("present", "i8"),
        ("orphaned", "i8"),
    ]
)
"""Of all together, in blocks: those of requests; those that lay somewhere, behind one of their
request that did not; those that no tier took in; those that left the last tier that had them, those
of these that no prefix ever had, and those of these of which an extension was left behind; those
that lie somewhere now, and those of these before which a block of their chain is missing. The last
two are set where orphans are counted."""

TIER = np.dtype(
    [
        ("context", "i8"),
        ("inserted", "i8"),
        ("touched", "i8"),
        ("removed", "i8"),
        ("missed", "i8"),
        ("victim", "i8"),
        ("asked", "i8"),
        ("slot_table", "i8"),
        ("block_in", "i8"),
        ("free_slots", "i8"),
        ("capacity", "i8"),
        ("free", "i8"),
        ("keeps_copies", "i8"),
    ]
)
"""The functions of ``PolicyCalls``; addresses of the slot table, of the block in each slot and of a
stack of free slots; how many slots there are and are free; whether a block that goes to a hotter
tier stays here too."""

BLOCK = np.dtype(
    [
        ("parent", "i4"),
        ("children", "i4"),
        ("asked_in", "i4"),
        ("copies", "i2"),
        ("is_read", "i2"),
        ("slots", "i4", (MAX_TIERS,)),
    ]
)
"""Of the request that named it last: the block before it and that request's number. How many
blocks that lie somewhere have it as parent, in how many tiers it lies itself, whether a prefix has
had it since it came, and its slot in each tier or ``NONE``."""

HIERARCHY = np.dtype(
    [
        ("tiers", "i8"),
        ("tier_count", "i8"),
        ("counts", "i8"),
        ("totals", "i8"),
        ("blocks", "i8"),
        ("block_count", "i8"),
        ("keys", "i8"),
    ]
)
"""Addresses of tables, hottest tier first, and their lengths; keys are what policies see."""

hierarchy_at = record_accessor(HIERARCHY)
tier_at = record_accessor(TIER)
counts_at = record_accessor(COUNTS)
totals_at = record_accessor(TOTALS)
block_at = record_accessor(BLOCK)
small_at = array_accessor(np.dtype(np.int32))

_SLOTS_OFFSET = BLOCK.fields["slots"][1] if BLOCK.fields else 0
_BLOCK_BYTES = BLOCK.itemsize


@kernel
def slots_of(blocks: int, block: int) -> NDArray[np.int32]:
    """A block's slot in each tier."""
    slots: NDArray[np.int32] = small_at(blocks + block * _BLOCK_BYTES + _SLOTS_OFFSET, MAX_TIERS)
    return slots
