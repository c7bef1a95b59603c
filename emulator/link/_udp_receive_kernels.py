"""Reading a burst from the UDP link: reads bring datagrams, or many that were coalesced."""

from __future__ import annotations

from typing import Any

from emulator.link._addressing_kernels import endpoint_of
from emulator.link._socket_kernels import (
    CONTROL_BYTES,
    TRUNCATED,
    control_at,
    control_byte,
    receive_message,
    take_name,
)
from emulator.link._udp_kernels import (
    CONTROLS_AT,
    IP_TOS,
    IPPROTO_IP,
    IPPROTO_UDP,
    MAX_CONTROLS,
    MAX_PAYLOAD_BYTES,
    NAME_AT,
    UDP_GRO,
    aim,
    udp_port_at,
)
from emulator.link.frames import FRAME, burst_at, frame_at
from kvlane.jit import kernel

MAX_RECEIVE_SEGMENTS = 128
"""Frames that one read may bring. A smaller burst loses what does not fit."""

_DONT_FRAGMENT = 0x4000
_FRAME_BYTES = FRAME.itemsize


@kernel
def _has_room(port: Any, free_frames: int, free_bytes: int, is_first: bool) -> bool:
    """Whether no read can overflow the burst; the first is always worth a try."""
    if is_first:
        return bool(free_frames > 0 and free_bytes > 0)
    needed = MAX_RECEIVE_SEGMENTS if port.coalescing != 0 else 1
    return bool(free_frames >= needed and free_bytes >= MAX_PAYLOAD_BYTES)


@kernel
def _segment_bytes_and_tos(controls: int, control_bytes: int) -> tuple[int, int]:
    """Length of the segments that were coalesced, 0 for a single datagram; type of service."""
    segment_bytes = 0
    tos = 0
    for index in range(control_bytes // CONTROL_BYTES):
        control = control_at(controls, index)
        if control.level == IPPROTO_UDP and control.kind == UDP_GRO:
            segment_bytes = int(control.value)
        elif control.level == IPPROTO_IP and control.kind == IP_TOS:
            tos = control_byte(controls, index)
    return segment_bytes, tos


@kernel
def _describe(
    port: Any, frames: int, free: int, start: int, nbytes: int, segment_bytes: int, tos: int
) -> int:
    """Write the descriptors of one read; how many there was room for among the free ones."""
    segments = -(-nbytes // segment_bytes)
    count = min(segments, free)
    port.lost_receiving += segments - count
    sender = take_name(port.inward + NAME_AT)
    src_hi, src_lo, _, src_port = endpoint_of(port.rule, sender)
    for index in range(count):
        frame = frame_at(frames, index)
        begin = index * segment_bytes
        frame.offset = start + begin
        frame.length = min(segment_bytes, nbytes - begin)
        frame.src_hi = src_hi
        frame.src_lo = src_lo
        frame.dst_hi = port.gid_hi
        frame.dst_lo = port.gid_lo
        frame.src_port = src_port
        frame.dst_port = port.udp_port
        frame.tos = tos
        frame.ip_id = 0
        frame.ip_frag = _DONT_FRAGMENT
        frame.flow_label = 0
    return int(count)


@kernel
def receive_burst(address: int, burst_address: int) -> int:
    """Fill a burst until the socket is empty or it may be too full for another read.

    No more reads than descriptors: datagrams that become no frame must not hold the caller,
    which holds the lock of a NIC. MSG_TRUNC tells the length of what was cut off too, so that
    all frames of a cut read are counted. Returns how many frames there are.
    """
    port = udp_port_at(address, 0)
    burst = burst_at(burst_address, 0)
    frames, max_frames = burst.frames, burst.max_frames
    arena, arena_bytes = burst.arena, burst.arena_bytes
    count = 0
    used = 0
    for _ in range(max_frames):
        if not _has_room(port, max_frames - count, arena_bytes - used, count == 0):
            break
        message = aim(port.inward, arena + used, arena_bytes - used, MAX_CONTROLS)
        nbytes = receive_message(port.fd, port.inward)
        if nbytes < 0:
            # Empty or closed, or an error report, which reading has cleared.
            break
        if nbytes == 0:
            continue
        coalesced_bytes, tos = _segment_bytes_and_tos(
            port.inward + CONTROLS_AT, message.control_bytes
        )
        segment_bytes = coalesced_bytes if coalesced_bytes > 0 else nbytes
        if (message.result_flags & TRUNCATED) != 0:
            port.lost_receiving += -(-nbytes // segment_bytes)
            continue
        new = frames + count * _FRAME_BYTES
        count += _describe(port, new, max_frames - count, used, nbytes, segment_bytes, tos)
        used += nbytes
    burst.count = count
    return count
