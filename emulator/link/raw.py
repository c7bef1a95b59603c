"""RoCEv2 over an Ethernet interface, with headers of its own: for peers that are no kvlane.

A packet socket sends and receives whole frames, so the IP and UDP headers are exactly those
that descriptors say: every flow has its own source port, and type of service, identification
and flow label are real. The addresses are those of the interface, which the kernel keeps for
itself too: it answers ARP and NDP, and finds the next hops.

A frame whose next hop is still looked for waits a while; frames to the port itself never
leave the host, as in an HCA.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np

from emulator.link._ethernet_kernels import ETHERNET_BYTES
from emulator.link._peer_kernels import learn_peer
from emulator.link._raw_kernels import (
    FATE_LOOP,
    FATE_LOST,
    FATE_WIRE,
    GID,
    PORT,
    aim_inbox,
    build_burst,
    read_burst,
)
from emulator.link._socket_kernels import MESSAGE
from emulator.link.datagrams import Datagram, fill
from emulator.link.frames import Burst
from emulator.link.gid import gid_halves
from emulator.link.interface import Interface, find_interface
from emulator.link.neighbours import ASK_INTERVAL_NS, Answer, Halves, Neighbours
from emulator.link.netlink import Netlink
from emulator.link.packet_socket import Inbox, Outbox, PacketSocket, error_text
from emulator.link.port_claim import PortClaim
from emulator.link.socket_buffer import DEFAULT_BUFFER_BYTES
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.seams import Clock
from kvlane.verbs.records import new_records

SLOT_BYTES = 4352
"""Room for one received frame: the largest RoCE packet with all headers has 4217 bytes."""
MAX_LOOPED_FRAMES = 4096
MAX_WAITING_FRAMES = 1024
MAX_WAIT_NS = 1_000_000_000
"""A frame whose next hop is not found by then is lost."""
_LINK_IS_FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
_WAITING_ARENA_BYTES = 1 << 16

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A frame whose next hop is looked for."""

    until: int
    datagram: Datagram


class RawLink:
    """A ``Link`` on one Ethernet interface."""

    def __init__(
        self,
        interface: str,
        *,
        clock: Clock = time.monotonic_ns,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        """Open; ``ConfigError`` says what interface or process lacks."""
        self._clock = clock
        with ExitStack() as opened:
            self._netlink = opened.enter_context(closing(Netlink()))
            self.interface: Interface = find_interface(interface, self._netlink)
            self._socket = opened.enter_context(closing(PacketSocket(interface, buffer_bytes)))
            claim = opened.enter_context(closing(PortClaim(self.interface)))
            self._opened = opened.pop_all()
        self._port = new_records(PORT, 1)[0]
        self._port.mac = int.from_bytes(self.interface.mac, "big")
        self._gids = new_records(GID, len(self.interface.gids))
        for record, gid in zip(self._gids, self.interface.gids, strict=True):
            record.hi, record.lo = gid_halves(gid)
        self._port.gids, self._port.gid_count = self._gids.ctypes.data, len(self._gids)
        self._neighbours = Neighbours(
            self._port, self.interface.index, self._netlink, claim.by_version
        )
        self._outbox = Outbox(0, self._port)
        self._inbox = Inbox(0, self._port)
        self._aimed_at = (0, 0)
        self._looped: deque[Datagram] = deque()
        self._looped_turn = False
        self._waiting: deque[_Waiting] = deque()
        self._waiting_burst = Burst(16, _WAITING_ARENA_BYTES)
        self.lost_sending = 0
        """Frames that the kernel refused, or that no IP packet can carry."""
        self.lost_unresolved = 0
        """Frames whose next hop was not found."""
        self._told: set[int] = set()
        self._slot_bytes = min(
            SLOT_BYTES, -(-(self.interface.mtu_bytes + ETHERNET_BYTES) // 64) * 64
        )
        self._compile()

    def _compile(self) -> None:
        """Now and not at the first frame, whose peer may not wait so long."""
        build_burst(self._port, 0, 0, 0, 0, 0)
        aim_inbox(self._port, 0, 0, 0)
        read_burst(self._port, 0, 0, 0, 0, 0)
        learn_peer(self._port, *gid_halves(self.gid), 0, 0)  # 0 is no MAC: none is learnt

    @property
    def gid(self) -> bytes:
        """The first of ``gids``: IPv4 if there is any."""
        return self.interface.gids[0]

    @property
    def gids(self) -> tuple[bytes, ...]:
        """The addresses that the interface had when this was opened."""
        return self.interface.gids

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
        """What the socket buffer surely holds, in bytes of full-sized frames."""
        return self._socket.window_bytes

    def next_release(self, now: int) -> int | None:
        """At once for frames to ourselves; soon, while a next hop is looked for."""
        if self._looped:
            return now
        return now + ASK_INTERVAL_NS if self._waiting else None

    def fileno(self) -> int:
        """The packet socket; -1 after ``close``."""
        return self._socket.fileno()

    def counters(self) -> dict[str, int]:
        """Frames lost on this side of the network."""
        return {
            "link_lost_sending": self.lost_sending,
            "link_lost_receiving": int(self._port.lost),
            "link_lost_unresolved": self.lost_unresolved,
        }

    def close(self) -> None:
        """Close the sockets; what waits is forgotten."""
        self._looped.clear()
        self._waiting.clear()
        self._opened.close()

    # Sending

    def send(self, burst: Burst) -> int:
        """Send in order; a full socket buffer ends it, anything else that fails is a loss."""
        now = self._clock()
        if self._waiting:
            self._send_waiting(now)
        return self._send(burst, now)

    def _send(self, burst: Burst, now: int) -> int:
        """Put frames onto the wire, or aside; how many are done with."""
        if burst.count > self._outbox.frames:
            self._outbox = Outbox(len(burst.frames), self._port)
        room = MAX_LOOPED_FRAMES - len(self._looped)
        count = int(
            build_burst(self._port, burst.frames_addr, burst.arena_addr, burst.count, room, now)
        )
        if self._port.doubtful_peer >= 0:
            self._neighbours.confirm(int(self._port.doubtful_peer), now)
        done = self._send_messages(int(self._port.wire_count), count)
        if self._port.wire_count < count:
            self._put_aside(burst, done, now)
        return done

    def _send_messages(self, messages: int, frames: int) -> int:
        """Send the messages that were built; how many frames that finishes."""
        address = self._outbox.messages.ctypes.data
        sent = 0
        while sent < messages:
            went, code = self._socket.send(address + sent * MESSAGE.itemsize, messages - sent)
            sent += went
            if code in _LINK_IS_FULL:
                return int(self._outbox.wire[sent])
            if code:
                self._lose(code)
                sent += 1
        return frames

    def _put_aside(self, burst: Burst, frames: int, now: int) -> None:
        """Keep copies of those of the first ``frames`` that are not for the wire."""
        fates = self._outbox.fates[:frames]
        records = burst.frames.view(np.ndarray)
        for index in np.flatnonzero(fates != FATE_WIRE).tolist():
            if fates[index] == FATE_LOST:
                self.lost_sending += 1
                continue
            datagram = Datagram(burst.payload(index), records[index].copy())
            if fates[index] == FATE_LOOP:
                self._looped.append(datagram)
            else:
                self._wait(datagram, now)

    def _lose(self, code: int) -> None:
        """Count a frame that cannot be sent; there will be many, so say why once."""
        self.lost_sending += 1
        if code not in self._told:
            self._told.add(code)
            name = self.interface.name
            _log.warning("a frame cannot be sent over %s and is lost: %s", name, error_text(code))

    # Frames that wait for a MAC

    def _wait(self, datagram: Datagram, now: int) -> None:
        answer = self._neighbours.look(_destination(datagram), now)
        if answer is Answer.NO_ROUTE or len(self._waiting) == MAX_WAITING_FRAMES:
            self.lost_unresolved += 1
            return
        self._waiting.append(_Waiting(now + MAX_WAIT_NS, datagram))

    def _send_waiting(self, now: int) -> None:
        """Send what has a next hop by now, and give up what waited too long."""
        while self._waiting and self._waiting[0].until <= now:
            self._waiting.popleft()
            self.lost_unresolved += 1
        wanted = {_destination(waiting.datagram) for waiting in self._waiting}
        known = {gid for gid in wanted if self._neighbours.look(gid, now) is Answer.KNOWN}
        self._neighbours.keep_searches(wanted - known)
        if not known:
            return
        ready = deque(one.datagram for one in self._waiting if _destination(one.datagram) in known)
        self._waiting = deque(
            one for one in self._waiting if _destination(one.datagram) not in known
        )
        while ready:
            self._waiting_burst.clear()
            self.lost_sending += fill(self._waiting_burst, ready)
            # A full socket loses the rest, as a full queue of an interface does.
            sent = self._send(self._waiting_burst, now)
            self.lost_sending += self._waiting_burst.count - sent

    # Receiving

    def receive(self, burst: Burst, now: int) -> int:
        """Read what has arrived, or what was sent to ourselves; they take turns."""
        if self._waiting:
            self._send_waiting(self._clock())
        self._looped_turn = not self._looped_turn
        if not (self._looped and self._looped_turn):
            self._read(burst, now)
        if not burst.count and self._looped:
            self._port.lost += fill(burst, self._looped)
        return burst.count

    def _read(self, burst: Burst, now: int) -> None:
        slot_bytes = min(self._slot_bytes, len(burst.arena))
        slots = min(len(burst.frames), len(burst.arena) // slot_bytes)
        if slots > self._inbox.slots:
            self._inbox = Inbox(slots, self._port)
            self._aimed_at = (0, 0)
        if self._aimed_at != (burst.arena_addr, slots):
            aim_inbox(self._port, burst.arena_addr, slots, slot_bytes)
            self._aimed_at = (burst.arena_addr, slots)
        received = self._socket.receive(self._inbox.messages.ctypes.data, slots)
        burst.count = int(
            read_burst(self._port, burst.frames_addr, burst.arena_addr, received, slot_bytes, now)
        )


def _destination(datagram: Datagram) -> Halves:
    frame: Any = datagram.descriptor
    return int(frame["dst_hi"]), int(frame["dst_lo"])
