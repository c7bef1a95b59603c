"""What the kernels of a UDP link work on, and which frames of a burst leave by one call."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from emulator.link._socket_kernels import (
    CONTROL,
    CONTROL_BYTES,
    NAME_BYTES,
    VECTOR,
    message_at,
    vector_at,
)
from emulator.link.frames import frame_at
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

MAX_PAYLOAD_BYTES = 65507
"""UDP payload of the largest IPv4 packet; also the most that one call may carry."""

# Of linux/udp.h; the socket module lacks them.
UDP_SEGMENT = 103
UDP_GRO = 104
IPPROTO_UDP = int(socket.IPPROTO_UDP)
IPPROTO_IP = int(socket.IPPROTO_IP)
IP_TOS = int(socket.IP_TOS)

UDP_PORT = np.dtype(
    [
        ("fd", "i8"),
        ("rule", "i8"),  # of _addressing_kernels
        ("gid_hi", "i8"),  # of this end
        ("gid_lo", "i8"),
        ("udp_port", "i8"),  # by which frames name this end
        ("coalescing", "i8"),  # whether one read may bring several frames
        ("segmentation", "i8"),  # whether one call may send several frames
        ("segmentation_proven", "i8"),  # one has done so
        ("lost_sending", "i8"),
        ("lost_receiving", "i8"),
        ("too_long_bytes", "i8"),  # the first frame that no packet to its peer holds, 0 for none
        ("too_long_for", "i8"),  # the socket that it was for
        ("tell_of_length", "i8"),  # address of a function that is called once then
        ("refusing_peer", "i8"),  # the last whose segments were refused though others' are not
        ("tell_of_refusal", "i8"),  # address of a function of errno and peer, for the first
        ("group", "i8"),  # address of a GROUP
        ("outward", "i8"),  # address of MAX_MESSAGES of MESSAGE
        ("outward_parts", "i8"),  # address of what they point to, as many of PART
        ("inward", "i8"),
        ("inward_parts", "i8"),
        ("inbox_arena", "i8"),  # where the messages inward are aimed at, 0 for nowhere
        ("inbox_slots", "i8"),
        ("inbox_slot_bytes", "i8"),
    ]
)
"""What the kernels of one UDP link work on."""

MAX_CONTROLS = 2
"""Segment size and type of service; each takes one CONTROL."""
PART = np.dtype(
    [
        ("vector", VECTOR),
        ("name", "u1", (NAME_BYTES,)),
        ("controls", CONTROL, (MAX_CONTROLS,)),
    ]
)
"""All that a socket call reads or writes for a MESSAGE besides the frames."""
PART_BYTES = PART.itemsize
NAME_AT = VECTOR.itemsize
CONTROLS_AT = NAME_AT + NAME_BYTES
MAX_MESSAGES = 64
"""Frames of one ``sendmmsg`` or ``recvmmsg``: as many as a NIC's burst holds of full size."""

GROUP = np.dtype(
    [
        ("first", "i8"),
        ("end", "i8"),  # the frame after the last
        ("start", "i8"),  # bytes of the arena
        ("stop", "i8"),
        ("segment_bytes", "i8"),  # all frames but the last, which may be shorter
        ("tos", "i8"),
    ]
)
"""Frames of a burst that are contiguous and go to one peer by one call."""

udp_port_at = record_accessor(UDP_PORT)
group_at = record_accessor(GROUP)


@kernel
def aim(message_address: int, part: int, base: int, nbytes: int, controls: int) -> Any:
    """A message with its part, made ready for a call with bytes and control messages."""
    vector = vector_at(part, 0)
    vector.base = base
    vector.nbytes = nbytes
    message = message_at(message_address, 0)
    message.name = part + NAME_AT
    message.name_bytes = NAME_BYTES
    message.vectors = part
    message.vector_count = 1
    message.control = part + CONTROLS_AT
    message.control_bytes = controls * CONTROL_BYTES
    message.result_flags = 0
    return message


@kernel
def _follows(frames: int, index: int) -> bool:
    """Whether frame ``index`` lies behind the one before it and goes to the same peer alike."""
    frame = frame_at(frames, index)
    before = frame_at(frames, index - 1)
    return bool(
        frame.offset == before.offset + before.length
        and frame.dst_lo == before.dst_lo
        and frame.dst_hi == before.dst_hi
        and frame.dst_port == before.dst_port
        and frame.tos == before.tos
    )


@kernel
def cut_group(frames: int, first: int, count: int, max_segments: int, group: Any) -> None:
    """Find the most frames from ``first`` on that may leave by one call.

    They have equal lengths, but the last may be shorter.
    """
    opening = frame_at(frames, first)
    segment = opening.length
    start = opening.offset
    stop = start + segment
    end = first + 1
    while end < count and end - first < max_segments and _follows(frames, end):
        length = frame_at(frames, end).length
        if length > segment or stop + length - start > MAX_PAYLOAD_BYTES:
            break
        stop += length
        end += 1
        if length < segment:
            break
    group.first = first
    group.end = end
    group.start = start
    group.stop = stop
    group.segment_bytes = segment
    group.tos = opening.tos
