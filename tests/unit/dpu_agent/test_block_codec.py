"""Blocks compressed and back: what comes back is the block or is refused, whatever lies there."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.segments.layout import PAGE_BYTES, padded
from dpu_agent.segments.requests import Kept
from dpu_agent.tiers.block_codec import BlockCodec
from dpu_agent.tiers.encoded_block import (
    ELEMENT_BYTES,
    HEADER_BYTES,
    ZSTD,
    BlockHeader,
    as_blocks,
)
from emulator.bench.kv_blocks import kv_block
from kvlane.errors import StorageFormatError
from kvlane.limits import MAX_BLOCK_BYTES
from tests.support.cold_payloads import BlockMemory, noise, numbers

BLOCK_BYTES = 256 << 10
LONG = 200_001


class Bench:
    """A codec, a slot with a block, and what became of it."""

    def __init__(self, element_bytes: int = 2, level: int = 1) -> None:
        self.codec = BlockCodec(level, element_bytes, BLOCK_BYTES)
        self.memory = BlockMemory(1, BLOCK_BYTES)
        self.target = np.zeros(BLOCK_BYTES, np.uint8)

    def encode(self, block: np.ndarray) -> bytes | None:
        self.memory.put(0, block)
        checksum = zlib.crc32(block.tobytes())
        stored = self.codec.encode(
            self.memory.address(0), len(block), checksum, memoryview(self.target)
        )
        return self.target[:stored].tobytes() if stored else None

    def decode(self, stored: bytes, length: int) -> bytes | None:
        """The block, or None where it was refused; nothing behind it may have been written."""
        self.memory.put(0, np.frombuffer(stored, np.uint8))
        good = self.codec.decode(self.memory.address(0), len(stored), length)
        assert self.memory.is_untouched(0, max(length, len(stored)))
        return self.memory.content(0, length) if good else None


@pytest.mark.parametrize("level", [1, 3, 19])
@pytest.mark.parametrize("element_bytes", ELEMENT_BYTES)
@pytest.mark.parametrize("nbytes", [8193, 65536, LONG, BLOCK_BYTES])
def test_blocks_come_back(element_bytes: int, level: int, nbytes: int) -> None:
    bench = Bench(element_bytes, level)
    block = numbers(nbytes, nbytes)
    stored = bench.encode(block)
    assert stored is not None
    assert padded(len(stored)) <= padded(nbytes) - PAGE_BYTES
    assert bench.decode(stored, nbytes) == block.tobytes()


def test_one_codec_reads_what_others_wrote() -> None:
    block = numbers(1, LONG)
    stored = Bench(element_bytes=4, level=5).encode(block)
    assert stored is not None
    assert Bench(element_bytes=1).decode(stored, LONG) == block.tobytes()


@pytest.mark.parametrize("nbytes", [1, 100, PAGE_BYTES, PAGE_BYTES + 1, 65536, LONG, BLOCK_BYTES])
def test_what_does_not_shrink_is_left_alone(nbytes: int) -> None:
    assert Bench().encode(noise(nbytes, nbytes)) is None


def test_a_block_that_saves_no_page_is_left_alone() -> None:
    block = np.zeros(PAGE_BYTES, np.uint8)
    assert Bench().encode(block) is None
    assert Bench().encode(np.zeros(PAGE_BYTES + 1, np.uint8)) is not None


@pytest.mark.parametrize("filled", [0.2, 0.5, 0.8])
def test_a_block_that_is_partly_filled_is_compressed(filled: float) -> None:
    block = noise(1, BLOCK_BYTES)
    block[int(filled * BLOCK_BYTES) :] = 0
    stored = Bench().encode(block)
    assert stored is not None
    assert len(stored) < (filled + 0.05) * BLOCK_BYTES


def test_the_shuffle_makes_numbers_smaller() -> None:
    block = kv_block(BLOCK_BYTES, seed=1)
    with_it, without = Bench(element_bytes=2).encode(block), Bench(element_bytes=1).encode(block)
    assert with_it is not None
    assert without is not None
    assert len(with_it) < 0.75 * len(block)
    assert len(with_it) < 0.95 * len(without)


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_damaged_bytes_never_become_another_block(position: int, flip: int) -> None:
    bench, block = Bench(), numbers(3, 20_000)
    stored = bytearray(bench.encode(block) or b"")
    stored[position % len(stored)] ^= flip
    assert bench.decode(bytes(stored), len(block)) in (None, block.tobytes())


@given(kept=st.integers(0, 10**6))
def test_bytes_that_end_too_early_are_refused(kept: int) -> None:
    bench, block = Bench(), numbers(3, 20_000)
    stored = bench.encode(block) or b""
    assert bench.decode(stored[: kept % len(stored)], len(block)) is None


@given(payload=st.binary(max_size=200), is_headed=st.booleans())
def test_arbitrary_bytes_are_refused(payload: bytes, is_headed: bool) -> None:
    header = BlockHeader(20_000, 0, 2).emit() if is_headed else b""
    assert Bench().decode(header + payload, 20_000) is None


@pytest.mark.parametrize("claimed", [0, 1, 19_999, 20_001, BLOCK_BYTES, 1 << 40])
def test_a_frame_of_another_size_than_said_is_refused(claimed: int) -> None:
    """Whether its header says so or its contents do."""
    block = numbers(3, 20_000)
    header = BlockHeader(len(block), zlib.crc32(block.tobytes()), 1).emit()
    frame = zstandard.ZstdCompressor().compress(bytes(min(claimed, 1 << 20)))
    if claimed == 1 << 40:
        # Magic, descriptor (8 bytes of content size, single segment), content size, one RLE block.
        frame = b"\x28\xb5\x2f\xfd\xe0" + claimed.to_bytes(8, "little") + b"\x03\x00\x10\x41"
        assert zstandard.frame_content_size(frame) == claimed
    assert Bench().decode(header + frame, len(block)) is None


def test_a_frame_with_more_in_it_than_it_says_is_refused() -> None:
    said = 20_000
    header = BlockHeader(said, zlib.crc32(b"A" * said), 1).emit()
    # Single segment, four bytes of content size, two RLE blocks of 128 KiB.
    rle = ((1 << 17) << 3 | 1 << 1).to_bytes(3, "little") + b"A"
    last = ((1 << 17) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"A"
    frame = b"\x28\xb5\x2f\xfd\xa0" + said.to_bytes(4, "little") + rle + last
    assert Bench().decode(header + frame, said) is None


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    block = numbers(3, 20_000).tobytes()
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(block)
    header = BlockHeader(len(block), zlib.crc32(block), 1).emit()
    assert Bench().decode(header + frame, len(block)) is None


def test_another_length_than_asked_for_is_refused() -> None:
    bench, block = Bench(), numbers(3, 20_000)
    stored = bench.encode(block) or b""
    for length in (19_999, 20_001, BLOCK_BYTES):
        assert bench.decode(stored, length) is None


def test_a_longer_block_than_the_codec_has_memory_for_is_refused() -> None:
    block = np.zeros(BLOCK_BYTES + 1, np.uint8)
    frame = zstandard.ZstdCompressor().compress(block.tobytes())
    stored = BlockHeader(len(block), zlib.crc32(block.tobytes()), 1).emit() + frame
    assert Bench().decode(stored, len(block)) is None


def test_headers_come_back() -> None:
    for header in (BlockHeader(1, 0, 1), BlockHeader(MAX_BLOCK_BYTES, 0xFFFFFFFF, 4)):
        assert len(header.emit()) == HEADER_BYTES
        assert BlockHeader.parse(header.emit()) == header


@pytest.mark.parametrize(
    ("at", "value"), [(0, 0), (4, 2), (5, 3), (5, 0), (6, 1), (7, 1), (11, 0xFF)]
)
def test_headers_that_this_version_does_not_write_are_refused(at: int, value: int) -> None:
    header = bytearray(BlockHeader(4096, 7, 2).emit())
    header[at] = value
    with pytest.raises(StorageFormatError):
        BlockHeader.parse(bytes(header))


def test_a_log_tells_of_blocks_as_they_will_be() -> None:
    raw = Kept(bytes(32), 1, 100, 5, bytes(16), 0)
    compressed = Kept(bytes(32), 2, 60, 6, BlockHeader(100, 7, 2).emit(), ZSTD)
    assert list(as_blocks([raw, compressed])) == [raw, replace(compressed, length=100, checksum=7)]


@pytest.mark.parametrize("encoding", [2, 0xFFFF])
def test_an_encoding_of_another_version_is_refused(encoding: int) -> None:
    with pytest.raises(StorageFormatError, match=f"encoding {encoding}"):
        list(as_blocks([Kept(bytes(32), 1, 100, 5, bytes(16), encoding)]))
