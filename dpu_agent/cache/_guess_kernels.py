"""Blocks that are brought into memory on a guess that they will be asked for.

Until somebody asks for such a block or it leaves, its slot says so; then the guess was useful or
wasted (``_slot_kernels.judge_guess``).
"""

from __future__ import annotations

import numpy as np

from dpu_agent.cache._slot_kernels import mark_guessed
from dpu_agent.cache._store_kernels import StoreArrays, publish
from kvlane._ticket_kernels import enter, leave
from kvlane.jit import kernel


@kernel
def publish_guess(arrays: StoreArrays, slot: int, checksum: int, now: int) -> bool:
    """Publish a reserved slot whose block nobody has asked for yet; False if it is none."""
    enter(arrays.gate)
    slots = np.full(1, slot, np.int64)
    succeeded = publish(arrays, slots, np.full(1, checksum, np.int64), now) < 0
    if succeeded:
        mark_guessed(arrays.table, arrays.ledger, slot)
    leave(arrays.gate)
    return bool(succeeded)
