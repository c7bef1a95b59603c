"""The segment log against a dict: appends, deletes, compaction, power failures and reopening."""

from __future__ import annotations

import random
import shutil
import tempfile
from functools import partial
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import ItemStatus
from dpu_agent.segments.segment_log import SegmentLog
from tests.support.faulty_volume import Faults, FaultyVolume
from tests.support.segment_blocks import Memory, append, contents, delete, fetch, payload_of

BLOCK_BYTES = 20 << 10
NUMBERS = st.integers(0, 9)
SIZES = st.sampled_from([1, 4095, 4096, 4097, BLOCK_BYTES])
ABSENT = 0


class SegmentLogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvlane-model-"))
        paths = (self.folder / "a", self.folder / "b")
        for path in paths:
            path.mkdir()
        self.config = SegmentLogConfig(
            paths, 640 << 10, segment_bytes=128 << 10, max_block_bytes=BLOCK_BYTES, direct="off"
        )
        self.version = 0
        self.index: dict[int, int] = {}
        self.model: dict[int, int] = {}
        self.possible: dict[int, set[int]] = {}
        """What a power failure may leave, where the last durable word is not the last."""
        self.open()

    def open(self) -> None:
        self.faults = Faults()
        self.log = SegmentLog.open(self.config, partial(FaultyVolume, faults=self.faults))

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.folder)

    def note(self, number: int, version: int, durable: bool) -> None:
        before = self.possible.get(number, {self.model.get(number, ABSENT)})
        self.possible[number] = {version} if durable else before | {version}
        self.model[number] = version
        if version == ABSENT:
            del self.model[number]

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=4), size=SIZES, durable=st.booleans())
    def append(self, numbers: list[int], size: int, durable: bool) -> None:
        memory = Memory(len(numbers) * (BLOCK_BYTES + 4096))
        records = []
        for place, number in enumerate(numbers):
            self.version += 1
            at = place * (BLOCK_BYTES + 4096) + place % 2 * 8
            records.append(memory.record(number, self.version, size, at))
        done = append(self.log, records, durable=durable)
        first = self.version - len(numbers) + 1
        for place, (number, status) in enumerate(zip(numbers, done.statuses, strict=True)):
            if status is ItemStatus.OK:
                self.index[number] = done.locations[place]
                self.note(number, first + place, durable)
            else:
                assert status is ItemStatus.NO_SPACE

    @rule(number=NUMBERS, durable=st.booleans())
    def delete(self, number: int, durable: bool) -> None:
        location = self.index.pop(number, None)
        if location is None:
            assert delete(self.log, [12345]).statuses == (ItemStatus.NOT_FOUND,)
            return
        assert delete(self.log, [location], durable=durable).statuses == (ItemStatus.OK,)
        self.note(number, ABSENT, durable)
        assert fetch(self.log, location, BLOCK_BYTES)[0] is ItemStatus.NOT_FOUND

    @rule(budget=st.sampled_from([1, 1 << 16, 1 << 30]))
    def compact(self, budget: int) -> None:
        before = dict(self.index)
        self.log.compact_once(budget)
        moves = dict(self.log.moved())
        for number, location in before.items():
            # What was moved is still where it was, until the caller has followed.
            status, payload = fetch(self.log, location, BLOCK_BYTES)
            assert status is ItemStatus.OK
            assert payload == payload_of(number, self.model[number], len(payload)).tobytes()
            self.index[number] = moves.get(location, location)

    @rule(power_fails=st.booleans(), seed=st.integers(0, 1 << 32))
    def reopen(self, power_fails: bool, seed: int) -> None:
        if power_fails:
            self.faults.crash(random.Random(seed))
        self.log.close()
        self.open()
        found = contents(self.log, BLOCK_BYTES)
        if power_fails:
            for number, possible in self.possible.items():
                assert found.get(number, ABSENT) in possible
        else:
            assert found == self.model
        self.model, self.possible = found, {}
        self.index = {int.from_bytes(k.key, "little"): k.location for k in self.log.records()}

    @invariant()
    def agrees_with_the_model(self) -> None:
        kept = {int.from_bytes(k.key, "little"): k for k in self.log.records()}
        assert {n: int.from_bytes(k.tag, "little") for n, k in kept.items()} == self.model
        assert {n: k.location for n, k in kept.items()} == self.index
        usage = self.log.usage()
        assert usage.records == len(self.model)
        assert usage.live_bytes == sum(-(-k.length // 4096) * 4096 for k in kept.values())
        assert usage.live_bytes + usage.dead_bytes + usage.free_bytes == usage.capacity_bytes


TestSegmentLogMachine = SegmentLogMachine.TestCase
TestSegmentLogMachine.settings = settings(max_examples=25, stateful_step_count=30)
