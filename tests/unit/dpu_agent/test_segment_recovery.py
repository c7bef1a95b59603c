"""The index out of bytes: what is read, what is dropped, and what survives damage."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from dpu_agent.segments.layout import (
    ENTRY,
    FIRST_BATCH,
    PAGE_BYTES,
    BatchPlace,
    EntryKind,
    SegmentState,
    Superblock,
    emit_header,
)
from dpu_agent.segments.recovery import Ask, Contents, Scan, scan
from dpu_agent.segments.segment_table import EntryList, Life, Segment, victims

LOG_ID = bytes(range(16))
SEGMENT_BYTES = 64 * PAGE_BYTES
PAYLOAD = b"x" * 5000
BATCH_BYTES = 3 * PAGE_BYTES


class Image:
    """A segment in memory: batches of one block each."""

    def __init__(self, batches: int, synced: int = 0) -> None:
        self.data = bytearray(SEGMENT_BYTES)
        for number in range(batches):
            self.batch(number, synced)
        self.asked: list[Ask] = []

    def batch(self, number: int, synced: int) -> None:
        entries = np.zeros(1, ENTRY)
        entries[0]["length"], entries[0]["checksum"] = len(PAYLOAD), zlib.crc32(PAYLOAD)
        entries[0]["kind"], entries[0]["sequence"] = EntryKind.BLOCK, number + 1
        at = FIRST_BATCH + number * BATCH_BYTES
        header = emit_header(BatchPlace(LOG_ID, 1, at, number, SEGMENT_BYTES, 1), entries, synced)
        self.data[at : at + len(header)] = header
        self.data[at + PAGE_BYTES : at + PAGE_BYTES + len(PAYLOAD)] = PAYLOAD

    def scan(self, state: SegmentState, end: int = 0) -> Contents:
        return self.run(scan(Superblock(state, SEGMENT_BYTES, LOG_ID, 1, 1, end)))

    def run(self, steps: Scan) -> Contents:
        try:
            ask = next(steps)
            while True:
                self.asked.append(ask)
                assert ask.offset % PAGE_BYTES == ask.nbytes % PAGE_BYTES == 0
                assert ask.offset + ask.nbytes <= SEGMENT_BYTES
                ask = steps.send(bytes(self.data[ask.offset : ask.offset + ask.nbytes]))
        except StopIteration as stop:
            contents: Contents = stop.value
            return contents


def sequences(contents: Contents) -> list[int]:
    return [int(batch.entries[0]["sequence"]) for batch in contents.batches]


def test_a_sealed_segment_costs_its_headers() -> None:
    image = Image(5)
    contents = image.scan(SegmentState.SEALED, FIRST_BATCH + 5 * BATCH_BYTES)
    assert sequences(contents) == [1, 2, 3, 4, 5]
    assert image.asked == [Ask(FIRST_BATCH + n * BATCH_BYTES, PAGE_BYTES) for n in range(5)]


def test_payload_is_read_only_behind_what_was_synced() -> None:
    image = Image(5, synced=FIRST_BATCH + 3 * BATCH_BYTES)
    assert sequences(image.scan(SegmentState.OPEN)) == [1, 2, 3, 4, 5]
    payloads = [ask.offset for ask in image.asked if ask.nbytes == 2 * PAGE_BYTES]
    assert payloads == [FIRST_BATCH + n * BATCH_BYTES + PAGE_BYTES for n in (3, 4)]


@pytest.mark.parametrize("torn", range(4))
def test_from_the_first_torn_batch_on_nothing_was_acknowledged(torn: int) -> None:
    image = Image(4)
    image.data[FIRST_BATCH + torn * BATCH_BYTES + PAGE_BYTES + 4999] ^= 1
    contents = image.scan(SegmentState.OPEN)
    assert sequences(contents) == list(range(1, torn + 1))
    assert (contents.torn, contents.end) == (4 - torn, FIRST_BATCH + torn * BATCH_BYTES)


def test_a_damaged_header_of_a_sealed_segment_hides_only_its_batch() -> None:
    image = Image(5)
    image.data[FIRST_BATCH + BATCH_BYTES] ^= 1
    contents = image.scan(SegmentState.SEALED, FIRST_BATCH + 5 * BATCH_BYTES)
    assert sequences(contents) == [1, 3, 4, 5]
    assert contents.damaged == 3


def test_batches_of_an_earlier_life_are_none() -> None:
    image = Image(3)
    steps = scan(Superblock(SegmentState.OPEN, SEGMENT_BYTES, LOG_ID, 2, 1))
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(bytes(image.data[FIRST_BATCH : FIRST_BATCH + PAGE_BYTES]))
    assert stop.value.value.batches == []


def test_behind_the_end_of_a_reopened_segment_only_new_batches_count() -> None:
    """Those of the last opening were not acknowledged, and may lie where new ones end."""
    image = Image(4)
    end = FIRST_BATCH + 2 * BATCH_BYTES
    steps = scan(Superblock(SegmentState.OPEN, SEGMENT_BYTES, LOG_ID, 1, 2, end))
    contents = image.run(steps)
    assert (sequences(contents), contents.end) == ([1, 2], end)


def test_lost_entries_keep_their_ordinals() -> None:
    entries = EntryList()
    entries.skip_to(40)
    assert entries.add(np.zeros(1, ENTRY), [PAGE_BYTES], Life.LIVE) == 40
    assert set(entries.rows["life"][:40]) == {Life.DEAD}


def segment(incarnation: int, live_bytes: int, state: SegmentState) -> Segment:
    return Segment(0, 0, incarnation, 1, None, state, live_bytes=live_bytes)  # type: ignore[arg-type]


def test_victims_are_sealed_and_mostly_dead_and_the_best_comes_first() -> None:
    sealed = SegmentState.SEALED
    full, young, old, empty = (
        segment(*args, sealed) for args in ((1, 60), (9, 20), (2, 20), (8, 0))
    )
    is_open = segment(3, 0, SegmentState.OPEN)
    chosen = victims([full, young, old, empty, is_open], 100, 0.5, 10)
    assert chosen == [old, empty, young]
