"""Orphans: blocks that lie somewhere while one before them in their chain lies nowhere.

No prefix leads to them, so nothing can be served from the room that they take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.planning._tier_state_kernels import block_at, hierarchy_at
from kvlane.jit import kernel

_UNKNOWN, _REACHED, _ORPHAN = 0, 1, 2


@kernel
def _verdict_on(blocks: int, start: int, verdicts: NDArray[np.int8]) -> int:
    """Whether an unbroken chain leads to a block, by those before it up to one that is known."""
    block = start
    while True:
        record = block_at(blocks, block)
        if record.copies == 0:
            return _ORPHAN
        if verdicts[block] != _UNKNOWN:
            return int(verdicts[block])
        if record.parent < 0:
            return _REACHED
        block = np.int64(record.parent)


@kernel
def count_orphans(state: int) -> tuple[int, int]:
    """Blocks that lie in some tier, and the orphans among them; a look or two at each block."""
    hierarchy = hierarchy_at(state, 0)
    blocks = hierarchy.blocks
    verdicts = np.zeros(hierarchy.block_count, np.int8)
    present, orphaned = 0, 0
    for start in range(hierarchy.block_count):
        if block_at(blocks, start).copies == 0:
            continue
        verdict = _verdict_on(blocks, start, verdicts)
        block = start
        while block >= 0 and verdicts[block] == _UNKNOWN and block_at(blocks, block).copies > 0:
            verdicts[block] = verdict
            block = np.int64(block_at(blocks, block).parent)
        present += 1
        orphaned += 1 if verdict == _ORPHAN else 0
    return present, orphaned
