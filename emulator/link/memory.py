"""Two links joined in one process: nothing is reordered, no socket, and nothing is lost but
what is longer than a whole burst of its receiver."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from ipaddress import IPv4Address

from emulator.link.datagrams import Datagram, datagrams_of, fill
from emulator.link.frames import Burst
from emulator.link.gid import ipv4_gid
from kvlane.limits import ROCE_V2_UDP_PORT

DEFAULT_CAPACITY_FRAMES = 4096
_FRAME_BYTES = 4096
"""Payload of the largest path MTU, for the window."""


class MemoryLink:
    """A ``Link`` whose peer is another object; made by ``memory_link_pair``.

    Frames arrive with the descriptor that they were sent with. Which of the two sends to
    which is fixed: the destination GID is not looked at.
    """

    def __init__(self, gid: bytes, capacity_frames: int) -> None:
        self._gid = gid
        self._capacity_frames = capacity_frames
        self._inbox: deque[Datagram] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._peer = self
        self.lost_receiving = 0
        """Frames that no burst had room for."""

    @property
    def gid(self) -> bytes:
        """This end's address."""
        return self._gid

    @property
    def gids(self) -> tuple[bytes, ...]:
        """This end's address alone."""
        return (self._gid,)

    @property
    def udp_port(self) -> int:
        """The port of RoCEv2."""
        return ROCE_V2_UDP_PORT

    @property
    def source_port(self) -> int:
        """0: each flow chooses its own."""
        return 0

    @property
    def receive_window_bytes(self) -> int:
        """What the queue holds of full-sized frames."""
        return self._capacity_frames * _FRAME_BYTES

    def send(self, burst: Burst) -> int:
        """Put frames into the peer's queue, as many as it has room for."""
        return self._peer._take(burst)

    def _take(self, burst: Burst) -> int:
        if self._event < 0:
            return burst.count
        room = max(0, self._capacity_frames - len(self._inbox))
        for datagram in itertools.islice(datagrams_of(burst), room):
            self._inbox.append(datagram)
        if self._inbox:
            os.eventfd_write(self._event, 1)
        return min(room, burst.count)

    def receive(self, burst: Burst, now: int) -> int:  # noqa: ARG002 (holds nothing back)
        """Take frames out of the queue while the burst has room."""
        if self._event < 0:
            return 0
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        # Lowered first, so that a frame that arrives meanwhile raises it again.
        self.lost_receiving += fill(burst, self._inbox)
        if self._inbox:
            os.eventfd_write(self._event, 1)
        return burst.count

    def next_release(self, now: int) -> int | None:  # noqa: ARG002
        """Nothing is held back here."""
        return None

    def fileno(self) -> int:
        """An eventfd that is readable while the queue holds frames; -1 after ``close``."""
        return self._event

    def counters(self) -> dict[str, int]:
        """Frames lost at this end."""
        return {"link_lost_receiving": self.lost_receiving}

    def close(self) -> None:
        """Forget what has not been received; what the peer still sends is lost."""
        if self._event >= 0:
            event, self._event = self._event, -1
            self._inbox.clear()
            os.close(event)


def memory_link_pair(
    capacity_frames: int = DEFAULT_CAPACITY_FRAMES,
) -> tuple[MemoryLink, MemoryLink]:
    """Two joined links, 192.0.2.1 and 192.0.2.2 (addresses for documentation, RFC 5737).

    Each direction holds up to ``capacity_frames`` that have not been received.
    """
    first, second = (
        MemoryLink(ipv4_gid(IPv4Address(address)), capacity_frames)
        for address in ("192.0.2.1", "192.0.2.2")
    )
    first._peer, second._peer = second, first
    return first, second
