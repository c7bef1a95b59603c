"""What a read from the UDP link says about its frames: their descriptors."""

from __future__ import annotations

from typing import Any

from emulator.link._addressing_kernels import endpoint_of
from emulator.link._socket_kernels import CONTROL_BYTES, control_at, control_byte, take_name
from emulator.link._udp_kernels import IP_TOS, IPPROTO_IP, IPPROTO_UDP, UDP_GRO
from emulator.link.frames import frame_at
from kvlane.jit import kernel

_DONT_FRAGMENT = 0x4000


@kernel
def segment_bytes_and_tos(controls: int, control_bytes: int) -> tuple[int, int]:
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
def describe(
    port: Any,
    name: int,
    frames: int,
    free: int,
    start: int,
    nbytes: int,
    segment_bytes: int,
    tos: int,
) -> int:
    """Write the descriptors of one read; how many there was room for among the free ones."""
    segments = -(-nbytes // segment_bytes)
    count = min(segments, free)
    port.lost_receiving += segments - count
    sender = take_name(name)
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
