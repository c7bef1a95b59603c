"""CRC-32 of many blocks in one call without the GIL."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvlane.jit import kernel
from kvlane.rawmem import crc32


@kernel
def checksum_blocks(
    addresses: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint32]
) -> None:
    """``out[i]`` = CRC-32 of ``lengths[i]`` bytes at ``addresses[i]``."""
    for i in range(len(addresses)):
        out[i] = crc32(0, addresses[i], lengths[i])
