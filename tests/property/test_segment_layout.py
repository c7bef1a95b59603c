"""Segment files: what is emitted is parsed, and no bytes from outside do worse than not parse."""

from __future__ import annotations

import contextlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.segments import layout
from dpu_agent.segments.layout import (
    ENTRY,
    FIRST_BATCH,
    PAGE_BYTES,
    BatchPlace,
    EntryKind,
    SegmentState,
    Superblock,
    current_superblock,
    emit_header,
    parse_batch,
    wanted_header_bytes,
)
from kvlane.errors import StorageFormatError

LOG_ID = bytes(range(16))
PLACE = BatchPlace(LOG_ID, 7, FIRST_BATCH, 3, 1 << 30, 5)
Rows = list[tuple[bytes, int, int, int]]
U63 = st.integers(0, (1 << 63) - 1)
ENTRIES = st.lists(
    st.tuples(st.binary(min_size=32, max_size=32), U63, U63, st.integers(0, 1 << 20)), max_size=90
)


def table_of(rows: Rows) -> np.ndarray:
    entries = np.zeros(len(rows), ENTRY)
    for entry, (key, sequence, shadow, length) in zip(entries, rows, strict=True):
        entry["key"], entry["sequence"], entry["shadow"] = np.void(key), sequence, shadow
        entry["length"], entry["kind"] = length, EntryKind.BLOCK
    return entries


@given(ENTRIES)
def test_batch_round_trip(rows: Rows) -> None:
    entries = table_of(rows)
    header = emit_header(PLACE, entries, 4096)
    assert len(header) == wanted_header_bytes(header[:PAGE_BYTES]) <= layout.MAX_HEADER_BYTES
    batch = parse_batch(header, PLACE)
    assert batch is not None
    assert batch.entries.tobytes() == entries.tobytes()
    assert batch.synced_through == 4096
    assert (np.asarray(batch.payload_offsets) % PAGE_BYTES == 0).all()
    ends = batch.payload_offsets + -(-entries["length"].astype(np.int64) // 4096) * 4096
    assert batch.payload_offsets.tolist()[1:] == ends.tolist()[:-1]


@given(ENTRIES, st.data())
def test_one_wrong_bit_is_no_batch(rows: Rows, data: st.DataObject) -> None:
    header = bytearray(emit_header(PLACE, table_of(rows), 0))
    bit = data.draw(st.integers(0, 8 * len(header) - 1))
    header[bit // 8] ^= 1 << bit % 8
    assert parse_batch(bytes(header), PLACE) is None


@given(
    st.sampled_from(["log_id", "incarnation", "offset"]),
    st.integers(0, 1 << 20),
)
def test_a_batch_of_another_place_is_none(field: str, other: int) -> None:
    header = emit_header(PLACE, table_of([(bytes(32), 1, 0, 1 << 20)]), 0)
    values = {name: getattr(PLACE, name) for name in PLACE.__slots__}
    values[field] = bytes(16) if field == "log_id" else other
    place = BatchPlace(**values)
    assert (parse_batch(header, place) is None) == (place != PLACE)


@given(st.binary(max_size=3 * PAGE_BYTES), st.booleans())
def test_foreign_bytes_are_refused(noise: bytes, with_magic: bool) -> None:
    if with_magic:
        noise = b"KVSB\x01\0" + noise
    page = noise[:PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
    size = wanted_header_bytes(page)
    assert 0 <= size <= layout.MAX_HEADER_BYTES
    assert parse_batch(noise, PLACE) is None
    with contextlib.suppress(StorageFormatError):
        assert current_superblock(noise) is None


SUPERBLOCKS = st.builds(
    Superblock, st.sampled_from(SegmentState), U63, st.just(LOG_ID), U63, U63, U63
)


@given(SUPERBLOCKS.filter(lambda block: block.revision > 0), st.integers(0, PAGE_BYTES))
def test_a_torn_superblock_leaves_the_one_before(new: Superblock, kept: int) -> None:
    old = Superblock(SegmentState.OPEN, 1 << 20, LOG_ID, 5, new.revision - 1)
    pages = bytearray(2 * PAGE_BYTES)
    pages[old.page : old.page + PAGE_BYTES] = old.emit()
    pages[new.page : new.page + kept] = new.emit()[:kept]
    assert current_superblock(bytes(pages)) in (old, new)
    assert kept < 128 or current_superblock(bytes(pages)) == new


@given(st.integers(0, PAGE_BYTES))
def test_a_torn_first_superblock_is_an_unused_file(kept: int) -> None:
    first = Superblock(SegmentState.OPEN, 1 << 20, LOG_ID, 5, 1)
    pages = bytearray(2 * PAGE_BYTES)
    pages[first.page : first.page + kept] = first.emit()[:kept]
    assert current_superblock(bytes(pages)) in (None, first)
