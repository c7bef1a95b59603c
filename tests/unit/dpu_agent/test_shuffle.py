"""The byte shuffle: it is a transposition, it can be undone, and it stays inside its target."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.tiers._shuffle_kernels import shuffle, unshuffle
from dpu_agent.tiers.encoded_block import ELEMENT_BYTES

GUARD = 16


class Memory:
    """Bytes between guards, at an offset from where memory is aligned."""

    def __init__(self, nbytes: int, offset: int) -> None:
        self._bytes = np.full(nbytes + 2 * GUARD + offset, 0xA5, np.uint8)
        self.inner = self._bytes[GUARD + offset : GUARD + offset + nbytes]
        self.address = int(self._bytes.ctypes.data) + GUARD + offset

    @property
    def is_intact(self) -> bool:
        inner, self.inner = self.inner.copy(), self.inner
        self.inner[:] = 0xA5
        whole = bool((self._bytes == 0xA5).all())
        self.inner[:] = inner
        return whole


@given(
    nbytes=st.integers(0, 300),
    element_bytes=st.sampled_from(ELEMENT_BYTES),
    offset=st.integers(0, 7),
    seed=st.integers(0, 1000),
)
def test_every_length_comes_back(nbytes: int, element_bytes: int, offset: int, seed: int) -> None:
    plain, shuffled = Memory(nbytes, offset), Memory(nbytes, 7 - offset)
    back = Memory(nbytes, 0)
    plain.inner[:] = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    shuffle(shuffled.address, plain.address, nbytes, element_bytes)
    unshuffle(back.address, shuffled.address, nbytes, element_bytes)
    assert np.array_equal(back.inner, plain.inner)
    assert shuffled.is_intact
    assert back.is_intact


@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 4, 5, 8, 4097, 65536])
@pytest.mark.parametrize("element_bytes", ELEMENT_BYTES)
def test_the_same_bytes_of_all_elements_lie_together(nbytes: int, element_bytes: int) -> None:
    plain, shuffled = Memory(nbytes, 0), Memory(nbytes, 0)
    plain.inner[:] = np.arange(nbytes) % 251
    shuffle(shuffled.address, plain.address, nbytes, element_bytes)
    whole = nbytes - nbytes % element_bytes
    expected = plain.inner[:whole].reshape(-1, element_bytes).T.reshape(-1)
    assert np.array_equal(shuffled.inner[:whole], expected)
    assert np.array_equal(shuffled.inner[whole:], plain.inner[whole:])
