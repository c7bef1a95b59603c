"""A trace as arrays: block after block, with a number for each distinct block."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import TraceFormatError
from kvlane.trace import Request

_NS_PER_MS = 1_000_000
_MAX_NS = 1 << 62
_MAX_TOKENS = 1 << 40
_KEY_BITS = 62


class Accesses(NamedTuple):
    """All block accesses of a trace in order; kernels take it as it is."""

    blocks: NDArray[np.int64]
    """Shape (accesses,): number of the block."""
    keys: NDArray[np.int64]
    """Shape (distinct,): what a policy sees of the key of each block."""
    request_ends: NDArray[np.int64]
    """Shape (requests,): where each request's blocks end."""
    arrivals_ns: NDArray[np.int64]
    """Shape (requests,): after the start of the trace."""
    input_tokens: NDArray[np.int64]
    """Shape (requests,): length of the prompt."""


def flatten(requests: Iterable[Request]) -> Accesses:
    """The accesses of some requests; ``TraceFormatError`` when they name no block at all."""
    names, ends, arrivals, tokens = array("Q"), array("q"), array("q"), array("q")
    for request in requests:
        names.extend(request.block_ids)
        ends.append(len(names))
        arrivals.append(int(min(request.timestamp_ms * _NS_PER_MS, _MAX_NS)))
        tokens.append(min(request.input_tokens, _MAX_TOKENS))
    if not names:
        raise TraceFormatError("no request of the trace names a block; is hash_ids always empty?")
    distinct, blocks = np.unique(np.frombuffer(names, np.uint64), return_inverse=True)
    return Accesses(
        blocks=blocks.astype(np.int64),
        keys=_keys(len(distinct)),
        request_ends=np.array(ends, np.int64),
        arrivals_ns=np.array(arrivals, np.int64),
        input_tokens=np.array(tokens, np.int64),
    )


def _keys(count: int) -> NDArray[np.int64]:
    """Distinct 62-bit words that look random, as those of hashed keys do (splitmix64)."""
    word = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    keys: NDArray[np.int64] = (word >> np.uint64(64 - _KEY_BITS)).astype(np.int64)
    return keys
