"""The batches of a store that several threads use: one at a time, each as in ``_store_kernels``.

What a command moves is read and written outside; slots that it has pinned or reserved stay as
they are. So threads wait for each other only while they look up and keep the books.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache import _store_kernels as batches
from dpu_agent.cache._index_kernels import KeyWords
from dpu_agent.cache._slot_kernels import Ledger
from dpu_agent.cache._store_kernels import Statuses, StoreArrays
from dpu_agent.cache.policy.base import NOT_INTERESTED, SlotArray
from kvlane._ticket_kernels import enter, leave
from kvlane.jit import kernel


@kernel
def exist(arrays: StoreArrays, keys: KeyWords) -> Statuses:
    """OK or NOT_FOUND for each key."""
    enter(arrays.gate)
    result = batches.exist(arrays, keys)
    leave(arrays.gate)
    return result


@kernel
def match(arrays: StoreArrays, keys: KeyWords, now: int) -> int:
    """How many keys, from the first on, are published without a gap."""
    enter(arrays.gate)
    result = batches.match(arrays, keys, now)
    leave(arrays.gate)
    return result


@kernel
def announce(arrays: StoreArrays, keys: KeyWords, now: int) -> None:
    """Tell the policy of a request's chain, where it wants to know."""
    if arrays.policy.asked != NOT_INTERESTED:
        enter(arrays.gate)
        batches.announce(arrays, keys, now)
        leave(arrays.gate)


@kernel
def pin(arrays: StoreArrays, keys: KeyWords, now: int) -> SlotArray:
    """Pin what is published; slots, -1 where absent."""
    enter(arrays.gate)
    result = batches.pin(arrays, keys, now)
    leave(arrays.gate)
    return result


@kernel
def unpin(
    arrays: StoreArrays, slots: SlotArray, generations: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], int]:
    """Give pins back, all or none; which were still of that generation, and -1 or the
    position of the first slot that has no pin to give back."""
    enter(arrays.gate)
    result = batches.unpin(arrays, slots, generations)
    leave(arrays.gate)
    return result


@kernel
def reserve(
    arrays: StoreArrays, keys: KeyWords, lengths: NDArray[np.int64]
) -> tuple[SlotArray, Statuses, int]:
    """Slots to write (-1 where none was given), statuses, and -1 or the slot that the policy
    chose though it is pinned or not published; then it went no further."""
    enter(arrays.gate)
    result = batches.reserve(arrays, keys, lengths)
    leave(arrays.gate)
    return result


@kernel
def publish(arrays: StoreArrays, slots: SlotArray, checksums: NDArray[np.int64], now: int) -> int:
    """WRITING to PUBLISHED, all or none; -1, or the position of the first that cannot."""
    enter(arrays.gate)
    result = batches.publish(arrays, slots, checksums, now)
    leave(arrays.gate)
    return result


@kernel
def abort(arrays: StoreArrays, slots: SlotArray) -> int:
    """WRITING to FREE, all or none; -1, or the position of the first that cannot."""
    enter(arrays.gate)
    result = batches.abort(arrays, slots)
    leave(arrays.gate)
    return result


@kernel
def delete(arrays: StoreArrays, keys: KeyWords) -> Statuses:
    """Delete what is published: OK or NOT_FOUND for each key."""
    enter(arrays.gate)
    result = batches.delete(arrays, keys)
    leave(arrays.gate)
    return result


@kernel
def copy_ledger(arrays: StoreArrays, ledger: Ledger) -> None:
    """The books as they are between two batches."""
    enter(arrays.gate)
    ledger[0] = arrays.ledger[0]
    leave(arrays.gate)
