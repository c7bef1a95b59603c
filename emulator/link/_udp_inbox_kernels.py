"""Reading a burst by one ``recvmmsg``, where the kernel does not coalesce.

Every message has a slot of its own in the arena, and its frame stays there. Between bursts the
messages stay aimed at their slots, so that reading one frame does not cost the aiming of all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.link._socket_kernels import (
    CONTROL_BYTES,
    MESSAGE_BYTES,
    NAME_BYTES,
    TRUNCATED,
    message_at,
    receive_messages,
)
from emulator.link._udp_describe_kernels import describe, segment_bytes_and_tos
from emulator.link._udp_kernels import (
    CONTROLS_AT,
    MAX_CONTROLS,
    MAX_MESSAGES,
    NAME_AT,
    PART_BYTES,
    aim,
)
from emulator.link.frames import FRAME
from kvlane.jit import kernel

SLOT_BYTES = 4160
"""The longest RoCEv2 packet has 4,132 bytes from BTH to ICRC: payload of the largest path MTU
with RETH and immediate data. What is longer is nobody's packet, and lost."""

_FRAME_BYTES = FRAME.itemsize


@kernel
def _aim_inbox(port: Any, arena: int, slots: int, slot_bytes: int) -> None:
    """Let the first messages be received into equal slots of an arena."""
    if (
        port.inbox_arena == arena
        and port.inbox_slots == slots
        and port.inbox_slot_bytes == slot_bytes
    ):
        return
    for index in range(slots):
        message = port.inward + index * MESSAGE_BYTES
        part = port.inward_parts + index * PART_BYTES
        aim(message, part, arena + index * slot_bytes, slot_bytes, MAX_CONTROLS)
    port.inbox_arena = arena
    port.inbox_slots = slots
    port.inbox_slot_bytes = slot_bytes


@kernel
def _take_message(port: Any, index: int, frames: int, slot_bytes: int) -> int:
    """Describe the frame of a message and make that ready again; 0 for what is no frame."""
    message = message_at(port.inward, index)
    part = port.inward_parts + index * PART_BYTES
    # Signed: numba keeps what it makes of an unsigned field unsigned, and negation would wrap.
    nbytes = np.int64(message.received)
    flags = message.result_flags
    _, tos = segment_bytes_and_tos(part + CONTROLS_AT, message.control_bytes)
    message.name_bytes = NAME_BYTES
    message.control_bytes = MAX_CONTROLS * CONTROL_BYTES
    if nbytes == 0:
        return 0
    if (flags & TRUNCATED) != 0:
        port.lost_receiving += 1
        return 0
    return describe(port, part + NAME_AT, frames, 1, index * slot_bytes, nbytes, nbytes, tos)


@kernel
def receive_frames(port: Any, burst: Any) -> int:
    """Fill an empty burst with as many datagrams as one call brings; how many frames.

    Datagrams that become no frame use up slots, so that they do not hold the caller.
    """
    slot_bytes = min(SLOT_BYTES, burst.arena_bytes)
    if slot_bytes == 0:
        return 0
    slots = min(MAX_MESSAGES, burst.max_frames, burst.arena_bytes // slot_bytes)
    _aim_inbox(port, burst.arena, slots, slot_bytes)
    received = receive_messages(port.fd, port.inward, slots)
    count = 0
    for index in range(received):
        free = burst.frames + count * _FRAME_BYTES
        count += _take_message(port, index, free, slot_bytes)
    return int(count)
