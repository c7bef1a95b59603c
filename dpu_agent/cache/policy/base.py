"""What an eviction policy must answer. It sees slot numbers and time, never bytes or keys."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SlotArray = NDArray[np.int64]
"""Slot numbers."""

PinArray = NDArray[np.uint32]
"""Shape (capacity,): readers of each slot. A view of the slot table, so not contiguous."""


class EvictionPolicy(Protocol):
    """Orders published blocks by how dispensable they are. Every call takes a batch.

    The store calls in this order for a slot: ``inserted`` once, ``touched`` any number of
    times, ``removed`` once (evicted or deleted). A policy is a pure function of its calls.
    """

    def inserted(self, slots: SlotArray, now: int) -> None:
        """Blocks were published in these slots, in this order."""

    def touched(self, slots: SlotArray, now: int) -> None:
        """Blocks were read, in this order."""

    def removed(self, slots: SlotArray) -> None:
        """Blocks left; their slots may come back with other blocks."""

    def victims(self, count: int, pins: PinArray) -> SlotArray:
        """Up to ``count`` slots to evict, most dispensable first, none with ``pins[slot] > 0``.

        Choosing is not removing: the store confirms each with ``removed``.
        """
