"""STORE and RETRIEVE: operations that move blocks, zero copy or through staging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.block_kernels import copy_blocks, crc_blocks
from host_driver.buffers import BlockList
from host_driver.commands import Command, Operation, Request, require_known_statuses
from host_driver.results import RetrieveResult, StoreResult
from host_driver.staging import ALIGNMENT_BYTES, Staging
from kvlane.capsule import DESCRIPTOR, KEY_RESULT, CommandFlags, KeyStatus, Opcode, Response
from kvlane.errors import ProtocolError
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from kvlane.verbs.records import RecordArray, new_records

STAGING_PIECES = 4
"""A command takes about this fraction of the staging at most, so that several overlap."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Placement:
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
        results: RecordArray | None = None,
    ) -> None:
        """``results`` is where the KEY_RESULT of each key goes, if not into an array of its own."""
        super().__init__(request)
        self.placement = placement
        self._blocks = placement.blocks
        self._rkeys = placement.rkeys
        self._staging = placement.staging
        self._checksums = checksums
        self._results = new_records(KEY_RESULT, len(self.keys)) if results is None else results
        self._results.status = KeyStatus.ABORTED
        room = -(-self._blocks.lengths // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        room[self._rkeys >= 0] = 0
        self._room_before = np.concatenate(([0], np.cumsum(room)))
        """Staging that the keys before key i need, in bytes."""

    def part(self, span: slice, rkeys: NDArray[np.int64]) -> Transfer[T]:
        """Some of the keys, under other remote keys; its results are a part of these."""
        return type(self)(
            Request(self.keys[span], self.deadline_ns),
            Placement(self._blocks.part(span), rkeys, self._staging),
            checksums=self._checksums,
            results=self._results[span],
        )

    def prepare(self, command: Command) -> bool:
        """Take staging where it is needed, and write the descriptors."""
        before = self._room_before[command.start : command.stop + 1]
        room = int(before[-1] - before[0])
        addrs = self._blocks.addrs[command.span].copy()
        rkeys = self._rkeys[command.span].copy()
        if room:
            command.staged_addr = self._staging.allocate(room)
            if command.staged_addr is None:
                return False
            staged = rkeys < 0
            addrs[staged] = command.staged_addr + (before[:-1] - before[0])[staged]
            rkeys[staged] = self._staging.region.rkey
        command.descriptors = new_records(DESCRIPTOR, len(addrs))
        command.descriptors.addr = addrs
        command.descriptors.rkey = rkeys
        command.descriptors.length = self._blocks.lengths[command.span]
        self._fill(command, addrs)
        return True

    def _fill(self, command: Command, addrs: NDArray[np.int64]) -> None:
        """Put at ``addrs``, in the descriptors, what the agent will read."""

    def _staged(self, command: Command) -> NDArray[np.bool_]:
        staged: NDArray[np.bool_] = self._rkeys[command.span] < 0
        return staged

    def _spans(self) -> Iterator[tuple[int, int]]:
        """As many keys a capsule as it holds and as take a fair part of the staging."""
        limit = self._staging.capacity_bytes // STAGING_PIECES
        start = 0
        while start < len(self.keys):
            end_of_room = self._room_before[start] + limit
            fits = int(np.searchsorted(self._room_before, end_of_room, side="right")) - 1
            stop = min(max(fits, start + 1), start + MAX_KEYS_PER_CAPSULE, len(self.keys))
            yield start, stop
            start = stop

    def _release(self, command: Command) -> None:
        addr, command.staged_addr = command.staged_addr, None
        if addr is not None:
            self._staging.release(addr)


class StoreOperation(Transfer[StoreResult]):
    """STORE: the agent reads the blocks."""

    opcode = Opcode.STORE

    @property
    def flags(self) -> CommandFlags:
        """CHECKSUM where the agent is to compare."""
        return CommandFlags.CHECKSUM if self._checksums else CommandFlags(0)

    def result(self) -> StoreResult:
        """How it ended, key by key."""
        return StoreResult(self._results.status.copy())

    def _fill(self, command: Command, addrs: NDArray[np.int64]) -> None:
        lengths = self._blocks.lengths[command.span]
        staged = self._staged(command)
        if staged.any():
            sources = self._blocks.addrs[command.span]
            copy_blocks(addrs[staged], sources[staged], lengths[staged])
        if self._checksums:
            sums = np.zeros(len(addrs), np.uint32)
            crc_blocks(addrs, lengths, sums)
            command.descriptors.checksum = sums

    def _absorb(self, command: Command, response: Response) -> None:
        require_known_statuses(response.results.status)
        self._results[command.span] = response.results


class RetrieveOperation(Transfer[RetrieveResult]):
    """RETRIEVE: the agent writes the blocks."""

    opcode = Opcode.RETRIEVE

    def result(self) -> RetrieveResult:
        """How it ended, key by key."""
        results = self._results
        return RetrieveResult(results.status.copy(), results.length.copy(), results.checksum.copy())

    def _absorb(self, command: Command, response: Response) -> None:
        require_known_statuses(response.results.status)
        results = response.results.copy()
        came = results.status == KeyStatus.OK
        lengths = results.length.astype(np.int64)
        too_long = came & (lengths > self._blocks.lengths[command.span])
        if too_long.any():
            raise ProtocolError(
                f"the agent says that it wrote {lengths[too_long][0]} bytes into a shorter buffer"
            )
        targets = self._blocks.addrs[command.span]
        copied = came & self._staged(command)
        if copied.any():
            sources = command.descriptors.addr.astype(np.int64)
            copy_blocks(targets[copied], sources[copied], lengths[copied])
        if self._checksums:
            self._compare(results, came, targets, lengths)
        self._results[command.span] = results

    def _compare(
        self,
        results: RecordArray,
        came: NDArray[np.bool_],
        addrs: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Mark the blocks whose bytes are not those that the agent has stored."""
        sums = np.zeros(int(came.sum()), np.uint32)
        crc_blocks(addrs[came], lengths[came], sums)
        wrong = np.flatnonzero(came)[sums != results.checksum[came]]
        results.status[wrong] = KeyStatus.CHECKSUM_MISMATCH
