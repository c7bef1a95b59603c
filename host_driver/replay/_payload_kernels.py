"""Payload from a counter-based generator: word ``j`` of a block is splitmix64(seed + j).

Compiled, a step makes 8 bytes with two multiplications and depends on no step before
it. The arithmetic is modulo 2^64; every constant is a ``uint64``, because mixing it with a
signed integer would turn it into a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvlane.jit import kernel

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1 = np.uint64(30)
_SHIFT_2 = np.uint64(27)
_SHIFT_3 = np.uint64(31)
_ZERO = np.uint64(0)


@kernel
def mix(value: Any) -> Any:
    """The output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, figure 16)."""
    value = (value ^ (value >> _SHIFT_1)) * _MULTIPLY_1
    value = (value ^ (value >> _SHIFT_2)) * _MULTIPLY_2
    return value ^ (value >> _SHIFT_3)


@kernel
def seed_of(key_words: Any) -> Any:
    """All four words of a key folded into one, so that any differing bit changes the payload."""
    seed = _ZERO
    for i in range(len(key_words)):
        seed = mix((seed + _GAMMA) ^ key_words[i])
    return seed


@kernel
def fill_words(words: Any, keys: Any) -> None:
    """Write the payload of ``keys`` (n, 4) into ``words`` (n, w); both uint64, C-contiguous."""
    for block in range(len(words)):
        state = seed_of(keys[block])
        row = words[block]
        for j in range(len(row)):
            state = state + _GAMMA
            row[j] = mix(state)


@kernel
def count_wrong(words: Any, keys: Any) -> int:
    """How many rows of ``words`` (n, w) differ anywhere from the payload of their key."""
    wrong = 0
    for block in range(len(words)):
        state = seed_of(keys[block])
        row = words[block]
        difference = _ZERO
        for j in range(len(row)):
            state = state + _GAMMA
            difference = difference | (row[j] ^ mix(state))
        if difference != _ZERO:
            wrong += 1
    return wrong
