"""The tiered store against a dict: evictions, compaction, faults, power failures, many readers.

All parts are the real ones: memory with its block store, the mover, the segment log and its files.
Only threads are missing (``tests.support.turns``): jobs of the log are done when a rule says so,
in an order that it says, and other things happen while somebody waits. So what a thread would
decide by chance is part of an example, and an example that fails does so again:

    pytest tests/property/test_tiered_store_model.py
    pytest tests/property/test_tiered_store_model.py --hypothesis-profile explore   # 50 times more

Hypothesis prints the shortest sequence of rules that it has found. What may be there is a set
only after a crash: a block that was not acknowledged, or evicted, may be found or not.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dpu_agent.cache.invariants import check_invariants
from dpu_agent.segments.layout import PAGE_BYTES, SegmentState
from dpu_agent.segments.requests import Kept
from dpu_agent.tiers.promotion import Wish
from kvlane.capsule import KeyStatus
from tests.support.tiered_model import Counts, TieredModel
from tests.support.tiered_store import (
    NUMBERS,
    Sizes,
    TieredStore,
    block_of,
    config_for,
    keys_of,
    length_of,
    slots,
)

NUMBER = st.integers(0, NUMBERS - 1)
SEVERAL = st.lists(NUMBER, min_size=1, max_size=4, unique=True)
SEED = st.integers(0, 1 << 16)
POLICIES = st.sampled_from(["lru", "s3_fifo", "reuse"])
COLD_BLOCKS = st.sampled_from([NUMBERS + 1, 3])
FAULTS = st.sampled_from(["fail_writes", "fail_reads", "fail_syncs", "no_space", "no_new_files"])
YOUNG = 4
"""A life that is shorter, in rounds of changes, is not worth a restart."""
SETTLED_AFTER = 60
"""Rounds; in each a deletion for which there was no room is tried again."""


@dataclass(eq=False)
class Held:
    """A block that somebody reads, for as long as it takes."""

    number: int
    version: int
    slot: int
    generation: int


@dataclass(eq=False)
class Writer:
    """A block that a host is writing into memory."""

    number: int
    version: int
    slot: int


@dataclass(eq=False)
class Request:
    """Something that is told once it is done."""

    numbers: list[int]
    before: Counts
    expected: set[int] = field(default_factory=set)
    """Blocks that it concerns, unless something happens to them."""
    told: int = 0
    succeeded: bool = True
    wish: Wish | None = None
    examine: Callable[[Request], None] = lambda _: None
    """What is to hold of it as soon as it has been told."""

    def tell(self, *_: object) -> None:
        self.told += 1

    def tell_success(self, succeeded: bool) -> None:
        self.told, self.succeeded = self.told + 1, succeeded

    def tell_wish(self, wish: Wish) -> None:
        self.told, self.wish = self.told + 1, wish


class TieredStoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.ERROR)  # What is injected is reported, and expected.
        # Faults say what is durable, so there is no need to wait for a device.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="kvlane-tiers-", dir=memory))
        self.config = config_for(self.folder)
        self.model = TieredModel()

    @initialize(hot=st.integers(2, 4), cold=COLD_BLOCKS, policy=POLICIES, cold_policy=POLICIES)
    def begin(self, hot: int, cold: int, policy: str, cold_policy: str) -> None:
        self.open(Sizes(hot, cold, policy, cold_policy))

    def open(self, sizes: Sizes) -> None:
        self.store = TieredStore(self.config, sizes, self.model.note_append)
        self.model.begin_life(self.store)
        self.readers: list[Held] = []
        self.writers: list[Writer] = []
        self.open_requests: list[Request] = []
        self.granted: list[tuple[Wish, list[Held]]] = []
        self.age = 0
        """Rounds of changes."""
        self.is_troubled = False
        """Something was made to fail in this life."""
        self.look(Counts.of(self.store))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.log.close()
        shutil.rmtree(self.folder)
        logging.disable(logging.NOTSET)

    # What is checked after each call

    def look(self, was: Counts, **changes: object) -> None:
        store = self.store
        check_invariants(store.hot)
        check_invariants(store.cold)
        self.model.see(store, was, **changes)  # type: ignore[arg-type]
        for held in self.all_held():
            payload, _ = block_of(held.number, held.version)
            assert store.hot.arrays.table["generation"][held.slot] == held.generation
            assert store.bytes_in(held.slot, len(payload)) == payload, "changed under a reader"
        for request in [each for each in self.open_requests if each.told]:
            assert request.told == 1, "told twice"
            self.open_requests.remove(request)
            request.examine(request)

    def all_held(self) -> Iterable[Held]:
        yield from self.readers
        for _, held in self.granted:
            yield from held

    def counts(self) -> Counts:
        return Counts.of(self.store)

    def request(self, numbers: list[int], examine: Callable[[Request], None]) -> Request:
        expected = self.model.memory.keys() | self.model.files.keys()
        request = Request(numbers, self.counts(), expected & set(numbers), examine=examine)
        self.open_requests.append(request)
        return request

    # Hosts

    @rule(numbers=SEVERAL)
    def store_blocks(self, numbers: list[int]) -> None:
        self.age += 1
        for number in numbers:
            writer = self.reserve(number)
            if writer is not None:
                self.publish(writer)

    @rule(number=NUMBER)
    def begin_to_store(self, number: int) -> None:
        writer = self.reserve(number)
        if writer is not None:
            self.writers.append(writer)

    @precondition(lambda self: self.writers)
    @rule(which=SEED, succeeds=st.booleans())
    def end_to_store(self, which: int, succeeds: bool) -> None:
        writer = self.writers.pop(which % len(self.writers))
        if succeeds:
            self.publish(writer)
        else:
            self.store.hot.abort(slots(writer.slot))

    def reserve(self, number: int) -> Writer | None:
        was = self.counts()
        version = self.model.new_version(number)
        lengths = np.array([length_of(version)])
        found, statuses = self.store.hot.reserve(keys_of(number), lengths)
        assert statuses[0] in (KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NO_SPACE)
        self.look(was, evicts=True)
        if statuses[0] != KeyStatus.OK:
            return None
        assert number not in self.model.memory
        self.store.put(int(found[0]), block_of(number, version)[0])
        return Writer(number, version, int(found[0]))

    def publish(self, writer: Writer) -> None:
        was = self.counts()
        checksum = block_of(writer.number, writer.version)[1]
        checksums = np.array([checksum], np.uint32)
        self.store.hot.publish(slots(writer.slot), checksums, self.store.tick())
        self.look(was, stored={writer.number: writer.version})

    @rule(number=NUMBER)
    def begin_to_read(self, number: int) -> None:
        slot = int(self.store.hot.pin(keys_of(number), self.store.tick())[0])
        assert (slot >= 0) == (number in self.model.memory)
        if slot >= 0:
            self.readers.append(self.held(slot))
            assert self.readers[-1].number == number
            assert self.readers[-1].version == self.model.memory[number]

    def held(self, slot: int) -> Held:
        """What lies in a slot that is pinned; it may have been deleted meanwhile."""
        key, checksum, generation = self.store.block_at(slot)
        return Held(*self.model.named(key, checksum), slot, generation)

    @precondition(lambda self: self.readers)
    @rule(which=SEED)
    def end_to_read(self, which: int) -> None:
        reader = self.readers.pop(which % len(self.readers))
        generations = np.array([reader.generation], np.uint32)
        assert self.store.hot.unpin(slots(reader.slot), generations).all()
        self.look(self.counts())

    @rule(numbers=SEVERAL)
    def want(self, numbers: list[int]) -> None:
        was = self.counts()
        request = self.request(numbers, self.examine_wish)
        request.expected -= {writer.number for writer in self.writers}
        self.store.mover.want(keys_of(*numbers), request.tell_wish, self.store.tick())
        self.look(was, evicts=True)

    @precondition(lambda self: self.model.files.keys() - self.model.memory.keys())
    @rule(which=SEED, choices=st.lists(SEED, max_size=8))
    def recall(self, which: int, choices: list[int]) -> None:
        """Want what has left memory."""
        colder = sorted(self.model.files.keys() - self.model.memory.keys())
        first = which % len(colder)
        self.want(colder[first : first + 2])
        self.step(choices)

    def examine_wish(self, request: Request) -> None:
        assert request.wish is not None
        held = [self.held(slot) for slot, _ in request.wish.pins]
        assert [each.generation for each in held] == [each for _, each in request.wish.pins]
        assert len(set(request.wish.pins)) == len(held)
        now, was = self.counts(), request.before
        missing = request.expected - {each.number for each in held}
        counted = now.no_room + now.damaged + now.evicted_from_files
        counted -= was.no_room + was.damaged + was.evicted_from_files
        assert len(missing) <= counted, f"blocks {missing} have not come, {counted} are counted"
        self.granted.append((request.wish, held))

    @precondition(lambda self: self.granted)
    @rule(which=SEED)
    def end_wish(self, which: int) -> None:
        wish, _ = self.granted.pop(which % len(self.granted))
        self.store.mover.end(wish)
        self.look(self.counts())

    @rule(numbers=SEVERAL)
    def keep(self, numbers: list[int]) -> None:
        was = self.counts()
        request = self.request(numbers, self.examine_kept)
        self.store.mover.keep(keys_of(*numbers), request.tell)
        self.look(was)

    def examine_kept(self, request: Request) -> None:
        now, was = self.counts(), request.before
        missing = request.expected - self.model.files.keys()
        reasons = now.failed + now.refused + now.evicted_from_files + now.damaged + now.dropped
        reasons -= was.failed + was.refused + was.evicted_from_files + was.damaged + was.dropped
        assert not missing or reasons, f"blocks {missing} are not kept, and nothing has failed"

    @rule(numbers=SEVERAL)
    def delete(self, numbers: list[int]) -> None:
        was = self.counts()
        ended = {number: self.model.may_be_deleted(number) for number in numbers}
        for request in self.open_requests:
            request.expected -= set(numbers)

        def examine(request: Request) -> None:
            if request.succeeded:
                self.model.note_deleted(ended)
            else:
                assert self.counts().failed > request.before.failed

        request = self.request(numbers, examine)
        self.store.hot.delete(keys_of(*numbers))
        self.store.mover.delete(keys_of(*numbers), request.tell_success, self.store.tick())
        self.look(was, deleted=numbers)

    @rule(numbers=SEVERAL, rounds=st.integers(1, 10), seed=SEED)
    def churn(self, numbers: list[int], rounds: int, seed: int) -> None:
        """Blocks come and go, so that segments fill up with what is dead and are compacted."""
        rng = random.Random(seed)
        for _ in range(rounds):
            self.age += 1
            some = rng.sample(numbers, rng.randint(1, len(numbers)))
            for call in (self.delete, self.store_blocks, self.keep):
                if rng.random() < 0.8:
                    call(some)
                self.step([rng.randrange(1 << 16) for _ in range(rng.randrange(12))])
            if rng.random() < 0.3:
                self.compact(1 << 30, rng.randrange(1 << 16))

    # Whoever works in the background

    @rule(choices=st.lists(SEED, max_size=8))
    def step(self, choices: list[int]) -> None:
        """The log does some of its work, then the mover takes in what was done."""
        self.work(choices)
        self.step_once()

    @rule(choices=st.lists(SEED, min_size=1, max_size=8))
    def work(self, choices: list[int]) -> None:
        for choice in choices:
            self.store.turns.perform(choice)

    def step_once(self) -> bool:
        was = self.counts()
        worked = self.store.mover.step(self.store.tick())
        self.look(was)
        return worked

    @rule(budget=st.sampled_from([1, 1 << 14, 1 << 30]), seed=SEED)
    def compact(self, budget: int, seed: int) -> None:
        """Others act meanwhile."""
        rng = random.Random(seed)
        turns = self.store.turns
        turns.choose = lambda: rng.randrange(1 << 16)
        turns.aside = lambda: self.something_else(rng)
        try:
            self.store.log.compact_once(budget)
        finally:
            turns.aside, turns.choose = (lambda: False), (lambda: 0)

    def something_else(self, rng: random.Random) -> bool:
        choice = rng.randrange(10)
        if choice < 2:
            self.step_once()
        elif choice == 2:
            self.want([rng.randrange(NUMBERS)])
        elif choice == 3:
            self.delete([rng.randrange(NUMBERS)])
        elif choice == 4:
            self.keep([rng.randrange(NUMBERS)])
        return choice < 5

    @rule()
    def settle(self) -> None:
        """All ends that can; nobody waits for ever."""
        self.end_all()
        self.audit()

    def end_all(self) -> None:
        store = self.store
        for turn in range(SETTLED_AFTER):
            while store.turns.perform():
                pass
            if not self.step_once() and not store.turns.perform():
                break
            if turn % 4 == 3 and store.is_full:
                store.is_full = False
                store.log.compact_once(1 << 30)
        assert not self.open_requests, "not told"

    def audit(self) -> None:
        """What holds when nothing is under way."""
        store = self.store
        store.faults.fail_reads = 0
        hot, cold = store.hot.stats(), store.cold.stats()
        held = {each.slot for each in self.all_held()}
        assert (hot.pinned, hot.writing) == (len(held), len(self.writers))
        assert (cold.pinned, cold.writing) == (0, 0)
        condemned = held - set(store.slots_of(store.hot).values())
        assert store.hot.free_blocks + hot.blocks + hot.writing + len(condemned) == (
            hot.capacity_blocks
        )
        for number, slot in store.slots_of(store.cold).items():
            version = self.model.files[number]
            payload = store.read_files(store.tier.location(slot))
            if payload is None:
                assert (number, version) in self.model.rotten, f"block {number} cannot be read"
            else:
                assert payload == block_of(number, version)[0], f"block {number}: wrong bytes"
        if not self.is_troubled and not self.model.rotten:
            kept = {each.location for each in store.log.records()}
            known = {store.tier.location(s) for s in store.slots_of(store.cold).values()}
            assert kept == known, "the files and what is known of them differ"
            usage = store.log.usage()
            assert usage.live_bytes + usage.dead_bytes + usage.free_bytes == usage.capacity_bytes

    # Whatever goes wrong

    @precondition(lambda self: self.age >= 2 * YOUNG and not self.is_troubled)
    @rule(fault=FAULTS, times=st.integers(1, 3))
    def fail(self, fault: str, times: int) -> None:
        """The next writes, reads or syncs fail; or the disk is full of something else."""
        self.is_troubled = True
        faults = self.store.faults
        if fault == "no_new_files":
            faults.no_new_files = not faults.no_new_files
        else:
            faults.error = errno.ENOSPC if fault == "no_space" else errno.EIO
            setattr(faults, "fail_writes" if fault == "no_space" else fault, times)

    @rule(which=SEED, at=SEED, is_noticed=st.booleans())
    def rot(self, which: int, at: int, is_noticed: bool) -> None:
        """A byte changes in a sealed segment, where no restart takes it for a torn write."""
        if not self.sealed():
            self.churn([0, 1, 2, 3], 4, which)
        sealed = self.sealed()
        if not sealed:
            return
        self.is_troubled = True
        kept, path, offset = sealed[which % len(sealed)]
        self.model.note_rotten(kept.key, kept.checksum)
        with path.open("r+b") as file:
            file.seek(offset + at % kept.length)
            changed = bytes([file.read(1)[0] ^ 0x40])
            file.seek(offset + at % kept.length)
            file.write(changed)
        if is_noticed:
            self.settle()

    def sealed(self) -> list[tuple[Kept, Path, int]]:
        """Records of sealed segments, and where their bytes are."""
        found = []
        for kept in self.store.log.records():
            place = self.store.log._log.table.find(kept.location)
            assert place is not None
            segment, entry = place
            if segment.state is SegmentState.SEALED and not segment.sealing:
                directory = self.config.directories[segment.directory]
                path = directory / f"segment-{segment.number:06d}"
                found.append((kept, path, int(entry["page"]) * PAGE_BYTES))
        return found

    @precondition(lambda self: self.age >= YOUNG)
    @rule(hot=st.integers(2, 4), cold=COLD_BLOCKS)
    def restart(self, hot: int, cold: int) -> None:
        self.store.log.close()
        sizes = self.store.sizes
        self.open(Sizes(hot, cold, sizes.hot_policy, sizes.cold_policy))

    @precondition(lambda self: self.age >= YOUNG)
    @rule(numbers=SEVERAL, seed=SEED, hot=st.integers(2, 4), cold=COLD_BLOCKS)
    def crash(self, numbers: list[int], seed: int, hot: int, cold: int) -> None:
        """The power fails in the midst of something."""
        rng = random.Random(seed)
        for call in rng.sample([self.store_blocks, self.keep, self.delete, self.delete], 4):
            call(numbers)
            for _ in range(rng.randrange(4)):
                self.step([rng.randrange(1 << 16) for _ in range(rng.randrange(4))])
        self.store.faults.crash(rng)
        self.restart(hot, cold)


TestTieredStore = TieredStoreMachine.TestCase
TestTieredStore.settings = settings(stateful_step_count=40)
