"""A burst of RoCEv2 datagrams: descriptors, and the memory that their bytes lie in.

A frame here is the UDP payload of a RoCEv2 packet, from the first byte of the BTH to the
last of the ICRC. Its IP and UDP headers are not bytes but fields of the descriptor,
because a UDP socket never shows them; they are needed for the ICRC, which covers them
(IBTA 1.7 annex A17), and a link that owns its headers writes them out from these fields.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvlane.rawmem import record_accessor

FRAME = np.dtype(
    [
        ("offset", "i8"),  # of the BTH in the burst's arena
        ("length", "i8"),  # BTH to ICRC, bytes
        ("src_hi", "i8"),  # source GID, its upper 8 bytes as a big-endian number
        ("src_lo", "i8"),
        ("dst_hi", "i8"),  # destination GID
        ("dst_lo", "i8"),
        ("src_port", "i8"),  # UDP
        ("dst_port", "i8"),
        ("tos", "i8"),  # IPv4 TOS or IPv6 traffic class, with the ECN bits
        ("ip_id", "i8"),  # IPv4 identification
        ("ip_frag", "i8"),  # IPv4 flags and fragment offset, 16 bits; 0x4000 is DF
        ("flow_label", "i8"),  # IPv6, 20 bits
    ]
)
"""One datagram. GID halves are the 64-bit patterns read as signed integers."""

IPV4_MAPPED_LOW = 0xFFFF << 32
"""Upper part of ``dst_lo`` when the GID is an IPv4 address (``::ffff:a.b.c.d``), ``dst_hi`` 0."""


BURST = np.dtype(
    [
        ("frames", "i8"),  # address of the descriptors
        ("max_frames", "i8"),
        ("arena", "i8"),
        ("arena_bytes", "i8"),
        ("count", "i8"),  # valid descriptors
    ]
)
"""A burst as kernels see it."""

burst_at = record_accessor(BURST)
frame_at = record_accessor(FRAME)


class Burst:
    """Room for frames: ``count`` descriptors are valid, their bytes are in ``arena``."""

    def __init__(self, max_frames: int, arena_bytes: int) -> None:
        self.frames: Any = np.zeros(max_frames, FRAME).view(np.recarray)
        self.arena: NDArray[np.uint8] = np.zeros(arena_bytes, np.uint8)
        self.frames_addr = int(self.frames.ctypes.data)
        self.arena_addr = int(self.arena.ctypes.data)
        self._record = np.zeros(1, BURST)
        self._record[0] = (self.frames_addr, max_frames, self.arena_addr, arena_bytes, 0)
        self._count = self._record["count"]
        self.address = int(self._record.ctypes.data)
        """Of the ``BURST`` that says all this."""

    @property
    def count(self) -> int:
        """Valid descriptors."""
        return int(self._count[0])

    @count.setter
    def count(self, count: int) -> None:
        self._count[0] = count

    def clear(self) -> None:
        """Forget all frames."""
        self.count = 0

    def payload(self, index: int) -> bytes:
        """A copy of frame ``index``, BTH to ICRC."""
        offset, length = int(self.frames.offset[index]), int(self.frames.length[index])
        return self.arena[offset : offset + length].tobytes()

    def append(self, payload: bytes, descriptor: Any) -> bool:
        """Copy a frame in, with the address fields of ``descriptor``; False when it is full."""
        used = 0
        if self.count:
            used = int((self.frames.offset[: self.count] + self.frames.length[: self.count]).max())
        if self.count == len(self.frames) or used + len(payload) > len(self.arena):
            return False
        self.arena[used : used + len(payload)] = np.frombuffer(payload, np.uint8)
        self.frames[self.count] = descriptor
        self.frames.offset[self.count] = used
        self.frames.length[self.count] = len(payload)
        self.count += 1
        return True


class Link(Protocol):
    """Carries bursts. Non-blocking; may lose, never raises for what a peer sent."""

    @property
    def gid(self) -> bytes:
        """This end's address, 16 bytes; the first of ``gids``."""

    @property
    def gids(self) -> tuple[bytes, ...]:
        """All addresses that frames may come from and go to at this end."""

    @property
    def udp_port(self) -> int:
        """Where this end receives."""

    @property
    def source_port(self) -> int:
        """The UDP source port of every frame it sends; 0 when each flow may choose its own."""

    @property
    def receive_window_bytes(self) -> int:
        """How many bytes may be under way to this end before it is likely to lose some."""

    def send(self, burst: Burst) -> int:
        """Send the frames in order; return how many the link accepted (a prefix)."""

    def receive(self, burst: Burst, now: int) -> int:
        """Fill an empty burst with what has arrived; return the number of frames.

        ``now`` (ns) is for wrappers that hold frames back.
        """

    def next_release(self, now: int) -> int | None:
        """When to call ``receive`` though ``fileno`` is silent; ``None`` when there is no need."""

    def fileno(self) -> int:
        """A descriptor that is readable when ``receive`` may return frames."""

    def counters(self) -> dict[str, int]:
        """What the link itself has lost or done, by names that begin with ``link_``."""

    def close(self) -> None:
        """Release sockets; nothing is received afterwards."""
