"""Held: pieces of staging never overlap, and everything released can be allocated again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_driver.memory import Region
from host_driver.staging import ALIGNMENT_BYTES, Staging, aligned

ADDR = 1 << 20


class Arena:
    """A memory region that is only addresses."""

    def __init__(self, length: int) -> None:
        self.addr, self.length, self.lkey, self.rkey = ADDR, length, 1, 1

    def close(self) -> None:
        raise AssertionError("the arena is closed by whoever registered it")


def staging(length: int = 1024) -> Staging:
    return Staging(Region(Arena(length), owner=None))


def test_the_whole_arena_is_one_piece_and_comes_back() -> None:
    arena = staging(1024)
    assert arena.allocate(1024) == ADDR
    assert arena.allocate(1) is None
    arena.release(ADDR)
    assert arena.allocate(1024) == ADDR


def test_a_ragged_end_is_not_given_out() -> None:
    arena = staging(1024 + 63)
    assert arena.capacity_bytes == 1024
    assert arena.allocate(1025) is None


def test_the_first_gap_that_fits_is_taken() -> None:
    arena = staging(1024)
    first, second = arena.allocate(256), arena.allocate(64)
    assert (first, second) == (ADDR, ADDR + 256)
    assert first is not None
    arena.release(first)
    assert arena.allocate(300) == ADDR + 320
    assert arena.allocate(256) == ADDR


def test_a_piece_between_two_gaps_joins_them() -> None:
    arena = staging(192)
    pieces = [arena.allocate(64) for _ in range(3)]
    for index in (0, 2, 1):
        piece = pieces[index]
        assert piece is not None
        assert arena.allocate(192) is None
        arena.release(piece)
    assert arena.allocate(192) == ADDR


def test_what_was_not_allocated_cannot_be_released() -> None:
    with pytest.raises(KeyError):
        staging().release(ADDR + 64)


@given(st.lists(st.one_of(st.integers(1, 700), st.integers(-8, -1)), max_size=60))
def test_pieces_never_overlap_and_nothing_is_lost(steps: list[int]) -> None:
    """A positive step allocates so many bytes, a negative one releases some piece."""
    arena = staging(2048)
    pieces: dict[int, int] = {}
    for step in steps:
        if step > 0:
            addr = arena.allocate(step)
            if addr is None:
                continue
            assert addr % ALIGNMENT_BYTES == 0
            pieces[addr] = aligned(step)
        elif pieces:
            addr = sorted(pieces)[step % len(pieces)]
            arena.release(addr)
            del pieces[addr]
        spans = sorted((addr, addr + size) for addr, size in pieces.items())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert not spans or (spans[0][0] >= ADDR and spans[-1][1] <= ADDR + 2048)
        assert arena.used_bytes == sum(pieces.values())
    for addr in pieces:
        arena.release(addr)
    assert arena.allocate(2048) == ADDR
