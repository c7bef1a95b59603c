"""STORE and RETRIEVE: operations that move blocks, zero copy or through staging."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver._placement_kernels import sum_room
from host_driver.block_kernels import copy_blocks, crc_blocks
from host_driver.buffers import BlockList
from host_driver.commands import Operation, Request
from host_driver.jobs import NO_MOVES, Batch, Job, Moves, full_spans
from host_driver.results import RetrieveResult, StoreResult
from host_driver.staging import ALIGNMENT_BYTES, Staging
from kvlane.capsule import KEY_RESULT, CommandFlags, KeyStatus, Opcode
from kvlane.limits import MAX_KEYS_PER_CAPSULE

_ABORTED = int(KeyStatus.ABORTED)
_NO_FLAGS = CommandFlags(0)
_NO_SUMS: NDArray[np.uint32] = NO_MOVES.checksums

STAGING_PIECES = 4
"""A command takes about this fraction of the staging at most, so that several overlap."""

T = TypeVar("T")


class Placement(NamedTuple):
    """Blocks and how the agent reaches them."""

    blocks: BlockList
    rkeys: NDArray[np.int64]
    """Remote key of each block where it lies, or -1: it goes through staging."""
    staging: Staging

    @property
    def oversized(self) -> NDArray[np.bool_]:
        """True where a block does not fit the staging, so that it must get a remote key."""
        too_long: NDArray[np.bool_] = (self.rkeys < 0) & (
            self.blocks.lengths > self.staging.capacity_bytes
        )
        return too_long


class Transfer(Operation[T]):
    """Moves ``blocks[i]`` under ``keys[i]``; no block may be oversized once it is submitted."""

    def __init__(
        self,
        request: Request,
        placement: Placement,
        *,
        checksums: bool,
        persistent: bool = False,
        results: NDArray[np.void] | None = None,
    ) -> None:
        """``persistent`` concerns a STORE. ``results`` is where the KEY_RESULT of each key goes, if
        not into an array of its own."""
        super().__init__(request)
        self.placement = placement
        self._blocks = placement.blocks
        self._rkeys = placement.rkeys
        self._staging = placement.staging
        self._checksums = checksums
        self._persistent = persistent
        self._results = np.zeros(len(self.keys), KEY_RESULT) if results is None else results
        self._results["status"] = _ABORTED
        self._room_before = np.empty(len(self.keys) + 1, np.int64)
        """Staging that the keys before key i need, in bytes."""
        room = sum_room(self._rkeys, self._blocks.lengths, ALIGNMENT_BYTES, self._room_before)
        self.needs_staging = room > 0
        self._next_key = 0
        """The first that is in no job."""
        self._spans_of: dict[Job, slice] = {}
        self._addrs_of: dict[Job, NDArray[np.int64]] = {}
        """Of the jobs that use staging: where their blocks are for the agent."""

    def part(self, span: slice, rkeys: NDArray[np.int64]) -> Transfer[T]:
        """Some of the keys, under other remote keys; its results are a part of these."""
        return type(self)(
            Request(self.keys[span], self.deadline_ns),
            Placement(self._blocks.part(span), rkeys, self._staging),
            checksums=self._checksums,
            persistent=self._persistent,
            results=self._results[span],
        )

    @property
    def exhausted(self) -> bool:
        """True when every key has been given out."""
        return self._next_key == len(self.keys)

    def next_job(self) -> Job | None:
        """All of it where every block has a remote key, else what the staging has room for."""
        if self.exhausted:
            return None
        return self._piece() if self.needs_staging else self._whole()

    def _whole(self) -> Job:
        count = len(self.keys)
        addrs, lengths = self._blocks.addrs, self._blocks.lengths
        moves = Moves(addrs, self._rkeys, lengths, self._sums(addrs, lengths))
        batch = Batch(self.keys, full_spans(count), self._results)
        job = self._opened(Job(self.opcode, batch, moves, self._flags))
        self._spans_of[job] = slice(0, count)
        self._next_key = count
        return job

    def _piece(self) -> Job | None:
        """The next command, with its staging; None while there is no room."""
        span = self._next_span()
        before = self._room_before[span.start : span.stop + 1]
        room = int(before[-1] - before[0])
        rkeys = self._rkeys[span].copy()
        addrs = self._blocks.addrs[span].copy()
        lengths = np.ascontiguousarray(self._blocks.lengths[span])
        staged_addr = self._staging.allocate(room) if room else None
        if staged_addr is not None:
            staged = rkeys < 0
            addrs[staged] = staged_addr + (before[:-1] - before[0])[staged]
            rkeys[staged] = self._staging.region.rkey
            self._fill(addrs[staged], self._blocks.addrs[span][staged], lengths[staged])
        elif room:
            return None
        batch = Batch(self.keys[span], full_spans(len(addrs)), self._results[span])
        moves = Moves(addrs, rkeys, lengths, self._sums(addrs, lengths))
        job = self._opened(Job(self.opcode, batch, moves, self._flags))
        job.staged_addr = staged_addr
        self._spans_of[job] = span
        self._addrs_of[job] = addrs
        self._next_key = span.stop
        return job

    @property
    def _flags(self) -> CommandFlags:
        """Options of every command."""
        return _NO_FLAGS

    def _sums(
        self,
        addrs: NDArray[np.int64],  # noqa: ARG002
        lengths: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint32]:
        """Checksums that go with the command; empty where none do."""
        return _NO_SUMS

    def _fill(
        self,
        staged: NDArray[np.int64],
        sources: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Put into the staging what the agent will read."""

    def _next_span(self) -> slice:
        """As many keys as a capsule holds and as take a fair part of the staging."""
        start = self._next_key
        end_of_room = self._room_before[start] + self._staging.capacity_bytes // STAGING_PIECES
        fits = int(np.searchsorted(self._room_before, end_of_room, side="right")) - 1
        return slice(start, min(max(fits, start + 1), start + MAX_KEYS_PER_CAPSULE, len(self.keys)))

    def _settle(self, job: Job) -> None:
        span = self._spans_of.pop(job, None)
        if span is not None:
            self._take(span, self._addrs_of.pop(job, None))

    def _take(self, span: slice, staged_at: NDArray[np.int64] | None) -> None:
        """Take over what the agent wrote."""

    def _release(self, job: Job) -> None:
        addr, job.staged_addr = job.staged_addr, None
        if addr is not None:
            self._staging.release(addr)


class StoreOperation(Transfer[StoreResult]):
    """STORE: the agent reads the blocks."""

    opcode = Opcode.STORE

    @property
    def _flags(self) -> CommandFlags:
        """CHECKSUM where the agent is to compare, PERSISTENT where it is to wait for that."""
        flags = CommandFlags.CHECKSUM if self._checksums else _NO_FLAGS
        return flags | CommandFlags.PERSISTENT if self._persistent else flags

    def result(self) -> StoreResult:
        """How it ended, key by key."""
        return StoreResult(self._results["status"].copy())

    def _sums(self, addrs: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
        if not self._checksums:
            return _NO_SUMS
        sums = np.zeros(len(addrs), np.uint32)
        crc_blocks(addrs, lengths, sums)
        return sums

    def _fill(
        self,
        staged: NDArray[np.int64],
        sources: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        copy_blocks(staged, sources, lengths)


class RetrieveOperation(Transfer[RetrieveResult]):
    """RETRIEVE: the agent writes the blocks."""

    opcode = Opcode.RETRIEVE

    def result(self) -> RetrieveResult:
        """How it ended, key by key."""
        results = self._results
        return RetrieveResult(
            results["status"].copy(), results["length"].copy(), results["checksum"].copy()
        )

    def _take(self, span: slice, staged_at: NDArray[np.int64] | None) -> None:
        if staged_at is None and not self._checksums:
            return
        results = self._results[span]
        came = results["status"] == KeyStatus.OK
        lengths = results["length"].astype(np.int64)
        targets = self._blocks.addrs[span]
        if staged_at is not None:
            copied = came & (self._rkeys[span] < 0)
            copy_blocks(targets[copied], staged_at[copied], lengths[copied])
        if self._checksums:
            self._compare(results, came, targets, lengths)

    def _compare(
        self,
        results: NDArray[np.void],
        came: NDArray[np.bool_],
        addrs: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Mark the blocks whose bytes are not those that the agent has stored."""
        sums = np.zeros(int(came.sum()), np.uint32)
        crc_blocks(addrs[came], lengths[came], sums)
        wrong = np.flatnonzero(came)[sums != results["checksum"][came]]
        results["status"][wrong] = KeyStatus.CHECKSUM_MISMATCH
