"""What an operation returns: one status a key, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvlane.capsule import KeyStatus


@dataclass(frozen=True, slots=True, eq=False)
class StoreResult:
    """How a store ended, key by key."""

    statuses: NDArray[np.uint8]
    """``KeyStatus`` of each key."""

    @property
    def ok(self) -> NDArray[np.bool_]:
        """True where the agent has the block now, from this writer or from an earlier one."""
        kept: NDArray[np.bool_] = (self.statuses == KeyStatus.OK) | (
            self.statuses == KeyStatus.EXISTS
        )
        return kept


@dataclass(frozen=True, slots=True, eq=False)
class RetrieveResult:
    """How a retrieve ended, key by key; buffers of keys that are not ``ok`` are undefined."""

    statuses: NDArray[np.uint8]
    """``KeyStatus`` of each key."""
    lengths: NDArray[np.uint32]
    """Bytes of each stored block; with BAD_LENGTH, what the buffer should have held."""
    checksums: NDArray[np.uint32]
    """CRC-32 of each stored block."""

    @property
    def ok(self) -> NDArray[np.bool_]:
        """True where the block is in its buffer."""
        delivered: NDArray[np.bool_] = self.statuses == KeyStatus.OK
        return delivered
