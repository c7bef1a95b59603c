"""By which MAC a peer is reached: asked of the kernel, never learnt from what peers send.

The kernel has the routes and speaks ARP and NDP. It is made to look by a datagram to the
peer's discard port (RFC 863), and its neighbour table is asked until it knows. What peers
send only confirms a MAC or makes it doubtful; then the kernel is asked again, and made to
look when its own knowledge is old: frames of a packet socket do not make it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from emulator.link._peer_kernels import ASK_AGAIN_NS, DOUBT_NS, PEER, find_peer, learn_peer
from emulator.link.gid import gid_ip, gid_of_halves
from emulator.link.netlink import IpAddress, Neighbour, Netlink
from kvlane.verbs.records import new_records

MAX_PEERS = 1024
"""More make the table forget, and ask again."""
ASK_INTERVAL_NS = 1_000_000
"""How often the kernel is asked while it looks."""
_PROVOKE_INTERVAL_NS = 1_000_000_000
_DISCARD_PORT = 9

Halves = tuple[int, int]
"""A GID as kernels know it."""


class Answer(Enum):
    """What the kernel knows of the way to a peer."""

    KNOWN = "known"
    LOOKING = "looking"
    NO_ROUTE = "no route"


@dataclass(slots=True)
class _Search:
    """A peer whose MAC the kernel looks for."""

    hop: IpAddress
    ask_at: int
    provoke_at: int


class Neighbours:
    """The peers of one interface, in records that kernels read and write."""

    def __init__(
        self,
        port: Any,
        index: int,
        netlink: Netlink,
        sockets: Mapping[int, socket.socket],
    ) -> None:
        """``port`` is the kernels' ``PORT`` record, ``sockets`` has a UDP socket per IP version
        that sends through the interface of that ``index``."""
        self._port = port
        self._index = index
        self._netlink = netlink
        self._sockets = sockets
        self._peers = new_records(PEER, 2 * MAX_PEERS)
        port.peers, port.peer_slots = self._peers.ctypes.data, len(self._peers)
        self._searches: dict[Halves, _Search] = {}

    def look(self, gid: Halves, now: int) -> Answer:
        """Ask for a peer that the table lacks; cheap when it was asked for a moment ago."""
        if find_peer(self._port, *gid) >= 0:
            self._searches.pop(gid, None)
            return Answer.KNOWN
        search = self._searches.get(gid)
        if search is None:
            try:
                hop = self._netlink.next_hop(_address(gid), self._index)
            except OSError:
                return Answer.NO_ROUTE
            search = self._searches[gid] = _Search(hop, now, now)
        if now < search.ask_at:
            return Answer.LOOKING
        search.ask_at = now + ASK_INTERVAL_NS
        if self._learn(gid, search.hop, now) is not None:
            del self._searches[gid]
            return Answer.KNOWN
        if now >= search.provoke_at:
            search.provoke_at = now + _PROVOKE_INTERVAL_NS
            self._provoke(search.hop)
        return Answer.LOOKING

    def confirm(self, slot: int, now: int) -> None:
        """Ask again for a doubtful peer; it keeps its MAC until there is another."""
        peer = self._peers[slot]
        gid = int(peer.hi), int(peer.lo)
        peer.asked_at = now
        peer.confirmed_at = _asked_again_after(now)
        with contextlib.suppress(OSError):
            hop = self._netlink.next_hop(_address(gid), self._index)
            known = self._learn(gid, hop, now)
            if known is None or known.is_stale:
                self._provoke(hop)

    def keep_searches(self, wanted: Iterable[Halves]) -> None:
        """Stop looking for everybody else."""
        kept = set(wanted)
        self._searches = {gid: one for gid, one in self._searches.items() if gid in kept}

    def _learn(self, gid: Halves, hop: IpAddress, now: int) -> Neighbour | None:
        """Take over what the kernel knows; ``None`` while that is nothing of use.

        RFC 1812 section 3.3.2 forbids to believe that a host has the MAC of a group.
        """
        try:
            known = self._netlink.neighbour(hop, self._index)
        except OSError:
            return None
        if known is None:
            return None
        slot = learn_peer(self._port, *gid, int.from_bytes(known.mac, "big"), now)
        if slot < 0:
            return None
        if not known.is_confirmed:
            self._peers[slot].confirmed_at = _asked_again_after(now)
        return known

    def _provoke(self, hop: IpAddress) -> None:
        udp = self._sockets.get(hop.version)
        if udp is None:
            return
        scope = (0, self._index) if hop.version == 6 else ()
        with contextlib.suppress(OSError):
            udp.sendto(b"", (str(hop), _DISCARD_PORT, *scope))


def _asked_again_after(now: int) -> int:
    """When to have confirmed a MAC that is to be asked for soon, but not for every frame."""
    return now - DOUBT_NS + ASK_AGAIN_NS


def _address(gid: Halves) -> IpAddress:
    return gid_ip(gid_of_halves(*gid))
