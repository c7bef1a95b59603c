"""A segment log whose blocks may lie compressed, which whoever uses it need not know.

Threads of its own turn blocks into compressed ones and back; everything else happens in the
calls. A block is compressed into one of a few buffers, and appended from there once all that
were asked for before it are; so a log sees appends in the order in which they were asked for.
Blocks that do not shrink are appended from where they are.

Reads go straight to the memory of whoever reads. A compressed block is shorter than what was asked
for, which tells it from others, and is then decompressed in its place.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from dpu_agent.segments.direct_file import aligned_buffer
from dpu_agent.segments.io_queue import IoQueue
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.tiers.block_codec import BlockCodec
from dpu_agent.tiers.compression_jobs import (
    Append,
    CodecOfThread,
    Job,
    buffer_bytes,
    encoded,
    parts_of,
)
from dpu_agent.tiers.encoded_block import ZSTD
from dpu_agent.tiers.medium import PollableMedium

_LEAST_BUFFERS, _MOST_BUFFERS, _BUFFERED_BYTES = 2, 16, 64 << 20
"""Jobs that are being compressed or written: more wait, so that memory is bounded."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CompressionFigures:
    """Blocks and bytes since the start."""

    compressed: int = 0
    stored_raw: int = 0
    """Blocks that compression would not have made enough shorter, or was not asked to."""
    plain_bytes: int = 0
    """Of all blocks that were appended."""
    stored_bytes: int = 0
    """What of that was given to the log."""
    decompressed: int = 0
    compress_cpu_us: int = 0
    """Microseconds of processor, those for blocks that were stored raw included."""
    decompress_cpu_us: int = 0


@dataclass(eq=False, slots=True)
class _Reading:
    """A call, of which some items may have to be decompressed."""

    ticket: int
    reads: Sequence[Read]
    statuses: list[ItemStatus] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    missing: int = 0


class CompressedMedium:
    """Implements ``PollableMedium``; its methods are called from one thread.

    The capacity of a read is the length of its block. It reads what was compressed, whatever it is
    told to do with what is appended.
    """

    def __init__(
        self,
        log: PollableMedium,
        new_codec: Callable[[], BlockCodec],
        *,
        compresses: bool,
        block_bytes: int,
        threads: int,
    ) -> None:
        """``new_codec()`` is called by each thread that compresses or decompresses; ``threads`` is
        how many may do the one, and how many the other. The log is the caller's to close."""
        self.figures = CompressionFigures()
        self._medium = log
        self._compresses = compresses
        self._block_bytes = block_bytes
        self._codecs = CodecOfThread(new_codec)
        # Two queues: somebody waits for what is read, so it does not queue behind what is written.
        self._encoders = IoQueue("kvlane-compress", threads)
        self._decoders = IoQueue("kvlane-decompress", threads)
        self._tickets = count(1)
        self._buffers: list[memoryview] = []
        self._buffers_left = max(
            _LEAST_BUFFERS, min(_MOST_BUFFERS, _BUFFERED_BYTES // buffer_bytes(block_bytes))
        )
        """How many more may be made."""
        self._waiting: deque[Job] = deque()
        self._started: deque[Job] = deque()
        self._decoded: deque[tuple[_Reading, int, bool, int]] = deque()
        self._ends: dict[int, Callable[[Completion], None]] = {}
        """What to do when a ticket of the log has ended."""
        self._done: list[Completion] = []
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._epoll.register(log.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """A descriptor that is readable while ``poll`` has something to do."""
        return self._epoll.fileno()

    def append(self, records: Sequence[Record], *, durable: bool) -> int:
        """A ticket. The memory of the blocks stays untouched until it completes."""
        for record in records:
            record.validate(self._block_bytes)
        lengths = [record.length for record in records]
        ticket = next(self._tickets)
        append = Append(ticket, lengths, durable, len(records))
        compresses = self._compresses and bool(records)
        for first, part in parts_of(records) if compresses else [(0, list(records))]:
            self._waiting.append(Job(append, first, part, is_ready=not compresses))
        self._start_jobs()
        self._append_ready()
        return ticket

    def read(self, reads: Sequence[Read]) -> int:
        """A ticket."""
        reading = _Reading(next(self._tickets), tuple(reads))
        self._ends[self._medium.read(reads)] = partial(self._end_read, reading)
        return reading.ticket

    def delete(self, locations: Sequence[int], *, durable: bool) -> int:
        """A ticket."""
        ticket = next(self._tickets)
        inner = self._medium.delete(locations, durable=durable)
        self._ends[inner] = lambda done: self._done.append(replace(done, ticket=ticket))
        return ticket

    def moved(self) -> Sequence[tuple[int, int]]:
        """As of the log. What was moved before it was known where it was written is told too."""
        return self._medium.moved()

    def poll(self) -> Sequence[Completion]:
        """What has completed; meanwhile, what is due is begun."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        self._append_ready()
        for done in self._medium.poll():
            self._ends.pop(done.ticket)(done)
        while self._decoded:
            self._end_decoding(*self._decoded.popleft())
        self._start_jobs()
        self._append_ready()
        completed, self._done = self._done, []
        return completed

    def close(self) -> None:
        """End the threads. What is not in the log by now will not be."""
        self._waiting.clear()
        self._encoders.close()
        self._decoders.close()
        self._epoll.close()
        os.close(self._wake_fd)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    # Appends

    def _start_jobs(self) -> None:
        """Compress what waits, as far as there are buffers."""
        while self._waiting:
            job = self._waiting[0]
            if not job.is_ready:
                job.buffer = self._take_buffer()
                if job.buffer is None:
                    return
                self._encoders.submit(partial(self._encode, job))
            self._started.append(self._waiting.popleft())

    def _take_buffer(self) -> memoryview | None:
        if self._buffers:
            return self._buffers.pop()
        if not self._buffers_left:
            return None
        self._buffers_left -= 1
        return aligned_buffer(buffer_bytes(self._block_bytes))

    def _encode(self, job: Job) -> None:
        """In a thread that compresses."""
        began = time.thread_time_ns()
        try:
            job.records = encoded(self._codecs.codec, job)
        except Exception:
            _log.exception("a block could not be compressed and is stored as it is")
        job.cpu_ns = time.thread_time_ns() - began
        job.is_ready = True
        self._wake()

    def _append_ready(self) -> None:
        """Give the log what is compressed, in the order in which it was asked for."""
        while self._started and self._started[0].is_ready:
            job = self._started.popleft()
            self._count(job)
            inner = self._medium.append(job.records, durable=job.append.durable)
            self._ends[inner] = partial(self._end_job, job)

    def _count(self, job: Job) -> None:
        figures = self.figures
        compressed = sum(record.encoding == ZSTD for record in job.records)
        figures.compressed += compressed
        figures.stored_raw += len(job.records) - compressed
        lengths = job.append.lengths[job.first : job.first + len(job.records)]
        figures.plain_bytes += sum(lengths)
        figures.stored_bytes += sum(record.length for record in job.records)
        figures.compress_cpu_us += job.cpu_ns // 1000

    def _end_job(self, job: Job, done: Completion) -> None:
        if job.buffer is not None:
            self._buffers.append(job.buffer)
        append = job.append
        part = slice(job.first, job.first + len(done.statuses))
        append.statuses[part], append.locations[part] = done.statuses, done.locations
        append.missing -= len(done.statuses)
        if not append.missing:
            self._end_append(append)

    def _end_append(self, append: Append) -> None:
        statuses, locations = tuple(append.statuses), tuple(append.locations)
        self._done.append(Completion(append.ticket, statuses, locations, tuple(append.lengths)))

    # Reads

    def _end_read(self, reading: _Reading, done: Completion) -> None:
        reading.statuses, reading.lengths = list(done.statuses), list(done.lengths)
        for index, read in enumerate(reading.reads):
            stored = done.lengths[index]
            if done.statuses[index] is ItemStatus.OK and stored < read.capacity:
                reading.missing += 1
                self._decoders.submit(partial(self._decode, reading, index, read, stored))
        self._end_reading(reading)

    def _decode(self, reading: _Reading, index: int, read: Read, stored: int) -> None:
        """In a thread that decompresses."""
        began = time.thread_time_ns()
        is_right = False
        try:
            is_right = self._codecs.codec.decode(read.address, stored, read.capacity)
        except Exception:
            _log.exception("a block could not be decompressed")
        cpu_ns = time.thread_time_ns() - began
        self._decoded.append((reading, index, is_right, cpu_ns))
        self._wake()

    def _end_decoding(self, reading: _Reading, index: int, is_right: bool, cpu_ns: int) -> None:
        self.figures.decompressed += is_right
        self.figures.decompress_cpu_us += cpu_ns // 1000
        reading.lengths[index] = reading.reads[index].capacity
        if not is_right:
            reading.statuses[index] = ItemStatus.BAD_CHECKSUM
        reading.missing -= 1
        self._end_reading(reading)

    def _end_reading(self, reading: _Reading) -> None:
        if not reading.missing:
            locations = tuple(read.location for read in reading.reads)
            self._done.append(
                Completion(
                    reading.ticket, tuple(reading.statuses), locations, tuple(reading.lengths)
                )
            )
