"""Blocks that come and go compressed while compaction moves them: each is found with its bytes."""

from __future__ import annotations

import random
import select
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import Completion, ItemStatus, Read
from dpu_agent.segments.segment_log import SegmentLog
from dpu_agent.tiers.block_codec import BlockCodec
from dpu_agent.tiers.compressed_medium import CompressedMedium
from dpu_agent.tiers.recent_moves import RecentMoves
from tests.support.cold_payloads import BlockMemory, noise, numbers
from tests.support.segment_blocks import TIMEOUT_S

BLOCK_BYTES = 300_000
SEGMENT_BYTES, SEGMENTS = 2 << 20, 16
TOGETHER = 8
"""Blocks of one append: several writes of the log."""
MOST = 24
"""Blocks that live, less than half of what the files hold."""
TURNS = 60


class User:
    """Knows where blocks are as a mover does: by completions, and by what was moved."""

    def __init__(self, medium: CompressedMedium) -> None:
        self.medium = medium
        self.memory = BlockMemory(MOST, BLOCK_BYTES)
        self.places: dict[int, int] = {}
        self.moves = 0
        self._done: dict[int, Completion] = {}
        self._pending: dict[int, list[int]] = {}
        self._recent = RecentMoves()

    def step(self) -> None:
        while True:
            moved = self.medium.moved()
            for done in self.medium.poll():
                self._done[done.ticket] = done
                for number, place in zip(
                    self._pending.pop(done.ticket, []), done.locations, strict=False
                ):
                    self.places[number] = self._recent.newest(place)
            if not moved:
                return
            self.moves += len(moved)
            new_of = dict(moved)
            self._recent.tell(moved)
            for number, place in self.places.items():
                while self.places[number] in new_of:
                    self.places[number] = new_of[self.places[number]]
                assert place

    def wait(self, ticket: int) -> Completion:
        while ticket not in self._done:
            assert select.select([self.medium], [], [], TIMEOUT_S)[0]
            self.step()
        done = self._done.pop(ticket)
        assert set(done.statuses) == {ItemStatus.OK}
        return done

    def append(self, first: int) -> None:
        records = [
            self.memory.record(slot, first + slot, block_of(first + slot))
            for slot in range(TOGETHER)
        ]
        turn = self._recent.begin()
        ticket = self.medium.append(records, durable=True)
        self._pending[ticket] = list(range(first, first + TOGETHER))
        self.wait(ticket)
        self._recent.end(turn)

    def delete(self, doomed: list[int]) -> None:
        self.wait(self.medium.delete([self.places.pop(n) for n in doomed], durable=False))

    def check(self, wanted: list[int]) -> None:
        reads = [
            Read(self.places[n], self.memory.address(slot), len(block_of(n)))
            for slot, n in enumerate(wanted)
        ]
        self.wait(self.medium.read(reads))
        for slot, number in enumerate(wanted):
            block = block_of(number)
            assert self.memory.content(slot, len(block)) == block.tobytes()


def block_of(number: int) -> np.ndarray:
    kind = noise if number % 3 == 0 else numbers
    return kind(number, BLOCK_BYTES - 5_000 * (number % 20))


@pytest.mark.parametrize("compresses", [True, False])
def test_churn(tmp_path: Path, compresses: bool) -> None:
    config = SegmentLogConfig(
        (tmp_path,), SEGMENTS * SEGMENT_BYTES, SEGMENT_BYTES, max_block_bytes=BLOCK_BYTES
    )
    log = SegmentLog.open(config)
    medium = CompressedMedium(
        log,
        partial(BlockCodec, 1, 2, BLOCK_BYTES),
        compresses=compresses,
        block_bytes=BLOCK_BYTES,
        threads=2,
    )
    ended = threading.Event()

    def compact() -> None:
        while not ended.wait(0.001):
            log.compact_once(4 << 20)

    thread = threading.Thread(target=compact)
    thread.start()
    user, rng = User(medium), random.Random(1)
    try:
        for turn in range(TURNS):
            user.append(turn * TOGETHER)
            there = sorted(user.places)
            user.check(rng.sample(there, min(8, len(there))))
            if len(there) > MOST - TOGETHER:
                user.delete(rng.sample(there, TOGETHER))
        user.check(sorted(user.places))
        assert user.moves > 0
    finally:
        ended.set()
        thread.join()
        medium.close()
        log.close()
