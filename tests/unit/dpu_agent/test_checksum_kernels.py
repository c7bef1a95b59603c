"""The checksum kernel against zlib, block by block."""

from __future__ import annotations

import zlib

import numpy as np

from dpu_agent.data._checksum_kernels import checksum_blocks


def checksum_blocks_plain(
    memory: np.ndarray, offsets: np.ndarray, lengths: np.ndarray
) -> list[int]:
    """The twin: slices of bytes and zlib."""
    data = memory.tobytes()
    return [zlib.crc32(data[o : o + n]) for o, n in zip(offsets, lengths, strict=True)]


def test_the_kernel_agrees_with_zlib() -> None:
    memory = np.random.default_rng(5).integers(0, 256, 4096, np.uint8)
    lengths = np.array([0, 1, 7, 8, 9, 63, 64, 65, 1000], np.int64)
    offsets = np.array([0, 4095, 3, 8, 1, 100, 64, 9, 3096], np.int64)
    out = np.zeros(len(lengths), np.uint32)
    checksum_blocks(offsets + memory.ctypes.data, lengths, out)
    assert out.tolist() == checksum_blocks_plain(memory, offsets, lengths)


def test_no_blocks_are_no_work() -> None:
    empty = np.empty(0, np.int64)
    checksum_blocks(empty, empty, np.empty(0, np.uint32))
