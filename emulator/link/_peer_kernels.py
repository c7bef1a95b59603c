"""By which MAC a peer is reached: a hash table from GIDs, with open addressing.

A peer lies in the first free slot from its home on, and one that is forgotten leaves no
gap: those behind it move up (Knuth, volume 3, section 6.4, algorithm R). The number of
slots is a power of two; at most half are taken, so that searches stay short.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

PEER = np.dtype(
    [
        ("hi", "i8"),
        ("lo", "i8"),
        ("mac", "i8"),  # 0 in a free slot
        ("confirmed_at", "i8"),  # when the MAC was last known to be right, ns
        ("asked_at", "i8"),  # when the kernel was last asked for it
    ]
)
"""A GID and the MAC of the next hop to it."""

DOUBT_NS = 30_000_000_000
"""A MAC that was neither heard from nor asked for so long is asked for again."""
ASK_AGAIN_NS = 1_000_000_000
"""What peers send makes the kernel be asked no more often, for each of them."""

_GROUP_BIT = 40
"""The lowest bit of the first byte of a MAC (IEEE 802-2014 section 8.2.2)."""
_MULTIPLIER = 0x5851F42D
"""Odd, 31 bits, so that products with 32-bit numbers stay positive: the upper half of the
multiplier of Knuth's MMIX generator."""
_WORD = 0xFFFFFFFF

peer_at = record_accessor(PEER)


@kernel
def is_host_mac(mac: int) -> bool:
    """False for group addresses and for 0, which are nobody's."""
    return bool(mac != 0 and (mac >> _GROUP_BIT) & 1 == 0)


@kernel
def _home(port: Any, hi: int, lo: int) -> int:
    """The slot where the search for a GID begins."""
    mixed = ((hi & _WORD) * _MULTIPLIER) & _WORD
    mixed = ((mixed ^ (mixed >> 15) ^ ((hi >> 32) & _WORD)) * _MULTIPLIER) & _WORD
    mixed = ((mixed ^ (mixed >> 15) ^ ((lo >> 32) & _WORD)) * _MULTIPLIER) & _WORD
    mixed = ((mixed ^ (mixed >> 15) ^ (lo & _WORD)) * _MULTIPLIER) & _WORD
    return int((mixed ^ (mixed >> 15)) & (port.peer_slots - 1))


@kernel
def _slot(port: Any, hi: int, lo: int) -> int:
    """Where a GID is, or where it would be put: a free slot."""
    at = _home(port, hi, lo)
    while True:
        peer = peer_at(port.peers, at)
        if peer.mac == 0 or (peer.lo == lo and peer.hi == hi):
            return int(at)
        at = (at + 1) & (port.peer_slots - 1)


@kernel
def find_peer(port: Any, hi: int, lo: int) -> int:
    """Slot of a peer, or -1."""
    at = _slot(port, hi, lo)
    return at if peer_at(port.peers, at).mac != 0 else -1


@kernel
def _forget(port: Any, slot: int) -> None:
    """Free a slot, and let those that would be found no more move up."""
    mask = port.peer_slots - 1
    hole = slot
    at = (slot + 1) & mask
    while peer_at(port.peers, at).mac != 0:
        peer = peer_at(port.peers, at)
        if (at - _home(port, peer.hi, peer.lo)) & mask >= (at - hole) & mask:
            moved = peer_at(port.peers, hole)
            moved.hi = peer.hi
            moved.lo = peer.lo
            moved.mac = peer.mac
            moved.confirmed_at = peer.confirmed_at
            moved.asked_at = peer.asked_at
            hole = at
        at = (at + 1) & mask
    free = peer_at(port.peers, hole)
    free.mac = 0
    port.peer_count -= 1


@kernel
def _forget_one(port: Any) -> None:
    """The table is full: forget the next one in turn."""
    mask = port.peer_slots - 1
    victim = port.next_victim
    while peer_at(port.peers, victim).mac == 0:
        victim = (victim + 1) & mask
    port.next_victim = (victim + 1) & mask
    _forget(port, victim)


@kernel
def learn_peer(port: Any, hi: int, lo: int, mac: int, now: int) -> int:
    """Note what the kernel knows; the slot, or -1 for a MAC that is nobody's.

    A full table forgets another peer for a new one, so slots change their owners.
    """
    if not is_host_mac(mac):
        return -1
    if find_peer(port, hi, lo) < 0:
        if 2 * port.peer_count >= port.peer_slots:
            _forget_one(port)
        port.peer_count += 1
    at = _slot(port, hi, lo)
    peer = peer_at(port.peers, at)
    peer.hi = hi
    peer.lo = lo
    peer.mac = mac
    peer.confirmed_at = now
    peer.asked_at = now
    return int(at)


@kernel
def hear_peer(port: Any, hi: int, lo: int, mac: int, now: int) -> None:
    """A frame has come, which anybody may have made: it confirms a MAC, but teaches none.

    Another MAC may be that of a peer that has moved, or of a router that answers by another
    way: it makes the known one doubtful, so that the kernel is asked again.
    """
    at = find_peer(port, hi, lo)
    if at < 0 or not is_host_mac(mac):
        return
    peer = peer_at(port.peers, at)
    if peer.mac == mac:
        peer.confirmed_at = max(now, peer.confirmed_at)
    elif now - peer.asked_at >= ASK_AGAIN_NS:
        peer.confirmed_at = now - DOUBT_NS - 1
