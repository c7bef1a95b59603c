"""Sending frames of any lengths, to any peers, by one ``sendmmsg`` for as many as it takes."""

from __future__ import annotations

from typing import Any

from emulator.link._addressing_kernels import NO_SOCKET, socket_of
from emulator.link._socket_kernels import (
    MESSAGE_BYTES,
    put_control_int,
    put_name,
    send_messages,
    take_name,
)
from emulator.link._udp_kernels import (
    CONTROLS_AT,
    IP_TOS,
    IPPROTO_IP,
    MAX_MESSAGES,
    NAME_AT,
    PART_BYTES,
    aim,
)
from emulator.link._udp_loss_kernels import is_link_full, lose
from emulator.link.frames import burst_at, frame_at
from kvlane.jit import kernel


@kernel
def _put_frame(port: Any, index: int, peer: int, frame: Any, arena: int) -> None:
    """Make message ``index`` of the outbox carry a frame. The socket's own type of service is 0."""
    part = port.outward_parts + index * PART_BYTES
    put_name(part + NAME_AT, peer)
    controls = 0
    if frame.tos != 0:
        put_control_int(part + CONTROLS_AT, 0, IPPROTO_IP, IP_TOS, frame.tos)
        controls = 1
    aim(port.outward + index * MESSAGE_BYTES, part, arena + frame.offset, frame.length, controls)


@kernel
def _fill_outbox(port: Any, burst: Any, first: int, end: int) -> int:
    """Put frames from ``first`` on into the outbox, until one has no peer; how many."""
    count = min(end - first, MAX_MESSAGES)
    for index in range(count):
        frame = frame_at(burst.frames, first + index)
        peer = socket_of(port.rule, frame.dst_hi, frame.dst_lo, frame.dst_port)
        if peer == NO_SOCKET:
            return int(index)
        _put_frame(port, index, peer, frame, burst.arena)
    return int(count)


@kernel
def _send_outbox(port: Any, burst: Any, first: int, count: int) -> int:
    """Send the outbox, which holds frames from ``first`` on; how many are done with.

    A call ends before the message that it cannot send, and the next one says why.
    """
    done = 0
    while done < count:
        sent = send_messages(port.fd, port.outward + done * MESSAGE_BYTES, count - done)
        if sent > 0:
            done += sent
        elif is_link_full(-sent):
            break
        else:
            peer = take_name(port.outward_parts + done * PART_BYTES + NAME_AT)
            lose(port, 1, -sent, frame_at(burst.frames, first + done).length, peer)
            done += 1
    return int(done)


@kernel
def send_frames(port: Any, burst_address: int, first: int, end: int) -> int:
    """Send frames ``first`` to ``end`` - 1 of a burst in order; the first that is not done with.

    A full socket buffer ends it, anything else that fails is a loss.
    """
    burst = burst_at(burst_address, 0)
    while first < end:
        count = _fill_outbox(port, burst, first, end)
        if count == 0:
            port.lost_sending += 1
            first += 1
            continue
        done = _send_outbox(port, burst, first, count)
        first += done
        if done < count:
            break
    return int(first)
