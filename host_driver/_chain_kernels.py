"""Following many key chains at once: which to ask for next, and how far each has come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel
from kvlane.limits import MAX_KEYS_PER_CAPSULE

Words = NDArray[np.int64]


@kernel
def list_chains(ends: Words, going: Words) -> int:
    """Write the chains that have keys into ``going``; how many. Chains follow each other."""
    count = 0
    start = 0
    for chain in range(len(ends)):
        if ends[chain] > start:
            going[count] = chain
            count += 1
        start = ends[chain]
    return count


@kernel
def write_spans(ends: Words, matched: Words, going: Words, spans: Words) -> None:
    """The next capsule's keys of each of the chains at the head of ``going``, a row each."""
    for i in range(len(spans)):
        chain = going[i]
        start = matched[chain]
        if chain > 0:
            start += ends[chain - 1]
        spans[i, 0] = start
        spans[i, 1] = min(start + MAX_KEYS_PER_CAPSULE, ends[chain])


@kernel
def follow_chains(ends: Words, matched: Words, going: Words, spans: Words, results: Words) -> int:
    """Add what was matched of each span, and leave in ``going`` the chains that may go on; how
    many. A result below 0 says that no answer has come."""
    count = 0
    for i in range(len(spans)):
        chain = going[i]
        came = max(results[i], 0)
        matched[chain] += came
        if came == spans[i, 1] - spans[i, 0] and spans[i, 1] < ends[chain]:
            going[count] = chain
            count += 1
    return count
