"""Any sequence of calls: the store answers as the plain model does, and its parts agree.

The model has no slots. The machine remembers which slot the store gave for which block,
and so checks that no slot in use is ever given again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dpu_agent.cache.invariants import check_invariants
from dpu_agent.cache.policy.lru import LruPolicy
from dpu_agent.cache.store import BlockStore
from kvlane.capsule import KeyStatus
from kvlane.keys import pack_keys
from tests.support.blocks import random_keys
from tests.support.store_model import ModelBlock, StoreModel

CAPACITY = 5
BLOCK_BYTES = 64
KEYS = [key.tobytes() for key in random_keys(9)]
BATCHES = st.lists(st.sampled_from(KEYS), max_size=7)
LENGTHS = st.sampled_from([1, 17, BLOCK_BYTES] * 3 + [0, BLOCK_BYTES + 1])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = BlockStore(
            capacity_blocks=CAPACITY, block_bytes=BLOCK_BYTES, policy=LruPolicy(CAPACITY), seed=1
        )
        self.model = StoreModel(CAPACITY, BLOCK_BYTES)
        self.now = 0
        self.slot_of: dict[ModelBlock, int] = {}
        self.generations = [0] * CAPACITY
        self.held: list[tuple[ModelBlock, int]] = []
        """Pins: block and generation."""
        self.released: list[tuple[int, int]] = []
        """Slot and generation of pins that were given back."""

    def slots(self, blocks: Sequence[ModelBlock]) -> np.ndarray:
        return np.array([self.slot_of[block] for block in blocks], np.int64)

    def in_use(self) -> list[ModelBlock]:
        model = self.model
        return [*model.published.values(), *model.writing.values(), *model.condemned]

    @rule(keys=BATCHES, data=st.data())
    def reserve(self, keys: list[bytes], data: st.DataObject) -> None:
        lengths = [data.draw(LENGTHS) for _ in keys]
        slots, statuses = self.store.reserve(pack_keys(keys), np.array(lengths))
        expected = self.model.reserve(keys, lengths)
        assert statuses.tolist() == [status for status, _ in expected]
        for slot, (status, block) in zip(slots.tolist(), expected, strict=True):
            assert (slot >= 0) == (status == KeyStatus.OK)
            if block is not None:
                self.slot_of[block] = slot
                self.generations[slot] += 1
        used = self.slots(self.in_use())
        assert len(set(used.tolist())) == len(used)

    @precondition(lambda self: self.model.writing)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        blocks = self.draw_writing(data)
        checksums = [data.draw(st.integers(0, 2**32 - 1)) for _ in blocks]
        self.store.publish(self.slots(blocks), np.array(checksums, np.uint32), self.now)
        self.model.publish(blocks, checksums)

    @precondition(lambda self: self.model.writing)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        blocks = self.draw_writing(data)
        self.store.abort(self.slots(blocks))
        self.model.abort(blocks)

    def draw_writing(self, data: st.DataObject) -> list[ModelBlock]:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.model.writing)), unique=True))
        return [self.model.writing[key] for key in keys]

    @rule(keys=BATCHES)
    def pin(self, keys: list[bytes]) -> None:
        slots = self.store.pin(pack_keys(keys), self.now)
        found = self.model.pin(keys)
        assert slots.tolist() == [-1 if b is None else self.slot_of[b] for b in found]
        blocks = [block for block in found if block is not None]
        pinned = self.slots(blocks)
        generations = self.store.generations(pinned).tolist()
        assert generations == [self.generations[slot] for slot in pinned]
        assert self.store.lengths(pinned).tolist() == [block.length for block in blocks]
        self.held += zip(blocks, generations, strict=True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(len(self.held))))
        chosen = order[: data.draw(st.integers(1, len(order)))]
        blocks = [self.held[i][0] for i in chosen]
        generations = [self.held[i][1] for i in chosen]
        # What was pinned is as it was, whatever happened since.
        slots = self.slots(blocks)
        assert self.store.checksums(slots).tolist() == [block.checksum for block in blocks]
        assert self.store.unpin(slots, np.array(generations, np.uint32)).all()
        self.model.unpin(blocks)
        self.released += zip(slots.tolist(), generations, strict=True)
        self.held = [pin for i, pin in enumerate(self.held) if i not in chosen]

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def unpin_once_too_often(self, data: st.DataObject) -> None:
        """Harmless if the slot was given to another block, an error if it has no pin."""
        slot, generation = data.draw(st.sampled_from(self.released))
        slots, generations = np.array([slot]), np.array([generation], np.uint32)
        if self.generations[slot] != generation:
            assert self.store.unpin(slots, generations).tolist() == [False]
        elif not any(self.slot_of[block] == slot for block, _ in self.held):
            with pytest.raises(AssertionError, match="no pin"):
                self.store.unpin(slots, generations)

    @rule(keys=BATCHES)
    def delete(self, keys: list[bytes]) -> None:
        assert self.store.delete(pack_keys(keys)).tolist() == self.model.delete(keys)

    @rule(keys=BATCHES)
    def match(self, keys: list[bytes]) -> None:
        assert self.store.match(pack_keys(keys)) == self.model.match(keys)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.now += 1
        check_invariants(self.store)
        assert self.store.exist(pack_keys(KEYS)).tolist() == self.model.exist(KEYS)
        assert asdict(self.store.stats()) == self.model.stats()
        order = self.store.policy.ordered()
        assert order.tolist() == self.slots(list(self.model.published.values())).tolist()


TestStoreMachine = StoreMachine.TestCase
