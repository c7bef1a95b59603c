"""Blocks as a KV cache has them, for measuring what compression makes of them.

Synthetic: what matters to a compressor is how the numbers are distributed, and that is as it is
commonly described of keys and values of transformers. Every channel has a mean and a scale of its
own, scales being lognormal; a few channels are outliers, ten and more times as large; neighbouring
tokens are alike (an autoregression). Numbers are rounded to bf16, tokens lie one behind the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHANNELS = 128
"""Of one head of a layer."""
_SCALE_SIGMA = 0.6
_OUTLIERS, _OUTLIER_FACTOR = 4, 12.0
_MEAN_PER_SCALE = 0.5
_LIKE_THE_LAST = 0.6
"""Correlation of a channel between neighbouring tokens."""


def kv_block(nbytes: int, seed: int) -> NDArray[np.uint8]:
    """bf16 numbers of whole tokens, ``nbytes`` of them; another block for another seed."""
    rng = np.random.default_rng(seed)
    scale = rng.lognormal(-0.7, _SCALE_SIGMA, CHANNELS)
    scale[rng.choice(CHANNELS, _OUTLIERS, replace=False)] *= _OUTLIER_FACTOR
    mean = rng.normal(0, _MEAN_PER_SCALE, CHANNELS) * scale
    tokens = -(-nbytes // (2 * CHANNELS))
    noise = rng.normal(0, 1, (tokens, CHANNELS))
    for token in range(1, tokens):
        fresh = np.sqrt(1 - _LIKE_THE_LAST**2) * noise[token]
        noise[token] = _LIKE_THE_LAST * noise[token - 1] + fresh
    return _as_bf16(mean + scale * noise).view(np.uint8).reshape(-1)[:nbytes]


def _as_bf16(numbers: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Rounded to the nearest, ties to even."""
    bits = numbers.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16)
