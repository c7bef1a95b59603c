"""Block accesses for policies to be compared on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpu_agent.planning.accesses import Accesses, flatten
from kvlane.trace import Request


def as_accesses(names: Sequence[int], *, per_request: int = 1) -> Accesses:
    """Requests of so many blocks each, 1 ms apart."""
    starts = range(0, len(names), per_request)
    return flatten(
        Request(float(number), 1, 1, tuple(int(name) for name in names[at : at + per_request]))
        for number, at in enumerate(starts)
    )


def zipf_names(*, distinct: int, count: int, exponent: float, seed: int) -> list[int]:
    """Names 0 to ``distinct`` - 1, of which a few are frequent."""
    weights = np.arange(1, distinct + 1, dtype=np.float64) ** -exponent
    rng = np.random.default_rng(seed)
    drawn = rng.choice(distinct, size=count, p=weights / weights.sum())
    return [int(name) for name in drawn]
