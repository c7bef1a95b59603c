"""The block store: which key lies in which slot, who may write it, read it, or evict it.

It keeps metadata only and never touches a payload byte: it hands out slots, and whoever
moves bytes does so between ``reserve`` and ``publish``, or between ``pin`` and ``unpin``.
An eviction policy that fails is not asked again: blocks then leave in the order of slots.
It is sans-IO. Calls are batches, which any thread may make: they pass one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache import _shared_store_kernels as kernels
from dpu_agent.cache._guess_kernels import publish_guess
from dpu_agent.cache._slot_kernels import new_ledger, new_slot_table
from dpu_agent.cache._store_kernels import Statuses, StoreArrays
from dpu_agent.cache._store_kernels import slot_offset as offset_of_slot
from dpu_agent.cache.index import key_words, new_index
from dpu_agent.cache.policy.base import EvictionPolicy, SlotArray
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.control.core import StoreStats
from kvlane._ticket_kernels import GATE_WORDS, enter, leave
from kvlane.capsule import KeyArray
from kvlane.errors import ConfigError
from kvlane.limits import MAX_BLOCK_BYTES, MIN_BLOCK_BYTES

_EMPTY_SEED = 0
_Slots = TypeVar("_Slots", int, SlotArray)


@dataclass(frozen=True, slots=True)
class Guesses:
    """Blocks that were brought into a store on a guess."""

    open: int
    """They are here, and nobody has asked for them yet."""
    open_bytes: int
    useful: int
    useful_bytes: int
    wasted: int
    """They left before anybody asked for them."""
    wasted_bytes: int


class BlockStore:
    """Blocks by key, over ``capacity_blocks`` slots of ``block_bytes`` each.

    ``keys`` are uint8 of shape (n, 32), slots and lengths int64 of shape (n,), generations
    and checksums uint32. ``now`` is in nanoseconds. Slots that are not in the state that a
    call needs are an error of the program: ``AssertionError``, and nothing has changed.
    """

    def __init__(
        self,
        *,
        capacity_blocks: int,
        block_bytes: int,
        policy: EvictionPolicy,
        seed: int,
        may_refuse: bool = True,
    ) -> None:
        """``seed`` (up to 256 bits) keys the index's hash and must be a secret from hosts.

        ``may_refuse`` says whether the policy may keep a block out.

        Raises ``ConfigError`` for sizes outside the limits.
        """
        if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES:
            raise ConfigError(
                f"block_bytes must be {MIN_BLOCK_BYTES} to {MAX_BLOCK_BYTES}, not {block_bytes}"
            )
        self.capacity_blocks = capacity_blocks
        self.block_bytes = block_bytes
        self.policy = policy
        self._untold_fault = [True]
        self._gate = np.zeros(GATE_WORDS, np.int64)
        self.arrays = StoreArrays(
            by_key=new_index(capacity_blocks, seed),
            table=new_slot_table(capacity_blocks),
            ledger=new_ledger(capacity_blocks),
            policy=policy.calls,
            block_bytes=block_bytes,
            may_refuse=may_refuse,
            gate=int(self._gate.ctypes.data),
        )

    # Lookups that move nothing

    def exist(self, keys: KeyArray) -> Statuses:
        """``KeyStatus`` OK or NOT_FOUND for each key; no pin, no touch."""
        return kernels.exist(self.arrays, key_words(keys))

    def match(self, keys: KeyArray, now: int = 0) -> int:
        """Length of the longest stored prefix of ``keys``; no pin, no touch.

        The policy learns that there is a request with this chain.
        """
        return kernels.match(self.arrays, key_words(keys), now)

    # Reading

    def pin(self, keys: KeyArray, now: int) -> SlotArray:
        """The slot of each key, or -1; a slot given stays as it is until it is unpinned.

        A key that occurs twice is pinned twice.
        """
        return kernels.pin(self.arrays, key_words(keys), now)

    def unpin(self, slots: SlotArray, generations: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Give pins back; True where the slot is still of the generation that was pinned.

        False means that the slot holds another block by now: the bytes read are not to be
        trusted, and no pin is taken from the readers of that block.
        """
        held, wrong = kernels.unpin(self.arrays, slots, generations.astype(np.int64))
        if wrong >= 0:
            raise AssertionError(f"slot {slots[wrong]} has no pin to give back")
        return held

    def generations(self, slots: SlotArray) -> NDArray[np.uint32]:
        """Generations of pinned or reserved slots."""
        generations: NDArray[np.uint32] = self.arrays.table["generation"][slots]
        return generations

    def lengths(self, slots: SlotArray) -> NDArray[np.int64]:
        """Payload bytes of pinned or reserved slots."""
        lengths: NDArray[np.uint32] = self.arrays.table["length"][slots]
        return lengths.astype(np.int64)

    def checksums(self, slots: SlotArray) -> NDArray[np.uint32]:
        """CRC-32 of the payload of pinned slots."""
        checksums: NDArray[np.uint32] = self.arrays.table["checksum"][slots]
        return checksums

    def slot_offset(self, slot: _Slots) -> _Slots:
        """Where a slot, or each of an array of slots, begins in the payload memory."""
        offset: _Slots = offset_of_slot(self.arrays, slot)
        return offset

    # Writing

    def reserve(self, keys: KeyArray, lengths: NDArray[np.int64]) -> tuple[SlotArray, Statuses]:
        """A slot to write for each key that nobody has, -1 for the others, and why.

        OK; EXISTS where an earlier writer has the key, published or on its way, or an
        earlier key of the batch is the same; BAD_LENGTH; NO_SPACE when every other block
        is pinned, being written, or among ``keys`` (a batch does not push out its own chain), or
        when the policy would rather keep what is here.
        """
        sizes = np.array(lengths, np.int64)
        slots, statuses, unfit = kernels.reserve(self.arrays, key_words(keys), sizes)
        # A policy is a plug-in; its mistake must not overwrite what a reader is sending.
        if unfit >= 0:
            raise AssertionError(
                f"{type(self.policy).__name__} chose slot {unfit} for eviction, which is pinned "
                f"or not published"
            )
        return slots, statuses

    def publish(self, slots: SlotArray, checksums: NDArray[np.uint32], now: int) -> None:
        """Make reserved slots visible, in one step, now that all their bytes are there."""
        wrong = kernels.publish(self.arrays, slots, checksums.astype(np.int64), now)
        self._require_writing(slots, wrong)

    def publish_guess(self, slot: int, checksum: int, now: int) -> None:
        """As ``publish``, for a block that was brought here though nobody has asked for it."""
        if not publish_guess(self.arrays, slot, checksum, now):
            raise AssertionError(f"slot {slot} is not reserved")

    def guesses(self) -> Guesses:
        """What became of the blocks that were brought here on a guess."""
        book = self._book()
        return Guesses(
            open=int(book["guessed"]),
            open_bytes=int(book["guessed_bytes"]),
            useful=int(book["useful"]),
            useful_bytes=int(book["useful_bytes"]),
            wasted=int(book["wasted"]),
            wasted_bytes=int(book["wasted_bytes"]),
        )

    def abort(self, slots: SlotArray) -> None:
        """Give reserved slots up; their keys are free for a later writer.

        No write into them may be under way any more.
        """
        self._require_writing(slots, kernels.abort(self.arrays, slots))

    def _require_writing(self, slots: SlotArray, wrong: int) -> None:
        if wrong >= 0:
            raise AssertionError(f"slot {slots[wrong]} is not reserved, or is listed twice")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let nothing happen in the store meanwhile; for moments, since all others wait."""
        enter(self.arrays.gate)
        try:
            yield
        finally:
            leave(self.arrays.gate)

    # Removal and reporting

    @property
    def free_blocks(self) -> int:
        """Slots that nothing is in; without the lock, so maybe a little out of date."""
        return int(self.arrays.ledger[0]["free"])

    @property
    def guessed_blocks(self) -> int:
        """As ``Guesses.open``; without the lock."""
        return int(self.arrays.ledger[0]["guessed"])

    @property
    def displaced_blocks(self) -> int:
        """Of those evicted, the ones that a new block has pushed out; without the lock."""
        return int(self.arrays.ledger[0]["displaced"])

    @property
    def demoted_blocks(self) -> int:
        """Of those evicted, the ones that left early, as a tier below can take them; without the
        lock."""
        return int(self.arrays.ledger[0]["demoted"])

    def delete(self, keys: KeyArray) -> Statuses:
        """OK where a block was there; lookups miss it from now on, its readers end in peace.

        NOT_FOUND also where the block is still being written.
        """
        return kernels.delete(self.arrays, key_words(keys))

    def take_policy_fault(self) -> BaseException | None:
        """What the policy has failed with: once, to one of the threads that ask."""
        if not self.arrays.ledger[0]["policy_faults"]:
            return None
        try:
            self._untold_fault.pop()
        except IndexError:
            return None
        return self.policy.take_fault() or RuntimeError("the policy did not say why it failed")

    def _book(self) -> np.void:
        """The ledger as it is between two batches."""
        books = np.empty_like(self.arrays.ledger)
        kernels.copy_ledger(self.arrays, books)
        book: np.void = books[0]
        return book

    def stats(self) -> StoreStats:
        """Gauges and counters."""
        book = self._book()
        return StoreStats(
            capacity_blocks=self.capacity_blocks,
            block_bytes=self.block_bytes,
            blocks=int(book["blocks"]),
            bytes=int(book["bytes"]),
            hits=int(book["hits"]),
            misses=int(book["misses"]),
            stored=int(book["stored"]),
            already_stored=int(book["already_stored"]),
            evicted=int(book["displaced"]) + int(book["demoted"]),
            deleted=int(book["deleted"]),
            aborted=int(book["aborted"]),
            refused=int(book["refused"]),
            pinned=int(book["pinned"]),
            writing=int(book["writing"]),
            policy_faults=int(book["policy_faults"]),
        )


def empty_store() -> BlockStore:
    """A store in which nothing lies and nothing will."""
    return BlockStore(
        capacity_blocks=1,
        block_bytes=MIN_BLOCK_BYTES,
        policy=make_policy("lru", 1),
        seed=_EMPTY_SEED,
    )
