"""A doubly linked list whose links lie in one array, 8 bytes a slot.

Row ``s`` holds the neighbours of slot ``s``. The last row is the ring's head: its NEXT is
the oldest slot, its PREV the newest; alone, it points to itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.policy.base import PinArray, SlotArray
from kvlane.jit import kernel

PREV, NEXT = 0, 1
Links = NDArray[np.int32]
"""Shape (capacity + 1, 2)."""


@kernel
def _append_one(links: Links, slot: int) -> None:
    head = len(links) - 1
    newest = links[head, PREV]
    links[slot, PREV] = newest
    links[slot, NEXT] = head
    links[newest, NEXT] = slot
    links[head, PREV] = slot


@kernel
def _unlink_one(links: Links, slot: int) -> None:
    older, newer = links[slot, PREV], links[slot, NEXT]
    links[older, NEXT] = newer
    links[newer, PREV] = older


@kernel
def append(links: Links, slots: SlotArray) -> None:
    """Link slots that are not listed, each as the newest."""
    for i in range(len(slots)):
        _append_one(links, slots[i])


@kernel
def renew(links: Links, slots: SlotArray) -> None:
    """Make each listed slot the newest."""
    for i in range(len(slots)):
        _unlink_one(links, slots[i])
        _append_one(links, slots[i])


@kernel
def unlink(links: Links, slots: SlotArray) -> None:
    """Take listed slots out."""
    for i in range(len(slots)):
        _unlink_one(links, slots[i])


@kernel
def oldest_unpinned(links: Links, count: int, pins: PinArray) -> SlotArray:
    """Up to ``count`` listed slots without a pin, oldest first."""
    head = len(links) - 1
    found = np.empty(min(count, head), np.int64)
    n = 0
    slot = np.int64(links[head, NEXT])
    while n < len(found) and slot != head:
        if pins[slot] == 0:
            found[n] = slot
            n += 1
        slot = np.int64(links[slot, NEXT])
    return found[:n]
