"""Loops over blocks by address: copying to and from staging, and checksums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from host_driver.queue_warmup_kernels import compile_queue_kernels
from kvlane.jit import kernel
from kvlane.rawmem import copy, crc32


@kernel
def copy_blocks(
    destinations: NDArray[np.int64], sources: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    """Copy block after block between addresses."""
    for i in range(len(lengths)):
        copy(destinations[i], sources[i], lengths[i])


@kernel
def crc_blocks(
    addrs: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint32]
) -> None:
    """Write the CRC-32 of each block into ``out``."""
    for i in range(len(lengths)):
        out[i] = np.uint32(crc32(0, addrs[i], lengths[i]))


def warm_up() -> None:
    """Compile or load all kernels now, so that neither a transfer nor a NIC waits for that."""
    compile_queue_kernels()
    nothing = np.zeros(0, np.int64)
    copy_blocks(nothing, nothing, nothing)
    crc_blocks(nothing, nothing, np.zeros(0, np.uint32))
