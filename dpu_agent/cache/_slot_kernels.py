"""The slot table: what is known of each slot, its states, and the list of free ones.

    FREE      --reserve--> WRITING
    WRITING   --publish--> PUBLISHED
    WRITING   --abort--> FREE
    PUBLISHED --delete, no reader--> FREE
    PUBLISHED --delete, readers--> CONDEMNED --last unpin--> FREE
    PUBLISHED --eviction by a reserve, no reader--> WRITING, with the new key

A slot's key lies in the index, its links in the policy; with these 20 bytes, 5.3 of hash
table and LRU's 8, a block costs about 65 bytes. Kernels widen fields to ``int64`` before
they calculate, so that compiled and interpreted runs agree.

Types and states live beside the kernels because they are compiled into them: the kernel
cache is keyed by the text of kernel modules only.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy.base import SlotArray
from kvlane.jit import kernel


class SlotState(IntEnum):
    """Where a slot is in its life."""

    FREE = 0
    WRITING = 1
    """Reserved by a writer; lookups do not see it, but no second writer gets its key."""
    PUBLISHED = 2
    CONDEMNED = 3
    """Deleted while readers hold it: no key leads to it, and the last unpin frees it."""


SLOT = np.dtype(
    {
        "names": ["generation", "checksum", "next_free", "length", "pins", "state"],
        "formats": ["u4", "u4", "i4", "u4", "u4", "u1"],
        "offsets": [0, 4, 4, 8, 12, 16],
        "itemsize": 20,
        "aligned": True,
    }
)
"""``next_free`` shares its place with ``checksum``, which a FREE slot does not have."""

LEDGER = np.dtype(
    [
        ("free_head", "i8"),
        ("free", "i8"),
        ("blocks", "i8"),
        ("bytes", "i8"),
        ("pinned", "i8"),
        ("writing", "i8"),
        ("hits", "i8"),
        ("misses", "i8"),
        ("stored", "i8"),
        ("already_stored", "i8"),
        ("evicted", "i8"),
        ("deleted", "i8"),
        ("aborted", "i8"),
        ("refused", "i8"),
    ],
    align=True,
)
"""Head of the free list, then gauges and counters as in ``StoreStats``."""

SlotTable = NDArray[np.void]
"""Shape (capacity,), dtype SLOT."""
Ledger = NDArray[np.void]
"""Shape (1,), dtype LEDGER."""

_FREE = int(SlotState.FREE)
_MAX_GENERATION = 0xFFFFFFFF
END_OF_LIST = -1


def new_slot_table(capacity: int) -> SlotTable:
    """All slots FREE, chained in ascending order."""
    table = np.zeros(capacity, SLOT)
    table["next_free"][:-1] = np.arange(1, capacity)
    table["next_free"][-1] = END_OF_LIST
    return table


def new_ledger(capacity: int) -> Ledger:
    """The ledger of a table as ``new_slot_table`` makes it."""
    ledger = np.zeros(1, LEDGER)
    ledger["free"] = capacity
    return ledger


@kernel
def take_free(table: SlotTable, ledger: Ledger) -> int:
    """Unchain a free slot; the caller has seen that there is one and sets its state."""
    book = ledger[0]
    slot: int = book["free_head"]
    book["free_head"] = table[slot]["next_free"]
    book["free"] -= 1
    return slot


@kernel
def give_free(table: SlotTable, ledger: Ledger, slot: int) -> None:
    """Make ``slot`` FREE and chain it."""
    book = ledger[0]
    row = table[slot]
    row["state"] = _FREE
    row["next_free"] = book["free_head"]
    book["free_head"] = slot
    book["free"] += 1


@kernel
def bump_generation(table: SlotTable, slot: int) -> None:
    """The next generation; 0 is skipped, so that it always means "never"."""
    generation = np.int64(table[slot]["generation"])
    table[slot]["generation"] = 1 if generation == _MAX_GENERATION else generation + 1


@kernel
def add_pin(table: SlotTable, ledger: Ledger, slot: int) -> None:
    """One more reader of ``slot``."""
    pins = np.int64(table[slot]["pins"])
    table[slot]["pins"] = pins + 1
    if pins == 0:
        ledger[0]["pinned"] += 1


@kernel
def drop_pin(table: SlotTable, ledger: Ledger, slot: int) -> None:
    """One reader less; the caller has seen that there is one."""
    pins = np.int64(table[slot]["pins"])
    table[slot]["pins"] = pins - 1
    if pins == 1:
        ledger[0]["pinned"] -= 1


@kernel
def move_state(table: SlotTable, slots: SlotArray, source: int, target: int) -> int:
    """Move all ``slots`` from one state to another, or none of them.

    Returns -1, or the position of the first that is no slot, not in ``source``, or listed
    twice.
    """
    for i in range(len(slots)):
        slot = slots[i]
        if not 0 <= slot < len(table) or table[slot]["state"] != source:
            for j in range(i):
                table[slots[j]]["state"] = source
            return i
        table[slot]["state"] = target
    return -1
