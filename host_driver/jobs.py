"""A job: what the kernels of the command queue are told of a batch of commands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from host_driver._address_kernels import address_of
from host_driver._job_kernels import JOB_WORDS, describe_job
from host_driver.queue_records import JOB
from kvlane.capsule import CommandFlags, KeyArray, Opcode
from kvlane.limits import MAX_KEYS_PER_CAPSULE

_FIELDS = JOB.names or ()
_SPAN_COUNT, _NEXT_SPAN = _FIELDS.index("span_count"), _FIELDS.index("next_span")
_OPEN_SPANS, _REFUSAL = _FIELDS.index("open_spans"), _FIELDS.index("refusal")
_NO_WORDS: NDArray[np.int64] = np.zeros(0, np.int64)
_NO_SUMS: NDArray[np.uint32] = np.zeros(0, np.uint32)


class Moves(NamedTuple):
    """Where the blocks of a job are, one a key."""

    addrs: NDArray[np.int64]
    rkeys: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.uint32] = _NO_SUMS
    """Empty where there are none to compare."""


NO_MOVES = Moves(_NO_WORDS, _NO_WORDS, _NO_WORDS)
"""Of commands that move no blocks."""


class Batch(NamedTuple):
    """The keys of a job and where it puts what comes back."""

    keys: KeyArray
    spans: NDArray[np.int64]
    """A row a command: its first key and the one behind its last."""
    results: NDArray[Any]
    """KEY_RESULT or a status byte a key, or a word a span (MATCH)."""

    @property
    def results_address(self) -> int:
        """Where the kernels write them."""
        results = self.results
        return address_of(results if results.dtype.fields is None else results.view(np.uint8))


class Job:
    """One record, and all the memory that it names, which must outlive its commands."""

    __slots__ = ("_kept", "_record", "address", "staged_addr")

    def __init__(
        self,
        opcode: Opcode,
        batch: Batch,
        moves: Moves = NO_MOVES,
        flags: CommandFlags | int = 0,
    ) -> None:
        keys = np.ascontiguousarray(batch.keys)
        self._record = np.empty(JOB_WORDS, np.int64)
        self._kept = (keys, batch, moves)
        kind = (int(opcode), int(flags))
        results = batch.results_address
        # A plain tuple, which is handed over in half the time that a named one takes.
        four = (moves.addrs, moves.rkeys, moves.lengths, moves.checksums)
        self.address = describe_job(
            self._record, kind, address_of(keys), results, batch.spans, four
        )
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


def full_spans(count: int) -> NDArray[np.int64]:
    """Spans of ``count`` keys in as few commands as they fit."""
    if 0 < count <= MAX_KEYS_PER_CAPSULE:
        return np.array([[0, count]], np.int64)
    starts = np.arange(0, count, MAX_KEYS_PER_CAPSULE, dtype=np.int64)
    stops = np.minimum(starts + MAX_KEYS_PER_CAPSULE, count)
    return np.ascontiguousarray(np.stack((starts, stops), axis=1))
