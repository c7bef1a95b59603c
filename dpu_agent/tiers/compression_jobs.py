"""What threads compress: neighbours of one append, into one buffer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpu_agent.segments.layout import padded
from dpu_agent.segments.locations import NOWHERE
from dpu_agent.segments.requests import ItemStatus, Record
from dpu_agent.tiers.block_codec import BlockCodec
from dpu_agent.tiers.encoded_block import HEADER_BYTES, ZSTD
from kvlane.rawmem import crc32

_JOB_BYTES = 1 << 20
"""Short blocks are compressed and appended together, up to so many bytes."""


def buffer_bytes(block_bytes: int) -> int:
    """A buffer that any job fits, of blocks up to ``block_bytes``."""
    return padded(max(block_bytes, _JOB_BYTES))


@dataclass(eq=False, slots=True)
class Append:
    """A call, item by item."""

    ticket: int
    lengths: list[int]
    durable: bool
    missing: int
    statuses: list[ItemStatus] = field(init=False)
    locations: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.statuses = [ItemStatus.IO_ERROR] * self.missing
        self.locations = [NOWHERE] * self.missing


@dataclass(eq=False, slots=True)
class Job:
    """Neighbours of one call that are compressed into one buffer and appended together."""

    append: Append
    first: int
    records: list[Record]
    """As they are to be appended, once it is ready."""
    buffer: memoryview | None = None
    cpu_ns: int = 0
    is_ready: bool = False


class CodecOfThread(threading.local):
    """A codec for each thread that asks for one."""

    def __init__(self, new_codec: Callable[[], BlockCodec]) -> None:
        self._new = new_codec
        self._codec: BlockCodec | None = None

    @property
    def codec(self) -> BlockCodec:
        """That of the calling thread."""
        if self._codec is None:
            self._codec = self._new()
        return self._codec


def parts_of(records: Sequence[Record]) -> Iterator[tuple[int, list[Record]]]:
    """Neighbours whose pages are ``_JOB_BYTES`` at most, or single ones; the number of the first,
    and they."""
    part: list[Record] = []
    first = nbytes = 0
    for index, record in enumerate(records):
        if part and nbytes + padded(record.length) > _JOB_BYTES:
            yield first, part
            part, first, nbytes = [], index, 0
        part.append(record)
        nbytes += padded(record.length)
    if part:
        yield first, part


def encoded(codec: BlockCodec, job: Job) -> list[Record]:
    """The records of a job as they are to be appended, compressed or not."""
    assert job.buffer is not None
    base = int(np.frombuffer(job.buffer, np.uint8).ctypes.data)
    records: list[Record] = []
    at = 0
    for record in job.records:
        # What is compressed saves a page at least, so the rest of the buffer has room for all.
        target = job.buffer[at:]
        stored = codec.encode(record.address, record.length, record.checksum, target)
        if stored:
            tag = target[:HEADER_BYTES].tobytes()
            checksum = crc32(0, base + at, stored)
            record = Record(record.key, base + at, stored, checksum, tag, ZSTD)
            at += padded(stored)
        records.append(record)
    return records
