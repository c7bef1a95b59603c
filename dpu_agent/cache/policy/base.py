"""What an eviction policy must answer. It sees slot numbers, time and what
stands for a key, never bytes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvlane.calls import Exported

SlotArray = NDArray[np.int64]
"""Slot numbers."""

NO_VICTIM = -2
"""What ``PolicyCalls.victim`` answers when everything in its care is pinned."""

NOT_WORTH_A_SLOT = 1
"""What ``PolicyCalls.missed`` answers for a block that should not be taken in."""

NOT_INTERESTED = 0
"""``PolicyCalls.asked`` of a policy that need not know of requests."""


class PolicyCalls(NamedTuple):
    """A policy as functions by address (``kvlane.calls``), for the store's kernels.

    The store calls ``missed`` for a key that it is to take in, then ``victim`` and ``removed`` if
    it is full, and ``inserted`` once the block is there, which may be much later or, if the write
    is given up, never. For a slot that is ``inserted`` once, ``touched`` any number of times,
    ``removed`` once (evicted or deleted). A policy is a pure function of its calls. A key is shown
    as 62 bits (``_index_kernels.identity_of``), enough to recognise what was evicted before.
    Arguments not named are 0. Each function answers 0 or more, as far as nothing else is said:
    below 0 it could not be carried out, as ``kvlane.calls.Callbacks`` answers for a Python function
    that has raised. The policy may then have lost track of its slots and is not called any more.
    """

    context: int
    """First argument of every function."""
    inserted: int
    """(context, slot, key, now ns): a block was published in this slot."""
    touched: int
    """(context, slot, now ns): it was read."""
    removed: int
    """(context, slot, 1 if evicted or 0 if deleted): it left; the slot may come back with another
    block."""
    missed: int
    """(context, key): a block that is not here will be written, unless the answer is
    ``NOT_WORTH_A_SLOT``."""
    victim: int
    """(context, address of the slot table): the most dispensable slot that nobody has pinned
    (``_slot_kernels.is_pinned_at``), or ``NO_VICTIM``. Choosing is not removing: the store
    confirms it."""
    asked: int = NOT_INTERESTED
    """(context, address of keys, how many, now ns): a request has this chain, from its start. What
    of it is here will be touched, the rest missed, if at all, after this."""


class PolicyFunctions(NamedTuple):
    """A compiled policy's functions, as its kernel module exports them."""

    inserted: Exported
    touched: Exported
    removed: Exported
    missed: Exported
    victim: Exported
    asked: Exported | None = None

    def on(self, context: NDArray[np.void]) -> PolicyCalls:
        """The functions over a policy's state, which the caller keeps alive."""
        return PolicyCalls(
            context=int(context.ctypes.data),
            inserted=self.inserted.address,
            touched=self.touched.address,
            removed=self.removed.address,
            missed=self.missed.address,
            victim=self.victim.address,
            asked=self.asked.address if self.asked else NOT_INTERESTED,
        )


class EvictionPolicy(Protocol):
    """Orders published blocks by how dispensable they are."""

    @property
    def calls(self) -> PolicyCalls:
        """Valid as long as the policy lives."""

    def ordered(self) -> SlotArray:
        """All slots in its care, most dispensable first; for checkers, not fast."""

    def take_fault(self) -> BaseException | None:
        """What a call has failed with, where that is known."""
