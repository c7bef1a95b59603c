"""Other devices of this host: their boards, their memory and their processes."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.pcie.layout import BOARD_BYTES, MAP, MAP_CAPACITY, PEER, PEER_CAPACITY
from emulator.pcie.mapping import NO_DESCRIPTORS, Mapping, map_of_peer
from emulator.pcie.messages import bell_name
from emulator.pcie.reach import advice
from kvlane.errors import CapacityError, ProtocolError
from kvlane.verbs.records import new_records

_log = logging.getLogger(__name__)
_AF_UNIX = 1

Reach = Callable[[int, int], int]
"""``why_not_reached`` of ``reach``."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a peer's first message says of its process."""

    gid: bytes
    pid: int
    """0: in a PID namespace that this process does not see."""
    board_address: int
    """Where its board is in its own process: there we try whether its memory can be reached."""
    pidfd: int = -1
    """The process, where the kernel tells; it is the receiver's to close."""


class Peer:
    """A device that queue pairs of this one are connected with, or are about to be."""

    def __init__(self, introduction: Introduction, index: int, board: Mapping) -> None:
        self.gid = introduction.gid
        self.pid = introduction.pid
        self.index = index
        self.users = 0
        """Queue pairs that are attached to it, or have an offer of it."""
        self.given_up = False
        self.board = board
        # One that came with the message is of its sender, even if that is dead by now and its
        # number another's, or is in a PID namespace that we do not see.
        came = introduction.pidfd
        self.pidfd = os.dup(came) if came >= 0 else os.pidfd_open(self.pid)
        self.maps = new_records(MAP, MAP_CAPACITY)
        self._mappings: dict[int, Mapping] = {}
        self.bell_address = _unix_address(bell_name(self.gid))

    def map(self, map_id: int, fd: int) -> None:
        """Map shared memory of its; where that fails, its process is reached into."""
        if not 0 <= map_id < MAP_CAPACITY:
            return
        self.unmap(map_id)
        try:
            mapping = map_of_peer(fd)
        except ProtocolError as error:
            _log.warning("process %d: %s", self.pid, error)
            return
        self._mappings[map_id] = mapping
        self.maps["length"][map_id] = mapping.nbytes
        self.maps["address"][map_id] = mapping.address

    def unmap(self, map_id: int) -> None:
        """Forget shared memory of its."""
        mapping = self._mappings.pop(map_id, None)
        if mapping is not None:
            self.maps["address"][map_id] = 0
            mapping.close()

    def is_dead(self) -> bool:
        """Whether its process has ended."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Unmap all of it."""
        for map_id in list(self._mappings):
            self.unmap(map_id)
        self.board.close()
        os.close(self.pidfd)


class Peers:
    """The peers of a device, by GID."""

    def __init__(self, reach: Reach) -> None:
        self.table = new_records(PEER, PEER_CAPACITY)
        self._reach = reach
        self._by_gid: dict[bytes, Peer] = {}
        self._free = list(range(PEER_CAPACITY - 1, -1, -1))

    def find(self, gid: bytes) -> Peer | None:
        """The peer of that GID, if it has introduced itself."""
        return self._by_gid.get(gid)

    def meet(self, introduction: Introduction, board_fd: int) -> tuple[Peer, bool]:
        """The peer that introduces itself, and whether it is new.

        ``ProtocolError`` when it gives no proper board, or the GID of another process.
        """
        peer = self._by_gid.get(introduction.gid)
        if peer is not None:
            if peer.pid != introduction.pid:
                raise ProtocolError(f"process {introduction.pid} uses the GID of {peer.pid}")
            return peer, False
        if not self._free:
            raise CapacityError(f"{PEER_CAPACITY} devices are connected; close some")
        board = map_of_peer(board_fd, BOARD_BYTES, writable=False)
        try:
            peer = Peer(introduction, self._free[-1], board)
        except OSError as error:
            board.close()
            if error.errno in NO_DESCRIPTORS:
                raise CapacityError(f"no descriptor is left for a peer: {error}") from error
            raise ProtocolError(f"process {introduction.pid} is gone: {error}") from error
        self._by_gid[peer.gid] = peer
        self._free.pop()
        self._enter(peer, self._reach(introduction.pid, introduction.board_address))
        return peer, True

    def _enter(self, peer: Peer, why_not_reached: int) -> None:
        entry = self.table[peer.index]
        entry.board = peer.board.address
        entry.pid = peer.pid
        entry.maps = peer.maps.ctypes.data
        entry.pidfd = peer.pidfd
        entry.why_not_reached = why_not_reached
        entry.is_bounced = 0
        entry.bell_address = peer.bell_address.ctypes.data
        entry.bell_address_bytes = len(peer.bell_address)
        entry.rung_for = 0

    def forget(self, peer: Peer) -> None:
        """Nobody uses it any more."""
        del self._by_gid[peer.gid]
        self.table.board[peer.index] = 0
        self._free.append(peer.index)
        peer.close()

    def remark(self) -> None:
        """Tell people, once for each peer, why its memory takes the slow way."""
        for peer in self._by_gid.values():
            entry = self.table[peer.index]
            if entry.is_bounced == 1:
                entry.is_bounced = 2
                _log.warning("%s", advice(peer.pid, int(entry.why_not_reached)))

    def by_pidfd(self, pidfd: int) -> Peer | None:
        """The peer whose process a descriptor is."""
        return next((peer for peer in self._by_gid.values() if peer.pidfd == pidfd), None)

    def close(self) -> None:
        """Forget all."""
        for peer in list(self._by_gid.values()):
            self.forget(peer)


def _unix_address(name: bytes) -> NDArray[np.uint8]:
    """``sockaddr_un`` of an abstract name."""
    family = np.array([_AF_UNIX], np.uint16).tobytes()
    address: NDArray[np.uint8] = np.frombuffer(family + name, np.uint8).copy()
    return address
