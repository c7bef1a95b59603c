"""Reading a burst from the UDP link: a call brings many datagrams, coalesced or each alone."""

from __future__ import annotations

from typing import Any

from emulator.link._socket_kernels import TRUNCATED, receive_message
from emulator.link._udp_describe_kernels import describe, segment_bytes_and_tos
from emulator.link._udp_inbox_kernels import receive_frames
from emulator.link._udp_kernels import (
    CONTROLS_AT,
    MAX_CONTROLS,
    MAX_PAYLOAD_BYTES,
    NAME_AT,
    aim,
    udp_port_at,
)
from emulator.link.frames import FRAME, burst_at
from kvlane.jit import kernel

MAX_RECEIVE_SEGMENTS = 128
"""Frames that one read may bring. A smaller burst loses what does not fit."""

_FRAME_BYTES = FRAME.itemsize


@kernel
def _has_room(free_frames: int, free_bytes: int, is_first: bool) -> bool:
    """Whether no read can overflow the burst; the first is always worth a try."""
    if is_first:
        return bool(free_frames > 0 and free_bytes > 0)
    return bool(free_frames >= MAX_RECEIVE_SEGMENTS and free_bytes >= MAX_PAYLOAD_BYTES)


@kernel
def _receive_coalesced(port: Any, burst: Any) -> int:
    """Fill a burst until the socket is empty or it may be too full for another read.

    No more reads than descriptors: datagrams that become no frame must not hold the caller,
    which holds the lock of a NIC. MSG_TRUNC tells the length of what was cut off too, so that
    all frames of a cut read are counted. Returns how many frames there are.
    """
    frames, max_frames = burst.frames, burst.max_frames
    arena, arena_bytes = burst.arena, burst.arena_bytes
    part = port.inward_parts
    count = 0
    used = 0
    for _ in range(max_frames):
        if not _has_room(max_frames - count, arena_bytes - used, count == 0):
            break
        message = aim(port.inward, part, arena + used, arena_bytes - used, MAX_CONTROLS)
        nbytes = receive_message(port.fd, port.inward)
        if nbytes < 0:
            # Empty or closed, or an error report, which reading has cleared.
            break
        if nbytes == 0:
            continue
        coalesced_bytes, tos = segment_bytes_and_tos(part + CONTROLS_AT, message.control_bytes)
        segment_bytes = coalesced_bytes if coalesced_bytes > 0 else nbytes
        if (message.result_flags & TRUNCATED) != 0:
            port.lost_receiving += -(-nbytes // segment_bytes)
            continue
        new = frames + count * _FRAME_BYTES
        name, free = part + NAME_AT, max_frames - count
        count += describe(port, name, new, free, used, nbytes, segment_bytes, tos)
        used += nbytes
    return int(count)


@kernel
def receive_burst(address: int, burst_address: int) -> int:
    """Fill a burst with what has arrived at the port at an address; how many frames."""
    port = udp_port_at(address, 0)
    burst = burst_at(burst_address, 0)
    if port.coalescing != 0:
        burst.count = _receive_coalesced(port, burst)
    else:
        burst.count = receive_frames(port, burst)
    return int(burst.count)
