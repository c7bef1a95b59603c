"""Sending a burst over the UDP link: a call for each group of frames, or one for each frame."""

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
from emulator.link.frames import burst_at, frame_at
from kvlane.calls import call
from kvlane.jit import kernel

MAX_SEND_SEGMENTS = 64
"""Frames of one call; newer kernels take 128, all that know UDP_SEGMENT take 64."""


@kernel
def _is_link_full(code: int) -> bool:
    return code in (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


@kernel
def _refuses_segments(code: int) -> bool:
    return code in (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP)


@kernel
def _lose(port: Any, frames: int, code: int, nbytes: int, peer: int) -> None:
    """Count frames that cannot be sent, and note the first that is too long."""
    port.lost_sending += frames
    if code == errno.EMSGSIZE and port.too_long_bytes == 0:
        port.too_long_bytes = nbytes
        port.too_long_for = peer
        call(port.tell_of_length, 0, 0, 0, 0)


@kernel
def _send_bytes(port: Any, base: int, nbytes: int, segment_bytes: int, tos: int) -> int:
    """Send by one call to the peer that the envelope names; the errno, or 0.

    ``segment_bytes`` 0 sends one frame. The socket's own type of service is 0.
    """
    controls = port.outward + CONTROLS_AT
    used = 0
    if segment_bytes != 0:
        put_control_short(controls, used, IPPROTO_UDP, UDP_SEGMENT, segment_bytes)
        used += 1
    if tos != 0:
        put_control_int(controls, used, IPPROTO_IP, IP_TOS, tos)
        used += 1
    aim(port.outward, base, nbytes, used)
    return send_message(port.fd, port.outward)


@kernel
def _send_singly(port: Any, arena: int, group: Any, peer: int) -> int:
    """Send frames by a call each; how many are done with, lost or sent."""
    frames = group.end - group.first
    for index in range(frames):
        start = group.start + index * group.segment_bytes
        nbytes = min(group.segment_bytes, group.stop - start)
        code = _send_bytes(port, arena + start, nbytes, 0, group.tos)
        if _is_link_full(code):
            return int(index)
        if code != 0:
            _lose(port, 1, code, nbytes, peer)
    return int(frames)


@kernel
def _send_refused(port: Any, arena: int, group: Any, peer: int) -> int:
    """Send singly what the kernel did not take as a group, and learn from how that goes.

    If it goes, and no group ever went, then kernel or interface cannot segment. Frames
    above the MTU of one path fail both ways and say nothing about the others.
    """
    lost_before = port.lost_sending
    done = _send_singly(port, arena, group, peer)
    if done > port.lost_sending - lost_before and port.segmentation_proven == 0:
        port.segmentation = 0
    return done


@kernel
def _send_group(port: Any, arena: int, group: Any, peer: int) -> int:
    """Send frames by one call where possible; how many are done with, lost or sent."""
    frames = group.end - group.first
    put_name(port.outward + NAME_AT, peer)
    if frames == 1:
        return _send_singly(port, arena, group, peer)
    nbytes = group.stop - group.start
    code = _send_bytes(port, arena + group.start, nbytes, group.segment_bytes, group.tos)
    if code == 0:
        port.segmentation_proven = 1
    elif _is_link_full(code):
        return 0
    elif _refuses_segments(code):
        return _send_refused(port, arena, group, peer)
    else:
        _lose(port, frames, code, group.segment_bytes, peer)
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
        max_segments = MAX_SEND_SEGMENTS if port.segmentation != 0 else 1
        cut_group(frames, first, count, max_segments, group)
        frame = frame_at(frames, first)
        peer = socket_of(port.rule, frame.dst_hi, frame.dst_lo, frame.dst_port)
        if peer == NO_SOCKET:
            port.lost_sending += group.end - first
        else:
            sent = _send_group(port, arena, group, peer)
            if sent < group.end - first:
                return int(first + sent)
        first = group.end
    return int(count)
