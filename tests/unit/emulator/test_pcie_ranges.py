"""Range checks against integers that do not overflow."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.pcie import _access_kernels as access
from emulator.pcie.layout import (
    BOARD_REGIONS,
    CONTEXT,
    MAP,
    MAP_CAPACITY,
    PEER,
    REGION,
)
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.records import new_records

_LOW, _HIGH = -(1 << 63), (1 << 63) - 1
_EDGES = st.sampled_from([_LOW, _LOW + 1, -1, 0, 1, 4096, 1 << 47, 1 << 62, _HIGH - 1, _HIGH])
_NEAR = st.tuples(_EDGES, st.integers(-20, 20)).map(lambda pair: pair[0] + pair[1])
WORDS = st.one_of(st.integers(_LOW, _HIGH), _NEAR.filter(lambda word: _LOW <= word <= _HIGH))


def lies_inside(addr: int, length: int, start: int, room: int) -> bool:
    """The model: all four bounds as they would be on paper."""
    exists = start >= 0 and room >= 0 and start + room <= _HIGH
    return exists and length >= 0 and start <= addr and addr + length <= start + room


@settings(max_examples=1000, deadline=None)
@given(addr=WORDS, length=WORDS, start=WORDS, room=WORDS)
def test_any_four_words(addr: int, length: int, start: int, room: int) -> None:
    expected = lies_inside(addr, length, start, room)
    assert bool(access.is_inside(addr, length, start, room)) == expected


@settings(max_examples=500, deadline=None)
@given(
    start=st.integers(0, 1 << 47),
    room=st.integers(0, 200),
    before=st.integers(-5, 205),
    length=st.integers(-5, 205),
)
def test_ranges_about_the_edges(start: int, room: int, before: int, length: int) -> None:
    expected = lies_inside(start + before, length, start, room)
    assert bool(access.is_inside(start + before, length, start, room)) == expected


@settings(max_examples=500, deadline=None)
@given(addr=WORDS, length=WORDS, key=st.sampled_from([0, -1, 7, 7 | 1 << 20]), flags=WORDS)
def test_a_key_of_this_device_opens_its_range(addr: int, length: int, key: int, flags: int) -> None:
    board = np.zeros(BOARD_REGIONS + 8 * REGION.itemsize, np.uint8)
    region = board[BOARD_REGIONS:].view(REGION)[7]
    region["key"], region["addr"], region["length"] = 7 | 1 << 20, 1 << 40, 4096
    region["access"] = flags
    context = new_records(CONTEXT, 1)
    context.board = board.ctypes.data
    needed = int(AccessFlags.REMOTE_WRITE)
    expected = key == 7 | 1 << 20 and bool(flags & needed)
    expected = expected and lies_inside(addr, length, 1 << 40, 4096)
    assert bool(access.opens(context[0], key, addr, length, needed)) == expected


@settings(max_examples=1000, deadline=None)
@given(
    map_id=st.one_of(WORDS, st.integers(0, 3)),
    start=st.one_of(WORDS, st.integers(-1, 8193)),
    offset=st.one_of(st.integers(0, _HIGH), st.integers(0, 8193)),
    nbytes=st.integers(0, 256 << 10),
)
def test_shared_memory_is_reached_within_its_mapping(
    map_id: int, start: int, offset: int, nbytes: int
) -> None:
    """Wherever a hostile board says that a region lies."""
    maps = new_records(MAP, MAP_CAPACITY)
    maps.address[2], maps.length[2] = 1 << 40, 8192
    peer = new_records(PEER, 1)
    peer.maps = maps.ctypes.data
    found = access.mapped_at(peer[0], map_id, start, offset, nbytes)
    fits = map_id == 2 and start >= 0 and start + offset + nbytes <= 8192
    assert found == ((1 << 40) + start + offset if fits else 0)
