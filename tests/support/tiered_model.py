"""What a store of two tiers may show, in dicts: which version of a block lies where, and may lie.

The model does not know what leaves when. It sees what is there after each call, and says whether
that may have come from where it was before: what appears has a source, what is gone was counted,
and what a restart finds was appended and is not dead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dpu_agent.segments.requests import Record
from tests.support.segment_blocks import key_of
from tests.support.tiered_store import NUMBERS, TieredStore, block_of, length_of

ABSENT = 0


@dataclass(frozen=True)
class Counts:
    """Why a block may be gone."""

    evicted_from_memory: int
    evicted_from_files: int
    dropped: int
    no_room: int
    damaged: int
    refused: int
    failed: int

    @classmethod
    def of(cls, store: TieredStore) -> Counts:
        figures, cold = store.mover.figures, store.cold.stats()
        return cls(
            evicted_from_memory=store.hot.stats().evicted,
            evicted_from_files=cold.evicted,
            dropped=figures.dropped,
            no_room=figures.no_room,
            damaged=figures.damaged,
            refused=cold.refused,
            failed=store.medium.failed.total(),
        )


class TieredModel:
    """Versions by number of a block; they grow, and name the bytes."""

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.files: dict[int, int] = {}
        self.rotten: set[tuple[int, int]] = set()
        """Number and version of what was damaged in the files."""
        self._last_version = 0
        self._version_of: dict[tuple[bytes, int], int] = {}
        """By key and checksum."""
        self._stored: defaultdict[int, set[int]] = defaultdict(set)
        self._dead: defaultdict[int, set[int]] = defaultdict(set)
        """Versions of which somebody was told that they are gone for good."""
        self._appended: defaultdict[int, set[int]] = defaultdict(set)
        self._doubtful: defaultdict[int, set[int]] = defaultdict(set)
        """Versions whose append failed: they may be there all the same, and nobody knows where."""
        self._newest_copy: dict[int, int] = {}
        self._loaded = 0
        self._stores = 0

    def new_version(self, number: int) -> int:
        """Of a block that is about to be stored."""
        self._last_version += 1
        _, checksum = block_of(number, self._last_version)
        assert (key_of(number), checksum) not in self._version_of, "choose other lengths"
        self._version_of[key_of(number), checksum] = self._last_version
        return self._last_version

    def named(self, key: bytes, checksum: int) -> tuple[int, int]:
        """Number and version."""
        return int.from_bytes(key, "little"), self._version_of[key, checksum]

    def note_append(self, record: Record) -> None:
        """From now on the files may have it."""
        number, version = self.named(record.key, record.checksum)
        self._appended[number].add(version)

    def note_rotten(self, key: bytes, checksum: int) -> None:
        """Bytes of a version have changed in the files."""
        self.rotten.add(self.named(key, checksum))

    def may_be_deleted(self, number: int) -> set[int]:
        """The versions that a delete which begins now ends."""
        return set(self._stored[number])

    def note_deleted(self, ended: Mapping[int, Collection[int]]) -> None:
        """Somebody was told that they are gone for good."""
        for number, versions in ended.items():
            self._dead[number].update(versions)

    def see(
        self,
        store: TieredStore,
        was: Counts,
        *,
        stored: Mapping[int, int] | None = None,
        deleted: Collection[int] = (),
        evicts: bool = False,
    ) -> None:
        """Compare what is there after a call with what was before.

        ``stored``: what the call published. ``evicts``: it may evict from memory without a copy.
        """
        self._note_doubts(store)
        stored = stored or {}
        self._stores += len(stored)
        for number, version in stored.items():
            self._stored[number].add(version)
        memory = self._look_at_memory(store, stored)
        files = self._look_at_files(store)
        self._check_losses(store, was, memory, files, deleted, evicts)
        for number in deleted:
            assert number not in memory, f"block {number} was deleted and is found in memory"
            assert number not in files, f"block {number} was deleted and is found in the files"
        self.memory, self.files = memory, files
        self._check_figures(store)

    def _look_at_memory(self, store: TieredStore, stored: Mapping[int, int]) -> dict[int, int]:
        memory = {}
        for number, slot in store.slots_of(store.hot).items():
            version = stored.get(number) or self.memory.get(number) or self.files.get(number)
            assert version, f"block {number} is in memory and was nowhere"
            payload, checksum = block_of(number, version)
            assert store.hot.arrays.table["length"][slot] == len(payload), (number, version)
            assert store.hot.arrays.table["checksum"][slot] == checksum, (number, version)
            assert store.bytes_in(slot, len(payload)) == payload, f"block {number}: wrong bytes"
            memory[number] = version
        return memory

    def _look_at_files(self, store: TieredStore) -> dict[int, int]:
        files = {}
        for number, slot in store.slots_of(store.cold).items():
            version = self.files.get(number) or self.memory.get(number)
            assert version, f"block {number} is in the files and was nowhere"
            table = store.cold.arrays.table
            assert table["length"][slot] == length_of(version), (number, version)
            assert table["checksum"][slot] == block_of(number, version)[1], (number, version)
            location = store.tier.location(slot)
            if (number, version) not in self.rotten:
                assert store.is_readable(location, number), f"block {number} is not at {location}"
            files[number] = version
            self._newest_copy[number] = version
        return files

    def _check_losses(
        self,
        store: TieredStore,
        was: Counts,
        memory: Mapping[int, int],
        files: Mapping[int, int],
        deleted: Collection[int],
        evicts: bool,
    ) -> None:
        now = Counts.of(store)
        gone = self.files.keys() - files.keys() - set(deleted)
        left = now.evicted_from_files - was.evicted_from_files + now.damaged - was.damaged
        assert len(gone) <= left, f"blocks {gone} are gone from the files, {left} have left"
        lost = self.memory.keys() - memory.keys() - files.keys() - set(deleted)
        counted = left + now.dropped - was.dropped
        counted += (now.evicted_from_memory - was.evicted_from_memory) if evicts else 0
        assert len(lost) <= counted, f"blocks {lost} are lost, {counted} are counted"

    def _check_figures(self, store: TieredStore) -> None:
        figures = store.mover.figures
        assert store.hot.stats().stored == self._stores + figures.promoted
        assert store.cold.stats().stored == self._loaded + figures.demoted
        assert figures.damaged == 0 or store.medium.failed, "nothing has failed"

    def _note_doubts(self, store: TieredStore) -> None:
        for record in store.medium.doubtful:
            number, version = self.named(record.key, record.checksum)
            self._doubtful[number].add(version)
        store.medium.doubtful.clear()

    def begin_life(self, store: TieredStore) -> None:
        """Compare what a restart has found with what it may find."""
        found: dict[int, int] = {}
        for kept in store.kept:
            number, version = self.named(kept.key, kept.checksum)
            assert number not in found, f"block {number} is there twice"
            found[number] = version
        for number in range(NUMBERS):
            self._check_found(number, found.get(number, ABSENT))
        room = store.sizes.cold_blocks
        assert store.unfit == max(len(found) - room, 0)
        self.memory, self.files = {}, found
        self._stores, self._loaded = 0, store.cold.stats().blocks
        left = store.slots_of(store.cold)
        assert len(left) == min(len(found), room)
        self.files = {number: version for number, version in found.items() if number in left}

    def _check_found(self, number: int, version: int) -> None:
        kept = self.files.get(number, ABSENT)
        if kept and (number, kept) not in self.rotten:
            assert version == kept, f"block {number}: {kept} was kept, {version} is found"
        elif version and (number, version) not in self.rotten:
            assert version in self._appended[number], f"block {number}: {version} was not appended"
            if version in self._doubtful[number]:
                return
            assert version not in self._dead[number], f"block {number}: {version} is back"
            newest = self._newest_copy.get(number, ABSENT)
            assert version >= newest, f"block {number}: {version} is back, after {newest}"
