"""The ring of a channel against a queue, and against a peer that writes what it likes."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.pcie import _ring_kernels as ring
from emulator.pcie.layout import (
    CHANNEL_BYTES,
    CHANNEL_HEAD,
    CHANNEL_TAIL,
    FRAGMENT_BYTES,
    RING_BYTES,
    RING_HEADER_BYTES,
)

_WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
_STARTS = st.integers(0, 3 * RING_BYTES // RING_HEADER_BYTES).map(lambda n: n * RING_HEADER_BYTES)
_SIZES = st.one_of(st.integers(0, 200), st.integers(FRAGMENT_BYTES - 40, FRAGMENT_BYTES))


def _channel(start: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    words = np.zeros(CHANNEL_BYTES // 8, np.int64)
    words[CHANNEL_TAIL // 8] = words[CHANNEL_HEAD // 8] = start
    return words


@settings(max_examples=60, deadline=None)
@given(start=_STARTS, steps=st.lists(st.one_of(st.none(), _SIZES), max_size=60))
def test_fragments_come_out_as_they_went_in(start: int, steps: list[int | None]) -> None:
    words = _channel(start)
    channel = int(words.ctypes.data)
    head = tail = start
    model: deque[tuple[int, bytes]] = deque()
    source, target = np.empty(FRAGMENT_BYTES, np.uint8), np.empty(FRAGMENT_BYTES, np.uint8)
    for number, nbytes in enumerate(steps):
        if nbytes is None:
            assert (ring.available(channel, head) == 0) == (not model)
            if model:
                imm, content = model.popleft()
                found = [ring.header_word(channel, head, index) for index in range(4)]
                assert found == [2, 1 << 20, len(content), imm]
                head = ring.take(channel, head, target.ctypes.data, len(content))
                assert target[: len(content)].tobytes() == content
            continue
        fits = tail - head + ring.footprint(nbytes) <= RING_BYTES
        assert ring.has_space(channel, tail, nbytes) == fits
        if fits:
            source[:nbytes] = number % 251 + 1
            tail = ring.put(channel, tail, (2, 1 << 20, number), source.ctypes.data, nbytes)
            model.append((number, source[:nbytes].tobytes()))


@settings(max_examples=200, deadline=None)
@given(start=_STARTS, word=_WORDS, nbytes=_SIZES)
def test_positions_that_cannot_be_are_not_believed(start: int, word: int, nbytes: int) -> None:
    words = _channel(start)
    channel = int(words.ctypes.data)
    words[CHANNEL_TAIL // 8] = word
    ready = ring.available(channel, start)
    assert ready == ring.BROKEN or (ready == word - start and 0 <= ready <= RING_BYTES)
    words[CHANNEL_HEAD // 8] = word
    if ring.has_space(channel, start, nbytes):
        assert 0 <= start - word <= RING_BYTES - ring.footprint(nbytes)
