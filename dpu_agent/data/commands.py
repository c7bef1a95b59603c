"""What each command does to the block store, and the commands that move payload.

EXIST, MATCH and DELETE are answered at once (``answer``). STORE and RETRIEVE are a
``Transfer``: begin (reserve or pin), move (the caller posts ``requests``), and then either
``finish`` or ``give_up``, after which the store holds nothing for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache.store import BlockStore
from dpu_agent.data._checksum_kernels import checksum_blocks
from dpu_agent.data.pool import PayloadPool
from dpu_agent.data.regions import RegionTable
from kvlane.capsule import KEY_RESULT, Command, CommandFlags, KeyStatus, Opcode
from kvlane.verbs.enums import WrOpcode
from kvlane.verbs.records import SEND_WR, RecordArray, new_records

_NO_SLOTS: NDArray[np.int64] = np.empty(0, np.int64)
_NO_GENERATIONS: NDArray[np.uint32] = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of an agent: the store knows their slots, the pool holds their bytes."""

    store: BlockStore
    pool: PayloadPool

    def addresses(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the payload of each slot begins."""
        return self.pool.addr + self.store.slot_offset(slots)

    def checksums(self, slots: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
        """CRC-32 of the first ``lengths`` bytes of each slot, as they are in memory now."""
        sums = np.empty(len(slots), np.uint32)
        checksum_blocks(self.addresses(slots), lengths, sums)
        return sums


def answer(command: Command, store: BlockStore) -> tuple[int, NDArray[np.uint8] | None]:
    """Execute a command that moves no payload: the response's ``result`` and statuses."""
    if command.opcode is Opcode.MATCH:
        return int(store.match(command.keys)), None
    execute = store.exist if command.opcode is Opcode.EXIST else store.delete
    statuses = execute(command.keys)
    return int(np.count_nonzero(statuses == KeyStatus.OK)), statuses


class Transfer(ABC):
    """A STORE or RETRIEVE in flight. Nothing in it refers to the received capsule.

    Regions are judged first: a key whose range is not registered is BAD_REGION, whatever
    the store would have said of it.
    """

    _operation: WrOpcode

    def __init__(self, command: Command, regions: RegionTable, blocks: Blocks) -> None:
        descriptors = command.descriptors
        self.opcode = command.opcode
        self.command_id = command.command_id
        self.results: Any = new_records(KEY_RESULT, len(command.keys))
        self._blocks = blocks
        self._addr: NDArray[np.int64] = descriptors["addr"].astype(np.int64)
        self._rkey: NDArray[np.int64] = descriptors["rkey"].astype(np.int64)
        self._length: NDArray[np.int64] = descriptors["length"].astype(np.int64)
        inside = regions.contains(descriptors["addr"], descriptors["length"], descriptors["rkey"])
        self.results["status"] = np.where(inside, KeyStatus.OK, KeyStatus.BAD_REGION)
        self._moving: NDArray[np.int64] = np.flatnonzero(inside)
        """Indices, in the command, of the keys whose payload moves."""
        self._slots = _NO_SLOTS
        """The slots that the store holds for this command, one for each of ``_moving``."""

    @abstractmethod
    def begin(self, command: Command, now: int) -> None:
        """Take what the store grants of the keys; the others get their final status."""

    @abstractmethod
    def finish(self, now: int) -> None:
        """All requests have completed: conclude in the store, and complete ``results``."""

    @abstractmethod
    def give_up(self) -> None:
        """Return to the store what is still held; no request may be outstanding."""

    def requests(self) -> RecordArray:
        """One SEND_WR per key that moves, without wr_id and flags; maybe none."""
        requests = new_records(SEND_WR, len(self._moving))
        requests["opcode"] = self._operation
        requests["local_addr"] = self._blocks.addresses(self._slots)
        requests["length"] = self._moved_lengths()
        requests["lkey"] = self._blocks.pool.lkey
        requests["remote_addr"] = self._addr[self._moving]
        requests["rkey"] = self._rkey[self._moving]
        return requests

    def uses(self, rkeys: Iterable[int]) -> bool:
        """Whether a request of this transfer goes by one of the rkeys."""
        return bool(np.isin(self._rkey[self._moving], list(rkeys)).any())

    def count_done(self) -> int:
        """Keys that ended OK or EXISTS."""
        status = self.results["status"]
        return int(np.count_nonzero((status == KeyStatus.OK) | (status == KeyStatus.EXISTS)))

    @abstractmethod
    def _moved_lengths(self) -> NDArray[np.int64]:
        """Bytes to move for each of ``_moving``."""

    def _hold(self, granted: NDArray[np.bool_], slots: NDArray[np.int64]) -> None:
        """Go on with the granted ones of ``_moving``, and their slots."""
        self._slots = slots[granted]
        self._moving = self._moving[granted]

    def _report(self, checksums: NDArray[np.uint32], lengths: NDArray[np.int64]) -> None:
        """Fill in the results of the keys that still hold a slot."""
        self.results["length"][self._moving] = lengths
        self.results["checksum"][self._moving] = checksums
        generations = self._blocks.store.generations(self._slots)
        self.results["generation"][self._moving] = generations


class StoreTransfer(Transfer):
    """STORE: READ each new block out of the host into a reserved slot, check, publish."""

    _operation = WrOpcode.RDMA_READ

    def __init__(self, command: Command, regions: RegionTable, blocks: Blocks) -> None:
        super().__init__(command, regions, blocks)
        self._wanted: NDArray[np.uint32] | None = None
        if command.flags & CommandFlags.CHECKSUM:
            self._wanted = command.descriptors["checksum"].astype(np.uint32)

    def begin(self, command: Command, now: int) -> None:
        """Reserve slots; EXISTS, BAD_LENGTH and NO_SPACE are decided here."""
        candidates = self._moving
        slots, statuses = self._blocks.store.reserve(
            command.keys[candidates], self._length[candidates], now
        )
        self._hold(statuses == KeyStatus.OK, slots)
        self.results["status"][candidates] = statuses

    def finish(self, now: int) -> None:
        """Sum what has arrived; publish the blocks that are as the host meant them."""
        store = self._blocks.store
        checksums = self._blocks.checksums(self._slots, self._moved_lengths())
        if self._wanted is not None:
            right = checksums == self._wanted[self._moving]
            self.results["status"][self._moving[~right]] = KeyStatus.CHECKSUM_MISMATCH
            store.abort(self._slots[~right])
            self._hold(right, self._slots)
            checksums = checksums[right]
        store.publish(self._slots, checksums, now)
        self._report(checksums, self._moved_lengths())
        self._slots = _NO_SLOTS

    def give_up(self) -> None:
        """Abort the reservations."""
        self._blocks.store.abort(self._slots)
        self._slots = _NO_SLOTS

    def _moved_lengths(self) -> NDArray[np.int64]:
        return self._length[self._moving]


class RetrieveTransfer(Transfer):
    """RETRIEVE: pin each block, WRITE it to the host, unpin."""

    _operation = WrOpcode.RDMA_WRITE

    def __init__(self, command: Command, regions: RegionTable, blocks: Blocks) -> None:
        super().__init__(command, regions, blocks)
        self._generations = _NO_GENERATIONS

    def begin(self, command: Command, now: int) -> None:
        """Pin; NOT_FOUND and BAD_LENGTH are decided here."""
        store = self._blocks.store
        slots = store.pin(command.keys[self._moving], now)
        found = slots >= 0
        self.results["status"][self._moving[~found]] = KeyStatus.NOT_FOUND
        self._hold(found, slots)
        self._generations = store.generations(self._slots)
        lengths = store.lengths(self._slots)
        fits = lengths <= self._length[self._moving]
        short = self._moving[~fits]
        self.results["status"][short] = KeyStatus.BAD_LENGTH
        self.results["length"][short] = lengths[~fits]
        store.unpin(self._slots[~fits], self._generations[~fits])
        self._generations = self._generations[fits]
        self._hold(fits, self._slots)

    def finish(self, now: int) -> None:  # noqa: ARG002 - reading was noted when it was pinned
        """Unpin; a block whose slot has changed under the transfer is ABORTED."""
        store = self._blocks.store
        self._report(store.checksums(self._slots), self._moved_lengths())
        unchanged = store.unpin(self._slots, self._generations)
        self._slots, self._generations = _NO_SLOTS, _NO_GENERATIONS
        stale = self._moving[~unchanged]
        self.results[stale] = np.zeros(1, KEY_RESULT)
        self.results["status"][stale] = KeyStatus.ABORTED

    def give_up(self) -> None:
        """Unpin."""
        self._blocks.store.unpin(self._slots, self._generations)
        self._slots, self._generations = _NO_SLOTS, _NO_GENERATIONS

    def _moved_lengths(self) -> NDArray[np.int64]:
        return self._blocks.store.lengths(self._slots)


TRANSFERS: dict[Opcode, type[Transfer]] = {
    Opcode.STORE: StoreTransfer,
    Opcode.RETRIEVE: RetrieveTransfer,
}
"""The commands that move payload; all others are answered at once."""
