"""MATCH: how much of key chains is stored, a command a chain at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver.commands import Operation, Request
from host_driver.jobs import Batch, Job
from kvlane.capsule import KeyArray, Opcode
from kvlane.limits import KEY_BYTES, MAX_KEYS_PER_CAPSULE

_UNKNOWN = -1

T = TypeVar("T")


class _Chains(Operation[T]):
    """Asks for the next capsule of a chain only while all before were stored.

    All chains advance together: a job has a command for each that may still go on, so it is
    one job when every chain fits a capsule.
    """

    opcode = Opcode.MATCH

    def __init__(self, request: Request, ends: NDArray[np.int64]) -> None:
        """``ends`` has the key behind the last of each chain; they follow each other."""
        super().__init__(request)
        self._starts = np.zeros_like(ends)
        self._starts[1:] = ends[:-1]
        self._ends = ends
        self._matched = np.zeros(len(ends), np.int64)
        self._going = np.flatnonzero(ends > self._starts)
        """Chains that are to be asked for next, or whose answers are due."""
        self._asked: Batch | None = None

    @property
    def exhausted(self) -> bool:
        """True when every chain has been followed to its end."""
        return not len(self._going)

    def next_job(self) -> Job | None:
        """The next command of every chain that may go on; None while answers are due."""
        if self._asked is not None or self.exhausted:
            return None
        starts = self._starts[self._going] + self._matched[self._going]
        stops = np.minimum(starts + MAX_KEYS_PER_CAPSULE, self._ends[self._going])
        spans = np.ascontiguousarray(np.stack((starts, stops), axis=1))
        batch = Batch(self.keys, spans, np.full(len(spans), _UNKNOWN, np.int64))
        job = self._opened(Job(self.opcode, batch))
        self._asked = batch
        return job

    def _settle(self, job: Job) -> None:  # noqa: ARG002
        batch, self._asked = self._asked, None
        if batch is None:
            return
        came = np.maximum(batch.results, 0)
        self._matched[self._going] += came
        whole = came == batch.spans[:, 1] - batch.spans[:, 0]
        more = batch.spans[:, 1] < self._ends[self._going]
        self._going = self._going[whole & more]


class MatchOperation(_Chains[int]):
    """The longest stored prefix of one chain."""

    def __init__(self, request: Request) -> None:
        super().__init__(request, np.array([len(request.keys)], np.int64))

    def result(self) -> int:
        """Its length in keys."""
        return int(self._matched[0])


class MatchEachOperation(_Chains[NDArray[np.int64]]):
    """The longest stored prefix of each of many chains."""

    def __init__(self, chains: Sequence[KeyArray], deadline_ns: int) -> None:
        keys = np.concatenate(chains) if chains else np.zeros((0, KEY_BYTES), np.uint8)
        ends = np.cumsum([len(chain) for chain in chains], dtype=np.int64)
        super().__init__(Request(keys, deadline_ns), ends)

    def result(self) -> NDArray[np.int64]:
        """Its length in keys, for each chain."""
        return self._matched
