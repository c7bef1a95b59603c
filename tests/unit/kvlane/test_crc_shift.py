"""CRC-32 of parts, put together: against zlib over the whole."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from kvlane._crc_shift_kernels import appended, moved_on


@given(first=st.binary(max_size=300), second=st.binary(max_size=5000))
def test_parts_summed_apart_give_the_sum_of_the_whole(first: bytes, second: bytes) -> None:
    whole = zlib.crc32(first + second)
    assert appended(zlib.crc32(first), zlib.crc32(second), len(second)) == whole


@given(crc=st.integers(0, 0xFFFFFFFF), nbytes=st.integers(0, 1 << 39), more=st.integers(0, 1 << 38))
def test_moving_on_twice_is_moving_on_by_both(crc: int, nbytes: int, more: int) -> None:
    assert moved_on(moved_on(crc, nbytes), more) == moved_on(crc, nbytes + more)


def test_nothing_moves_nothing() -> None:
    assert moved_on(0x12345678, 0) == 0x12345678
    assert moved_on(0, 1 << 30) == 0
