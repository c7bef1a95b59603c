"""What a peer does for the benchmarks. Every call moves what it says, checks it and raises."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Keys = list[bytes]


class PeerUnavailableError(Exception):
    """The peer cannot run here; the text says what it needs."""


class PeerFailedError(Exception):
    """A peer that ran has failed; the text says how."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


class Peer(Protocol):
    """A running peer; ``close`` ends all that was started, paused or not."""

    name: str

    def pause(self) -> None:
        """Stop its processes where they are, so that they do not disturb another's turn."""

    def resume(self) -> None:
        """Let them run again."""

    def close(self) -> None:
        """End client and server."""


class Store(Peer, Protocol):
    """A running store with one client."""

    def put(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """Store a row under each key; seconds that it took."""

    def get(self, keys: Keys, rows: NDArray[np.uint8]) -> float:
        """Fetch the block of each key into a row; seconds that it took."""

    def exist(self, keys: Keys) -> tuple[int, float]:
        """How many keys are there, and the seconds that it took to know of each."""

    def clear(self) -> None:
        """Forget all blocks."""
