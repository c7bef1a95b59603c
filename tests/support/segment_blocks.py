"""Blocks for tests of the segment log: bytes that follow from key and version."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from dpu_agent.segments.direct_file import aligned_buffer
from dpu_agent.segments.requests import Completion, ItemStatus, Read, Record
from dpu_agent.segments.segment_log import SegmentLog

TIMEOUT_S = 60.0


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def payload_of(number: int, version: int, nbytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng((number, version)).integers(0, 256, nbytes, np.uint8)


def version_tag(version: int) -> bytes:
    return version.to_bytes(16, "little")


class Memory:
    """Aligned memory that records are taken from and read to."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.frombuffer(aligned_buffer(nbytes), np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def record(self, number: int, version: int, nbytes: int, at: int = 0) -> Record:
        payload = payload_of(number, version, nbytes)
        self.bytes[at : at + nbytes] = payload
        checksum = zlib.crc32(payload.tobytes())
        return Record(key_of(number), self.address + at, nbytes, checksum, version_tag(version))


def append(log: SegmentLog, records: list[Record], *, durable: bool = True) -> Completion:
    return log.wait(log.append(records, durable=durable), TIMEOUT_S)


def delete(log: SegmentLog, locations: list[int], *, durable: bool = True) -> Completion:
    return log.wait(log.delete(locations, durable=durable), TIMEOUT_S)


def fetch(log: SegmentLog, location: int, capacity: int) -> tuple[ItemStatus, bytes]:
    memory = Memory(capacity)
    done = log.wait(log.read([Read(location, memory.address, capacity)]), TIMEOUT_S)
    return done.statuses[0], memory.bytes[: done.lengths[0]].tobytes()


def contents(log: SegmentLog, capacity: int) -> dict[int, int]:
    """Version of each number; every byte is checked, and that no key is there twice."""
    found: dict[int, int] = {}
    for kept in log.records():
        number, version = int.from_bytes(kept.key, "little"), int.from_bytes(kept.tag, "little")
        assert number not in found, f"block {number} is there twice"
        status, payload = fetch(log, kept.location, capacity)
        assert status is ItemStatus.OK, (number, version, status)
        assert payload == payload_of(number, version, kept.length).tobytes()
        found[number] = version
    return found
