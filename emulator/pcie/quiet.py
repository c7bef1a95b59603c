"""Waiting for copies by peers to end, and letting others use the device meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from emulator.driving._sleep_kernels import load_word
from emulator.pcie.layout import CHANNEL_ACTIVE
from emulator.pcie.mapping import SharedFile
from emulator.pcie.peers import Peer

QUIET_TIMEOUT_S = 2.0
"""After this, a peer in the middle of a copy of 256 KiB is taken for stopped."""
_FIRST_PAUSE_S = 10e-6
_MAX_PAUSE_S = 1e-3


class Copy:
    """What a peer was copying, by the channel into one queue pair, when it was looked at."""

    def __init__(self, channel: SharedFile, peer: Peer) -> None:
        self._channel = channel
        self.peer = peer
        self._word = self._load()

    def _load(self) -> int:
        return load_word(self._channel.mapping.address + CHANNEL_ACTIVE)

    def has_ended(self) -> bool:
        """Whether no byte of it can follow."""
        if not self._word & 1 or self.peer.is_dead():
            return True
        if not self._channel.mapping.nbytes:  # closed meanwhile, which waits for the same
            return not self.peer.given_up
        return self._load() != self._word


def poll_by_turns(lock: AbstractContextManager[None], is_over: Callable[[], bool]) -> None:
    """Ask until it is over, each time with the lock, and give it free in between.

    A caller that holds the lock for itself keeps it all the time.
    """
    pause_s = 0.0
    while True:
        with lock:
            if is_over():
                return
        time.sleep(pause_s)
        pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _MAX_PAUSE_S)
