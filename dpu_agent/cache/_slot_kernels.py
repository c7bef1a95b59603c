"""The slot table: what is known of each slot, its states, and the list of free ones.

    FREE      --reserve--> WRITING
    WRITING   --publish--> PUBLISHED
    WRITING   --abort--> FREE
    PUBLISHED --delete, no reader--> FREE
    PUBLISHED --delete, readers--> CONDEMNED --last unpin--> FREE
    PUBLISHED --eviction by a reserve, no reader--> WRITING, with the new key

A slot's key lies in the index, its links in the policy; with these 16 bytes, 5.3 of hash
table and LRU's 8, a block costs about 61 bytes. Kernels widen fields to ``int64`` before
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
from kvlane.rawmem import record_accessor


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
        "names": ["generation", "checksum", "next_free", "length", "hold"],
        "formats": ["u4", "u4", "i4", "u4", "u4"],
        "offsets": [0, 4, 4, 8, 12],
        "itemsize": 16,
        "aligned": True,
    }
)
"""``next_free`` shares its place with ``checksum``, which a FREE slot does not have. ``hold`` is
the number of pins above two bits of state and one that says that the block was brought here on a
guess, and nobody has asked for it yet."""

_STATE_MASK = 0b011
_GUESSED = 0b100
_PIN_SHIFT = 3
ONE_PIN = 1 << _PIN_SHIFT
_slot_at = record_accessor(SLOT)

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
        ("displaced", "i8"),
        ("demoted", "i8"),
        ("deleted", "i8"),
        ("aborted", "i8"),
        ("refused", "i8"),
        ("policy_faults", "i8"),
        ("next_evicted", "i8"),
        ("guessed", "i8"),
        ("guessed_bytes", "i8"),
        ("useful", "i8"),
        ("useful_bytes", "i8"),
        ("wasted", "i8"),
        ("wasted_bytes", "i8"),
    ],
    align=True,
)
"""Head of the free list, then gauges and counters as in ``StoreStats``; where the search for a
block to evict goes on once the policy has failed; and of the blocks that were brought here on a
guess those that nobody has asked for yet, that somebody has, and that left before. What was evicted
is counted by cause: ``displaced`` by a new block at once, or ``demoted`` so that there is room for
one."""

SlotTable = NDArray[np.void]
"""Shape (capacity,), dtype SLOT."""
Ledger = NDArray[np.void]
"""Shape (1,), dtype LEDGER."""

_FREE = int(SlotState.FREE)
_MAX_GENERATION = 0xFFFFFFFF
END_OF_LIST = -1


def states(table: SlotTable) -> NDArray[np.uint32]:
    """``SlotState`` of every slot."""
    held: NDArray[np.uint32] = table["hold"] & np.uint32(_STATE_MASK)
    return held


def pins(table: SlotTable) -> NDArray[np.uint32]:
    """Readers of every slot."""
    held: NDArray[np.uint32] = table["hold"] >> np.uint32(_PIN_SHIFT)
    return held


def is_guessed(table: SlotTable) -> NDArray[np.bool_]:
    """Of every slot, whether its block was brought here on a guess that is open."""
    guessed: NDArray[np.bool_] = (table["hold"] & np.uint32(_GUESSED)) != 0
    return guessed


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
def state_of(table: SlotTable, slot: int) -> int:
    """The ``SlotState`` of a slot."""
    return int(np.int64(table[slot]["hold"]) & _STATE_MASK)


@kernel
def set_state(table: SlotTable, slot: int, state: int) -> None:
    """Change a slot's state and leave the rest of its hold."""
    row = table[slot]
    row["hold"] = (np.int64(row["hold"]) & ~_STATE_MASK) | state


@kernel
def pins_of(table: SlotTable, slot: int) -> int:
    """Readers of a slot."""
    return int(np.int64(table[slot]["hold"]) >> _PIN_SHIFT)


@kernel
def is_pinned_at(slot_table: int, slot: int) -> bool:
    """Whether a slot of the table at an address has a reader."""
    return bool(np.int64(_slot_at(slot_table, slot).hold) >> _PIN_SHIFT != 0)


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
    set_state(table, slot, _FREE)
    row = table[slot]
    row["next_free"] = book["free_head"]
    book["free_head"] = slot
    book["free"] += 1


@kernel
def bump_generation(table: SlotTable, slot: int) -> None:
    """The next generation; 0 is skipped, so that it always means "never"."""
    generation = np.int64(table[slot]["generation"])
    table[slot]["generation"] = 1 if generation == _MAX_GENERATION else generation + 1


@kernel
def mark_guessed(table: SlotTable, ledger: Ledger, slot: int) -> None:
    """The block of a slot that is PUBLISHED was brought here on a guess."""
    row, book = table[slot], ledger[0]
    row["hold"] = np.int64(row["hold"]) | _GUESSED
    book["guessed"] += 1
    book["guessed_bytes"] += np.int64(row["length"])


@kernel
def judge_guess(table: SlotTable, ledger: Ledger, slot: int, useful: bool) -> None:
    """A block was asked for, or leaves; if it was brought here on a guess, that is settled."""
    row = table[slot]
    if np.int64(row["hold"]) & _GUESSED == 0:
        return
    book, length = ledger[0], np.int64(row["length"])
    row["hold"] = np.int64(row["hold"]) & ~_GUESSED
    book["guessed"] -= 1
    book["guessed_bytes"] -= length
    if useful:
        book["useful"] += 1
        book["useful_bytes"] += length
    else:
        book["wasted"] += 1
        book["wasted_bytes"] += length


@kernel
def add_pin(table: SlotTable, ledger: Ledger, slot: int) -> None:
    """One more reader of ``slot``."""
    row = table[slot]
    row["hold"] = np.int64(row["hold"]) + ONE_PIN
    if pins_of(table, slot) == 1:
        ledger[0]["pinned"] += 1


@kernel
def drop_pin(table: SlotTable, ledger: Ledger, slot: int) -> None:
    """One reader less; the caller has seen that there is one."""
    row = table[slot]
    row["hold"] = np.int64(row["hold"]) - ONE_PIN
    if pins_of(table, slot) == 0:
        ledger[0]["pinned"] -= 1


@kernel
def move_state(table: SlotTable, slots: SlotArray, source: int, target: int) -> int:
    """Move all ``slots`` from one state to another, or none of them.

    Returns -1, or the position of the first that is no slot, not in ``source``, or listed
    twice.
    """
    for i in range(len(slots)):
        slot = slots[i]
        if not 0 <= slot < len(table) or state_of(table, slot) != source:
            for j in range(i):
                set_state(table, slots[j], source)
            return i
        set_state(table, slot, target)
    return -1
