"""MATCH: how much of key chains is stored, a command a chain at a time."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from host_driver._chain_kernels import follow_chains, list_chains, write_spans
from host_driver.buffers import KeyChains
from host_driver.commands import Operation, Request
from host_driver.jobs import Batch, Job
from kvlane.capsule import Opcode

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
        self._ends = ends
        self._matched = np.zeros(len(ends), np.int64)
        self._going = np.empty(len(ends), np.int64)
        """At its head the chains that are to be asked for next, or whose answers are due."""
        self._count = list_chains(ends, self._going)
        """How many these are."""
        self._asked: Batch | None = None

    @property
    def exhausted(self) -> bool:
        """True when every chain has been followed to its end."""
        return self._count == 0

    def next_job(self) -> Job | None:
        """The next command of every chain that may go on; None while answers are due."""
        if self._asked is not None or self.exhausted:
            return None
        spans, results = np.empty((self._count, 2), np.int64), np.empty(self._count, np.int64)
        write_spans(self._ends, self._matched, self._going, spans)
        results.fill(_UNKNOWN)
        batch = Batch(self.keys, spans, results)
        job = self._opened(Job(self.opcode, batch))
        self._asked = batch
        return job

    def _settle(self, job: Job) -> None:  # noqa: ARG002
        batch, self._asked = self._asked, None
        if batch is None:
            return
        self._count = follow_chains(
            self._ends, self._matched, self._going, batch.spans, batch.results
        )


class MatchOperation(_Chains[int]):
    """The longest stored prefix of one chain."""

    def __init__(self, request: Request) -> None:
        super().__init__(request, np.array([len(request.keys)], np.int64))

    def result(self) -> int:
        """Its length in keys."""
        return int(self._matched[0])


class MatchEachOperation(_Chains[NDArray[np.int64]]):
    """The longest stored prefix of each of many chains."""

    def __init__(self, chains: KeyChains, deadline_ns: int) -> None:
        super().__init__(Request(chains.keys, deadline_ns), chains.ends)

    def result(self) -> NDArray[np.int64]:
        """Its length in keys, for each chain."""
        return self._matched
