"""What the policy ``reuse`` knows of a request besides its age: features below 16.

How often the conversation was continued and the pause before, how long the chain is and how much
of it is new. Of a shared row: how often it was shared, the pause before, and its length.
"""

from __future__ import annotations

import math

from dpu_agent.cache.policy._reuse_history_kernels import traits_of
from dpu_agent.cache.policy._reuse_layout_kernels import TAIL_STRATUM, VALUES
from kvlane.jit import kernel

NO_PAUSE = -1.0
_LONG_MS = 180_000.0
_SHORT_MS = 60_000.0
_OFTEN = 8
_SHARED_FEW, _SHARED_OFTEN = TAIL_STRATUM + 1, TAIL_STRATUM + 2


@kernel
def _size_class(count: int) -> int:
    """1, 2, 3, 4, then in steps of a half more."""
    if count <= 4:
        return max(0, count)
    return min(int(4 + math.log(count / 4.0) / math.log(1.5)), VALUES - 1)


@kernel
def _pause_class(pause_ms: float) -> int:
    """0 without one, 1 below 250 ms, then in steps of twice as long."""
    if pause_ms < 0.0:
        return 0
    if pause_ms < 250.0:
        return 1
    return min(2 + int(math.log(pause_ms / 250.0) / math.log(2.0)), VALUES - 2)


@kernel
def body_traits(turn: int, pause_ms: float, chain_blocks: int, new_blocks: int) -> int:
    """Of what a request has for itself."""
    stratum = 0
    if turn > 0:
        stratum = 1 if pause_ms < _SHORT_MS else (2 if pause_ms < _LONG_MS else 3)
    return int(
        traits_of(
            stratum,
            _size_class(turn),
            _pause_class(pause_ms),
            _size_class(chain_blocks),
            _size_class(new_blocks),
        )
    )


@kernel
def tail_traits(turn: int, chain_blocks: int, new_blocks: int) -> int:
    """Of the last block of a request, which may not be full yet."""
    size = _size_class(chain_blocks)
    return int(traits_of(TAIL_STRATUM, min(turn, 1), max(0, min(new_blocks, 3)), size, 0))


@kernel
def shared_traits(times: int, pause_ms: float, blocks: int) -> int:
    """Of what several requests have in common."""
    stratum = _SHARED_FEW if times < _OFTEN else _SHARED_OFTEN
    size = _size_class(blocks)
    return int(traits_of(stratum, _size_class(times), _pause_class(pause_ms), size, 0))
