"""Making an index, and bringing keys into the form its kernels take."""

from __future__ import annotations

from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache._index_kernels import KEY_WORDS, PRIME, SECRETS, IndexArrays, KeyWords
from kvlane.capsule import KeyArray
from kvlane.errors import ConfigError
from kvlane.limits import KEY_BYTES

MAX_CAPACITY_BLOCKS = 1 << 30
"""Slot numbers fit an entry, and positions the hash."""
SEED_BYTES = 32

assert KEY_WORDS * 8 == KEY_BYTES


def _draw_secrets(seed: int) -> NDArray[np.int64]:
    """Factors of the hash, spread from the seed; unguessable when the seed is."""
    if not 0 <= seed < 1 << (8 * SEED_BYTES):
        raise ConfigError(f"an index seed has at most {8 * SEED_BYTES} bits and is not negative")
    digest = shake_256(b"kvlane-index-v1" + seed.to_bytes(SEED_BYTES, "little"))
    drawn = np.frombuffer(digest.digest(8 * SECRETS), "<u8")
    secrets: NDArray[np.int64] = (drawn % np.uint64(PRIME)).astype(np.int64)
    return secrets


def new_index(capacity_blocks: int, seed: int) -> IndexArrays:
    """An empty index for ``capacity_blocks`` slots, at most three quarters full."""
    if not 0 < capacity_blocks <= MAX_CAPACITY_BLOCKS:
        raise ConfigError(
            f"capacity_blocks must be 1 to {MAX_CAPACITY_BLOCKS}, not {capacity_blocks}"
        )
    buckets = capacity_blocks + capacity_blocks // 3 + 1
    return IndexArrays(
        entries=np.zeros(buckets, np.uint32),
        keys=np.zeros((capacity_blocks, KEY_WORDS), np.int64),
        secrets=_draw_secrets(seed),
        slot_bits=capacity_blocks.bit_length(),
    )


def key_words(keys: KeyArray) -> KeyWords:
    """Keys as 64-bit words, always a copy: whatever buffer they came in, kernels see one
    array type and are compiled once."""
    if keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
        raise AssertionError(f"keys have shape (n, {KEY_BYTES}), not {keys.shape}")
    words: KeyWords = np.array(keys, np.uint8, order="C").view(np.int64)
    return words
