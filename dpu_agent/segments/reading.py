"""Reads: neighbours in one system call, straight into the caller's memory where it is aligned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpu_agent.segments.direct_file import aligned_buffer, memory_at
from dpu_agent.segments.layout import PAGE_BYTES, padded
from dpu_agent.segments.requests import ItemStatus, Read
from dpu_agent.segments.segment_table import Life, Segment
from dpu_agent.segments.state import LogState
from dpu_agent.segments.tickets import Ticket
from kvlane.rawmem import copy, crc32

JOB_BYTES = 1 << 20
"""Neighbours are read together up to so many bytes: beyond it, side by side is faster."""
_JOB_READS = 256


@dataclass(frozen=True, slots=True)
class _Wanted:
    ticket: Ticket
    index: int
    segment: Segment
    offset: int
    address: int
    length: int
    checksum: int


class Reader:
    """The reading half of the log; ``start`` runs under its lock."""

    def __init__(self, log: LogState, settled: Callable[[], None]) -> None:
        self._log, self._settled = log, settled

    def start(self, ticket: Ticket, reads: Sequence[Read]) -> None:
        """Hand reads to the queues of their directories; those that cannot be done end here."""
        wanted = [self._wanted(ticket, index, read) for index, read in enumerate(reads)]
        found = sorted(
            (each for each in wanted if each is not None),
            key=lambda each: (each.segment.incarnation, each.offset),
        )
        for job in _jobs(found):
            for each in job:
                each.segment.holders += 1
            directory = self._log.directories[job[0].segment.directory]
            directory.reads.submit(partial(self._run, job))

    def _wanted(self, ticket: Ticket, index: int, read: Read) -> _Wanted | None:
        found = self._log.table.find(read.location)
        if found is None or found[1]["life"] not in (Life.LIVE, Life.MOVED):
            ticket.finish(index, ItemStatus.NOT_FOUND)
            return None
        segment, entry = found
        length = int(entry["length"])
        if length > read.capacity:
            ticket.finish(index, ItemStatus.TOO_SHORT, read.location, length)
            return None
        offset = int(entry["page"]) * PAGE_BYTES
        checksum = int(entry["checksum"])
        return _Wanted(ticket, index, segment, offset, read.address, length, checksum)

    def _run(self, job: list[_Wanted]) -> None:
        """In a thread of the queue."""
        failure: OSError | None = None
        good: list[bool] = []
        try:
            targets = [_Target(each.address, each.length) for each in job]
            pieces = [piece for target in targets for piece in target.pieces]
            job[0].segment.file.read(pieces, job[0].offset)
            for target, each in zip(targets, job, strict=True):
                target.settle()
                good.append(crc32(0, each.address, each.length) == each.checksum)
        except OSError as error:
            failure = error
        with self._log.lock:
            if failure is not None:
                self._log.counters.io_errors += 1
            self._log.counters.checksum_failures += good.count(False)
            for number, each in enumerate(job):
                each.segment.holders -= 1
                status = ItemStatus.IO_ERROR
                if failure is None:
                    status = ItemStatus.OK if good[number] else ItemStatus.BAD_CHECKSUM
                each.ticket.finish(each.index, status, 0, each.length)
            self._settled()


class _Target:
    """Where the pages of a record go, and what is to be copied when they are there."""

    def __init__(self, address: int, length: int) -> None:
        self._address, self._length = address, length
        self._whole = 0 if address % PAGE_BYTES else length - length % PAGE_BYTES
        self.pieces: list[memoryview] = []
        if self._whole:
            self.pieces.append(memory_at(address, self._whole))
        rest = padded(length) - self._whole
        self._bounce = aligned_buffer(rest) if rest else None
        if self._bounce is not None:
            self.pieces.append(self._bounce)

    def settle(self) -> None:
        """The bytes are in."""
        if self._bounce is not None:
            source = int(np.frombuffer(self._bounce, np.uint8).ctypes.data)
            copy(self._address + self._whole, source, self._length - self._whole)


def _jobs(wanted: Sequence[_Wanted]) -> list[list[_Wanted]]:
    """Runs of neighbours."""
    jobs: list[list[_Wanted]] = []
    nbytes = 0
    for each in wanted:
        last = jobs[-1][-1] if jobs else None
        nbytes += padded(each.length)
        if (
            last is not None
            and last.segment is each.segment
            and last.offset + padded(last.length) == each.offset
            and nbytes <= JOB_BYTES
            and len(jobs[-1]) < _JOB_READS
        ):
            jobs[-1].append(each)
        else:
            jobs.append([each])
            nbytes = padded(each.length)
    return jobs
