"""A doubly linked list whose links lie in one array, 8 bytes a slot.

Row ``s`` holds the neighbours of slot ``s``. The last row is the ring's head: its NEXT is
the oldest slot, its PREV the newest; alone, it points to itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.cache._slot_kernels import is_pinned_at
from dpu_agent.cache.policy.base import NO_VICTIM
from kvlane.calls import exported
from kvlane.jit import kernel
from kvlane.rawmem import array_accessor, words_at

LINKS = np.dtype(np.int32)
CONTEXT_WORDS = 2
"""Address of the links, and the head's row."""
_links_at = array_accessor(LINKS)


@kernel
def _links(context: int) -> tuple[Any, int]:
    """The links, PREV and NEXT of each row side by side, and the head's row."""
    words = words_at(context, CONTEXT_WORDS)
    head = int(words[1])
    return _links_at(words[0], 2 * (head + 1)), head


@kernel
def _append(context: int, slot: int) -> None:
    """Link a slot that is not listed, as the newest."""
    links, head = _links(context)
    newest = np.int64(links[2 * head])
    links[2 * slot] = newest
    links[2 * slot + 1] = head
    links[2 * newest + 1] = slot
    links[2 * head] = slot


@kernel
def _unlink(context: int, slot: int) -> None:
    """Take a listed slot out."""
    links, _ = _links(context)
    older, newer = np.int64(links[2 * slot]), np.int64(links[2 * slot + 1])
    links[2 * older + 1] = newer
    links[2 * newer] = older


@kernel
def _oldest_unpinned(context: int, slot_table: int) -> int:
    """The oldest listed slot without a pin, or ``NO_VICTIM``."""
    links, head = _links(context)
    slot = np.int64(links[2 * head + 1])
    while slot != head:
        if not is_pinned_at(slot_table, slot):
            return int(slot)
        slot = np.int64(links[2 * slot + 1])
    return NO_VICTIM


def _inserted(context: int, slot: int, _now: int, _unused: int) -> int:
    _append(context, slot)
    return 0


def _touched(context: int, slot: int, _now: int, _unused: int) -> int:
    _unlink(context, slot)
    _append(context, slot)
    return 0


def _removed(context: int, slot: int, _second: int, _third: int) -> int:
    _unlink(context, slot)
    return 0


def _victim(context: int, slot_table: int, _second: int, _third: int) -> int:
    return _oldest_unpinned(context, slot_table)


INSERTED = exported(_inserted)
TOUCHED = exported(_touched)
REMOVED = exported(_removed)
VICTIM = exported(_victim)
