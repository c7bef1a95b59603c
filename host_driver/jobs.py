"""A job: what the kernels of the command queue are told of a batch of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_driver._address_kernels import address_of
from host_driver.queue_records import JOB
from kvlane.capsule import CommandFlags, KeyArray, Opcode
from kvlane.limits import MAX_KEYS_PER_CAPSULE

_FIELDS = JOB.names or ()
_SPAN_COUNT, _NEXT_SPAN = _FIELDS.index("span_count"), _FIELDS.index("next_span")
_OPEN_SPANS, _REFUSAL = _FIELDS.index("open_spans"), _FIELDS.index("refusal")
_NO_MOVES = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Moves:
    """Where the blocks of a job are, one a key."""

    addrs: NDArray[np.int64]
    rkeys: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The keys of a job and where it puts what comes back."""

    keys: KeyArray
    spans: NDArray[np.int64]
    """A row a command: its first key and the one behind its last."""
    results: NDArray[Any]
    """KEY_RESULT or a status byte a key, or a word a span (MATCH)."""

    @property
    def results_address(self) -> int:
        """Where the kernels write them."""
        if self.results.dtype.fields is None:
            return address_of(self.results)
        return int(self.results.ctypes.data)


class Job:
    """One record, and all the memory that it names, which must outlive its commands."""

    __slots__ = ("_kept", "_record", "address", "staged_addr")

    def __init__(
        self,
        opcode: Opcode,
        batch: Batch,
        moves: Moves | None = None,
        flags: CommandFlags | int = 0,
    ) -> None:
        keys = np.ascontiguousarray(batch.keys)
        count = len(batch.spans)
        record = np.array(
            (
                int(opcode),
                int(flags),
                address_of(keys),
                *(_NO_MOVES if moves is None else _addresses(moves)),
                batch.results_address,
                address_of(batch.spans),
                count,
                0,
                count,
                0,
                0,
                0,
            ),
            np.int64,
        )
        self._kept = (keys, batch, moves)
        self._record = record
        self.address = address_of(record)
        """Of the JOB record."""
        self.staged_addr: int | None = None
        """Staging held by this job."""

    @property
    def in_flight(self) -> int:
        """Commands that are sent and not answered."""
        record = self._record
        answered = record[_SPAN_COUNT] - record[_OPEN_SPANS]
        return int(record[_NEXT_SPAN] - answered)

    @property
    def refusal(self) -> int:
        """The first ``CommandStatus`` that was not OK, or 0."""
        return self._record.item(_REFUSAL)


def _addresses(moves: Moves) -> tuple[int, int, int, int]:
    return (
        address_of(moves.addrs),
        address_of(moves.rkeys),
        address_of(moves.lengths),
        0 if moves.checksums is None else address_of(moves.checksums),
    )


def full_spans(count: int) -> NDArray[np.int64]:
    """Spans of ``count`` keys in as few commands as they fit."""
    if 0 < count <= MAX_KEYS_PER_CAPSULE:
        return np.array([[0, count]], np.int64)
    starts = np.arange(0, count, MAX_KEYS_PER_CAPSULE, dtype=np.int64)
    stops = np.minimum(starts + MAX_KEYS_PER_CAPSULE, count)
    return np.ascontiguousarray(np.stack((starts, stops), axis=1))
