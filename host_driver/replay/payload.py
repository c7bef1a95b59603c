"""Bytes of a block as a pure function of its key, to verify what returns without a copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_driver.replay._payload_kernels import count_wrong, fill_words
from kvlane.capsule import KeyArray
from kvlane.errors import ConfigError
from kvlane.limits import KEY_BYTES, MAX_BLOCK_BYTES, MIN_BLOCK_BYTES

WORD_BYTES = 8
"""The generator's step; a payload is a whole number of them."""


def check_block_bytes(block_bytes: int) -> None:
    """``ConfigError`` unless payloads of this length can be made."""
    if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES or block_bytes % WORD_BYTES:
        raise ConfigError(
            f"block bytes must be a multiple of {WORD_BYTES} from {MIN_BLOCK_BYTES} to "
            f"{MAX_BLOCK_BYTES}, not {block_bytes}"
        )


def fill(blocks: NDArray[np.uint8], keys: KeyArray) -> None:
    """Write each key's payload into its row.

    ``blocks`` has shape (n, block_bytes), C-contiguous, ``block_bytes`` a multiple of 8;
    ``keys`` has shape (n, 32). ``ConfigError`` when they do not go together.
    """
    words, key_words = _as_words(blocks, keys)
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2^64; plain numpy would warn
        fill_words(words, key_words)


def verify(blocks: NDArray[np.uint8], keys: KeyArray) -> int:
    """How many rows are not their key's payload; shapes and errors as for ``fill``."""
    words, key_words = _as_words(blocks, keys)
    with np.errstate(over="ignore"):
        return int(count_wrong(words, key_words))


def _as_words(
    blocks: NDArray[np.uint8], keys: KeyArray
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Both arrays as 64-bit words; the kernels see one pair of types, so compile once."""
    if blocks.ndim != 2 or keys.shape != (len(blocks), KEY_BYTES):
        raise ConfigError(
            f"payload needs blocks (n, block_bytes) and keys (n, {KEY_BYTES}), not "
            f"{blocks.shape} and {keys.shape}"
        )
    if not blocks.flags.c_contiguous or blocks.shape[1] % WORD_BYTES:
        raise ConfigError(
            f"payload blocks must be contiguous rows of a multiple of {WORD_BYTES} bytes"
        )
    # Keys are copied: arrays made from bytes are read-only, which is another type to numba.
    return blocks.view(np.uint64), np.array(keys, order="C").view(np.uint64)
