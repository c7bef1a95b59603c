"""Bursts of the raw link: headers for all frames at once, and descriptors for all that came."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.link._ethernet_kernels import (
    NOT_ROCE,
    is_ipv4_gid,
    put_headers,
    source_mac,
    take_headers,
)
from emulator.link._peer_kernels import DOUBT_NS, find_peer, hear_peer, peer_at
from emulator.link._socket_kernels import TRUNCATED, message_at, vector_at
from emulator.link.frames import frame_at
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

HEADER_SLOT_BYTES = 64
VECTORS_PER_MESSAGE = 2
"""Headers, and the frame where the engine put it."""

PORT = np.dtype(
    [
        ("mac", "i8"),
        ("gids", "i8"),  # address of GID records
        ("gid_count", "i8"),
        ("peers", "i8"),  # address of PEER records
        ("peer_slots", "i8"),  # a power of two
        ("peer_count", "i8"),
        ("next_victim", "i8"),  # where a peer is sought to be forgotten for a new one
        ("next_hop", "i8"),  # the peer that the frame in hand goes to
        ("doubtful_peer", "i8"),  # one sent to that was not confirmed for long, or -1
        ("headers", "i8"),  # sending: a slot, a message and two vectors a frame
        ("vectors", "i8"),
        ("messages", "i8"),
        ("wire", "i8"),  # address of i8: which frame of the burst a message is
        ("wire_count", "i8"),
        ("fates", "i8"),  # address of i8: FATE_* of every frame
        ("inbox", "i8"),  # receiving: messages
        ("lost", "i8"),  # frames for us that were cut
    ]
)
"""What the kernels of one raw link work on."""
GID = np.dtype([("hi", "i8"), ("lo", "i8")])

FATE_WIRE = 0
FATE_LOOP = 1
"""To one of the port's own GIDs."""
FATE_WAIT = 2
"""The next hop's MAC is not known."""
FATE_LOST = 3
"""Source and destination are not of the same IP version, or no packet is so long."""

_MAX_FRAME_BYTES = 0xFFFF - 28
_gid_at = record_accessor(GID)
_number_at = record_accessor(np.dtype([("value", "i8")]))


@kernel
def _is_own(port: Any, hi: int, lo: int) -> bool:
    for i in range(port.gid_count):
        gid = _gid_at(port.gids, i)
        if gid.hi == hi and gid.lo == lo:
            return True
    return False


@kernel
def _fate(port: Any, frame: Any, now: int) -> int:
    """What becomes of a frame; ``next_hop`` is the peer of one for the wire."""
    same_version = is_ipv4_gid(frame.src_hi, frame.src_lo) == is_ipv4_gid(
        frame.dst_hi, frame.dst_lo
    )
    if not same_version or frame.length > _MAX_FRAME_BYTES:
        return FATE_LOST
    if _is_own(port, frame.dst_hi, frame.dst_lo):
        return FATE_LOOP
    index = find_peer(port, frame.dst_hi, frame.dst_lo)
    if index < 0:
        return FATE_WAIT
    port.next_hop = index
    if now - peer_at(port.peers, index).confirmed_at > DOUBT_NS:
        port.doubtful_peer = index
    return FATE_WIRE


@kernel
def _put_message(port: Any, frame: Any, arena: int) -> None:
    """The next message: headers of our own, then the frame."""
    k = port.wire_count
    header = port.headers + k * HEADER_SLOT_BYTES
    peer = peer_at(port.peers, port.next_hop)
    first = vector_at(port.vectors, VECTORS_PER_MESSAGE * k)
    first.base = header
    first.nbytes = put_headers(frame, header, port.mac, peer.mac)
    second = vector_at(port.vectors, VECTORS_PER_MESSAGE * k + 1)
    second.base = arena + frame.offset
    second.nbytes = frame.length
    port.wire_count += 1


@kernel
def build_burst(port: Any, frames: int, arena: int, count: int, loop_room: int, now: int) -> int:
    """Decide the fate of frames and write messages for the wire; how many it got through.

    It ends before a frame to ourselves for which there is no room.
    """
    port.wire_count = 0
    port.doubtful_peer = -1
    looped = 0
    for i in range(count):
        frame = frame_at(frames, i)
        fate = _fate(port, frame, now)
        if fate == FATE_LOOP:
            if looped == loop_room:
                return i
            looped += 1
        number = _number_at(port.fates, i)
        number.value = fate
        if fate == FATE_WIRE:
            index = _number_at(port.wire, port.wire_count)
            index.value = i
            _put_message(port, frame, arena)
    return count


@kernel
def aim_inbox(port: Any, arena: int, slots: int, slot_bytes: int) -> None:
    """Let messages be received into equal slots of an arena, one vector each."""
    for i in range(slots):
        vector = vector_at(message_at(port.inbox, i).vectors, 0)
        vector.base = arena + i * slot_bytes
        vector.nbytes = slot_bytes


@kernel
def read_burst(port: Any, frames: int, arena: int, received: int, slot_bytes: int, now: int) -> int:
    """Describe the RoCEv2 packets for this port among messages; how many they are.

    Frames stay where they are: descriptors point into slots.
    """
    count = 0
    for i in range(received):
        message = message_at(port.inbox, i)
        slot = i * slot_bytes
        frame = frame_at(frames, count)
        start = take_headers(frame, arena + slot, int(message.received))
        if (message.result_flags & TRUNCATED) != 0:
            port.lost += 1
        elif start != NOT_ROCE and _is_own(port, frame.dst_hi, frame.dst_lo):
            frame.offset = slot + start
            hear_peer(port, frame.src_hi, frame.src_lo, source_mac(arena + slot), now)
            count += 1
    return count
