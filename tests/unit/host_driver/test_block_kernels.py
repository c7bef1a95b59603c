"""Held: the block kernels do what the obvious loop over bytes objects does."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from host_driver.block_kernels import copy_blocks, crc_blocks, warm_up

LENGTHS = np.array([1, 64, 1000, 7, 0, 4096], np.int64)


def addresses(memory: np.ndarray, gap: int) -> np.ndarray:
    """Addresses of blocks of LENGTHS in ``memory``, with gaps between them."""
    starts = np.concatenate(([0], np.cumsum(LENGTHS + gap)[:-1]))
    return int(memory.ctypes.data) + starts.astype(np.int64)


@pytest.fixture
def source() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, 8192, np.uint8)


def test_copies_are_those_of_a_loop_and_touch_nothing_else(source: np.ndarray) -> None:
    target = np.full(8192, 0xEE, np.uint8)
    expected = target.copy()
    sources, targets = addresses(source, 3), addresses(target, 11)
    for src, dst, length in zip(sources, targets, LENGTHS, strict=True):
        at, to = src - source.ctypes.data, dst - target.ctypes.data
        expected[to : to + length] = source[at : at + length]
    copy_blocks(targets, sources, LENGTHS)
    assert np.array_equal(target, expected)


def test_checksums_are_those_of_zlib(source: np.ndarray) -> None:
    sums = np.zeros(len(LENGTHS), np.uint32)
    starts = addresses(source, 3)
    crc_blocks(starts, LENGTHS, sums)
    offsets = starts - source.ctypes.data
    assert sums.tolist() == [
        zlib.crc32(source[at : at + n].tobytes()) for at, n in zip(offsets, LENGTHS, strict=True)
    ]


def test_warming_up_needs_no_memory() -> None:
    warm_up()
