"""The 64-bit ``wr_id`` of every work request that the agent posts.

    bits 60-62  kind            what the completion completes
    bits 28-59  session serial  the low 32 bits of the session's number
    bits 0-27   slot            receive buffer (RECEIVE) or command slot (the others)

A completion names its queue pair too, but a NIC may give that number to a new queue pair
while completions of the old one are still queued; the serial tells them apart.
"""

from __future__ import annotations

from enum import IntEnum

_KIND_SHIFT = 60
_SERIAL_SHIFT = 28
SERIAL_MASK = (1 << 32) - 1
_SLOT_MASK = (1 << _SERIAL_SHIFT) - 1


class WorkKind(IntEnum):
    """What a completed work request was."""

    RECEIVE = 1
    """A command capsule has arrived."""
    RESPONSE = 2
    """A response capsule was delivered; its buffer is free."""
    TRANSFER = 3
    """The last READ or WRITE of a command, and so all of them."""
    PART = 4
    """A READ or WRITE before the last of its command."""


def pack_work_id(kind: WorkKind, serial: int, slot: int) -> int:
    """The wr_id of a kind, a session's serial and a slot."""
    return kind << _KIND_SHIFT | (serial & SERIAL_MASK) << _SERIAL_SHIFT | slot


def unpack_work_id(work_id: int) -> tuple[WorkKind, int, int]:
    """Kind, serial and slot of a wr_id."""
    kind = WorkKind(work_id >> _KIND_SHIFT)
    return kind, work_id >> _SERIAL_SHIFT & SERIAL_MASK, work_id & _SLOT_MASK
