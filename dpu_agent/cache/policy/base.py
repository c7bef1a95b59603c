"""What an eviction policy must answer. It sees slot numbers and time, never bytes or keys."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SlotArray = NDArray[np.int64]
"""Slot numbers."""

NO_VICTIM = -2
"""What ``PolicyCalls.victim`` answers when everything in its care is pinned."""


class PolicyCalls(NamedTuple):
    """A policy as functions by address (``kvlane.calls``), for the store's kernels.

    The store calls in this order for a slot: ``inserted`` once, ``touched`` any number of
    times, ``removed`` once (evicted or deleted). A policy is a pure function of its calls.
    Arguments not named are 0. Each function answers 0 or more, as far as nothing else is said:
    below 0 it could not be carried out, as ``kvlane.calls.Callbacks`` answers for a Python function
    that has raised. The policy may then have lost track of its slots and is not called any more.
    """

    context: int
    """First argument of every function."""
    inserted: int
    """(context, slot, now ns): a block was published in this slot."""
    touched: int
    """(context, slot, now ns): it was read."""
    removed: int
    """(context, slot): it left; the slot may come back with another block."""
    victim: int
    """(context, address of the slot table): the most dispensable slot that nobody has pinned
    (``_slot_kernels.is_pinned_at``), or ``NO_VICTIM``. Choosing is not removing: the store
    confirms it."""


class EvictionPolicy(Protocol):
    """Orders published blocks by how dispensable they are."""

    @property
    def calls(self) -> PolicyCalls:
        """Valid as long as the policy lives."""

    def ordered(self) -> SlotArray:
        """All slots in its care, most dispensable first; for checkers, not fast."""

    def take_fault(self) -> BaseException | None:
        """What a call has failed with, where that is known."""
