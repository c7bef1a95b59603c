"""The 64-bit ``wr_id`` of every work request that the agent posts.

    bits 60-62  kind            what the completion completes
    bits 28-59  session serial  the low 32 bits of the session's number
    bits 12-27  connection      its place in the table
    bits 0-11   slot            receive buffer (RECEIVE) or command slot (the others)

A place in the table, as the number of a queue pair, may be given to a new session while
completions of the old one are still queued; the serial tells them apart.
"""

from __future__ import annotations

from enum import IntEnum

from kvlane.jit import kernel
from kvlane.limits import CREDIT_SLACK, MAX_QUEUE_DEPTH, MAX_SESSIONS

_KIND_SHIFT = 60
_SERIAL_SHIFT = 28
_CONNECTION_SHIFT = 12
SERIAL_MASK = (1 << 32) - 1
_CONNECTION_MASK = (1 << (_SERIAL_SHIFT - _CONNECTION_SHIFT)) - 1
_SLOT_MASK = (1 << _CONNECTION_SHIFT) - 1

assert MAX_QUEUE_DEPTH + CREDIT_SLACK <= _SLOT_MASK
assert MAX_SESSIONS <= _CONNECTION_MASK


class WorkKind(IntEnum):
    """What a completed work request was."""

    RECEIVE = 1
    """A command capsule has arrived."""
    RESPONSE = 2
    """A response capsule was delivered; its buffer is free."""
    TRANSFER = 3
    """A READ or WRITE, and all that were posted together with it."""


@kernel
def pack_work_id(kind: int, serial: int, connection: int, slot: int) -> int:
    """The wr_id of a kind, a session's serial, its connection and a slot."""
    who = (serial & SERIAL_MASK) << _SERIAL_SHIFT | connection << _CONNECTION_SHIFT
    return kind << _KIND_SHIFT | who | slot


@kernel
def unpack_work_id(work_id: int) -> tuple[int, int, int, int]:
    """Kind, serial, connection and slot of a wr_id."""
    return (
        work_id >> _KIND_SHIFT,
        (work_id >> _SERIAL_SHIFT) & SERIAL_MASK,
        (work_id >> _CONNECTION_SHIFT) & _CONNECTION_MASK,
        work_id & _SLOT_MASK,
    )
