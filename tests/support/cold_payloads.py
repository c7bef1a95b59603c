"""Blocks that compress and blocks that do not, in memory by address."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from dpu_agent.segments.direct_file import aligned_buffer
from dpu_agent.segments.requests import Record
from tests.support.segment_blocks import key_of


def noise(seed: int, nbytes: int) -> NDArray[np.uint8]:
    """Nothing makes it shorter."""
    return np.random.default_rng((1, seed)).integers(0, 256, nbytes, np.uint8)


def numbers(seed: int, nbytes: int) -> NDArray[np.uint8]:
    """Numbers of two bytes, of which the higher one is nearly always the same."""
    block = noise(seed, nbytes)
    block[1::2] = 0x3C + (block[1::2] > 200)
    return block


class BlockMemory:
    """Slots that blocks are written from and read to, each with guarded bytes behind it."""

    GUARD = 4096

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._pitch = -(-slot_bytes // 4096) * 4096 + self.GUARD
        self._bytes = np.frombuffer(aligned_buffer(slots * self._pitch), np.uint8)
        self._bytes[:] = 0xA5
        self._base = int(self._bytes.ctypes.data)

    def address(self, slot: int) -> int:
        return self._base + slot * self._pitch

    def content(self, slot: int, nbytes: int) -> bytes:
        at = slot * self._pitch
        return self._bytes[at : at + nbytes].tobytes()

    def put(self, slot: int, block: NDArray[np.uint8]) -> None:
        at = slot * self._pitch
        self._bytes[at : at + self._pitch] = 0xA5
        self._bytes[at : at + len(block)] = block

    def record(self, slot: int, number: int, block: NDArray[np.uint8]) -> Record:
        """A record of a block, which is put in a slot."""
        self.put(slot, block)
        checksum = zlib.crc32(block.tobytes())
        return Record(key_of(number), self.address(slot), len(block), checksum)

    def is_untouched(self, slot: int, nbytes: int) -> bool:
        """Whether nothing behind the first bytes of a slot was written."""
        at = slot * self._pitch
        return bool((self._bytes[at + nbytes : at + self._pitch] == 0xA5).all())
