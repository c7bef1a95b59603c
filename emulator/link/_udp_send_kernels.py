"""Sending a burst over the UDP link: a call for each group of frames, or one for many frames."""

from __future__ import annotations

import errno
from typing import Any

from emulator.link._addressing_kernels import NO_SOCKET, socket_of
from emulator.link._socket_kernels import (
    put_control_int,
    put_control_short,
    put_name,
    send_message,
)
from emulator.link._udp_kernels import (
    CONTROLS_AT,
    IP_TOS,
    IPPROTO_IP,
    IPPROTO_UDP,
    NAME_AT,
    UDP_SEGMENT,
    aim,
    cut_group,
    group_at,
    udp_port_at,
)
from emulator.link._udp_loss_kernels import is_link_full, lose
from emulator.link._udp_outbox_kernels import send_frames
from emulator.link.frames import burst_at, frame_at
from kvlane.calls import call
from kvlane.jit import kernel

MAX_SEND_SEGMENTS = 64
"""Frames of one call; newer kernels take 128, all that know UDP_SEGMENT take 64."""


@kernel
def _refuses_segments(code: int) -> bool:
    return code in (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP)


@kernel
def _send_bytes(port: Any, base: int, nbytes: int, segment_bytes: int, tos: int) -> int:
    """Send by one call to the peer that the first part names; the errno, or 0.

    ``segment_bytes`` 0 sends one frame. The socket's own type of service is 0.
    """
    controls = port.outward_parts + CONTROLS_AT
    used = 0
    if segment_bytes != 0:
        put_control_short(controls, used, IPPROTO_UDP, UDP_SEGMENT, segment_bytes)
        used += 1
    if tos != 0:
        put_control_int(controls, used, IPPROTO_IP, IP_TOS, tos)
        used += 1
    aim(port.outward, port.outward_parts, base, nbytes, used)
    return send_message(port.fd, port.outward)


@kernel
def _learn_from_refusal(port: Any, code: int, peer: int) -> None:
    """Frames went as messages that had been refused as segments.

    If no segments ever went, then kernel or interface cannot do it, and none are tried again.
    Otherwise it is the way to that peer.
    """
    first_of_all = port.refusing_peer == 0
    port.refusing_peer = peer
    if port.segmentation_proven == 0:
        port.segmentation = 0
    if first_of_all:
        call(port.tell_of_refusal, code, peer, 0, 0)


@kernel
def _send_refused(port: Any, burst_address: int, group: Any, peer: int, code: int) -> int:
    """Send as messages what the kernel did not take as segments; how many are done with.

    Frames above the MTU of one path fail both ways, and say nothing about segments.
    """
    lost_before = port.lost_sending
    done = send_frames(port, burst_address, group.first, group.end) - group.first
    if done > 0 and port.lost_sending == lost_before:
        _learn_from_refusal(port, code, peer)
    return int(done)


@kernel
def _send_group(port: Any, burst_address: int, arena: int, group: Any, peer: int) -> int:
    """Send frames by one call where possible; how many are done with, lost or sent."""
    frames = group.end - group.first
    if frames > 1 and peer == port.refusing_peer:
        return int(send_frames(port, burst_address, group.first, group.end) - group.first)
    put_name(port.outward_parts + NAME_AT, peer)
    nbytes = group.stop - group.start
    segment_bytes = group.segment_bytes if frames > 1 else 0
    code = _send_bytes(port, arena + group.start, nbytes, segment_bytes, group.tos)
    if code == 0:
        if frames > 1:
            port.segmentation_proven = 1
    elif is_link_full(code):
        return 0
    elif frames > 1 and _refuses_segments(code):
        return _send_refused(port, burst_address, group, peer, code)
    else:
        lose(port, frames, code, group.segment_bytes, peer)
    return int(frames)


@kernel
def send_burst(address: int, burst_address: int) -> int:
    """Send a burst in order over the port at an address; how many frames are done with.

    A full socket buffer ends it, anything else that fails is a loss.
    """
    port = udp_port_at(address, 0)
    burst = burst_at(burst_address, 0)
    frames, arena, count = burst.frames, burst.arena, burst.count
    group = group_at(port.group, 0)
    first = 0
    while first < count:
        if port.segmentation == 0:
            return send_frames(port, burst_address, first, count)
        cut_group(frames, first, count, MAX_SEND_SEGMENTS, group)
        frame = frame_at(frames, first)
        peer = socket_of(port.rule, frame.dst_hi, frame.dst_lo, frame.dst_port)
        if peer == NO_SOCKET:
            port.lost_sending += group.end - first
        else:
            sent = _send_group(port, burst_address, arena, group, peer)
            if sent < group.end - first:
                return int(first + sent)
        first = group.end
    return int(count)
