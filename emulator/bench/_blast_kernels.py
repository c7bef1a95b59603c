"""Both loops of the blast: consecutive bytes of memory out of one socket and into another.

Sender and receiver go around their memory, as a benchmark goes around its blocks and rows, so
that neither finds it in its cache. The receiver says by a datagram of eight bytes how far it is;
the sender never has more under way than its window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.driving._sleep_kernels import poll_descriptors
from emulator.link._socket_kernels import (
    MESSAGE,
    TRUNCATED,
    VECTOR,
    message_at,
    receive_message,
    send_message,
    vector_at,
)
from kvlane._clock_kernels import monotonic_ns
from kvlane.atomics import load_acquire
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

SEGMENT_BYTES = 4116
"""A WRITE MIDDLE of 4 KiB: BTH, payload, ICRC."""
CALL_BYTES = 15 * SEGMENT_BYTES
"""As many whole segments as one call carries."""
LONGEST_READ_BYTES = 65507
CREDIT_BYTES = 8
_LONGEST_SLEEP_NS = 10_000_000

DONE = 0
TIMED_OUT = -1
TOO_LONG = -2

BLAST_END = np.dtype(
    [
        ("message", MESSAGE),
        ("vector", VECTOR),
        ("credit_message", MESSAGE),
        ("credit_vector", VECTOR),
        ("credit", "i8"),
        ("clock", "i8", (2,)),
        ("fd", "i8"),  # a connected socket that does not block
        ("memory", "i8"),
        ("memory_bytes", "i8"),
        ("position", "i8"),  # where in the memory the next call begins
        ("moved", "i8"),  # bytes of this turn
        ("confirmed", "i8"),  # bytes of this turn that the receiver has
    ]
)
"""One end of a blast."""

_at = {name: int(field[1]) for name, field in (BLAST_END.fields or {}).items()}
_MESSAGE_AT, _VECTOR_AT = _at["message"], _at["vector"]
_CREDIT_MESSAGE_AT, _CREDIT_VECTOR_AT = _at["credit_message"], _at["credit_vector"]
_CREDIT_AT, _CLOCK_AT = _at["credit"], _at["clock"]

blast_end_at = record_accessor(BLAST_END)


@kernel
def _prepare(message_address: int, vector_address: int, base: int, nbytes: int) -> Any:
    """A message of one vector, for a connected socket."""
    vector = vector_at(vector_address, 0)
    vector.base = base
    vector.nbytes = nbytes
    message = message_at(message_address, 0)
    message.vectors = vector_address
    message.vector_count = 1
    return message


@kernel
def _take_credit(address: int, end: Any) -> bool:
    """Read one credit, if there is any."""
    credit = address + _CREDIT_AT
    _prepare(address + _CREDIT_MESSAGE_AT, address + _CREDIT_VECTOR_AT, credit, CREDIT_BYTES)
    if receive_message(end.fd, address + _CREDIT_MESSAGE_AT) != CREDIT_BYTES:
        return False
    end.confirmed = max(end.confirmed, load_acquire(credit))
    return True


@kernel
def _give_credit(address: int, end: Any) -> None:
    """Tell the sender how many bytes of this turn have come."""
    end.credit = end.moved
    credit = address + _CREDIT_AT
    _prepare(address + _CREDIT_MESSAGE_AT, address + _CREDIT_VECTOR_AT, credit, CREDIT_BYTES)
    send_message(end.fd, address + _CREDIT_MESSAGE_AT)


@kernel
def _send_call(address: int, end: Any, limit: int) -> bool:
    """Send the next call, of ``limit`` bytes at most; False when the socket is full."""
    nbytes = min(limit, CALL_BYTES, end.memory_bytes - end.position)
    _prepare(address + _MESSAGE_AT, address + _VECTOR_AT, end.memory + end.position, nbytes)
    if send_message(end.fd, address + _MESSAGE_AT) != 0:
        return False
    end.moved += nbytes
    end.position += nbytes
    if end.position == end.memory_bytes:
        end.position = 0
    return True


@kernel
def send_blast(address: int, descriptors: Any, total: int, window: int, limit_ns: int) -> int:
    """Send ``total`` bytes and wait until the receiver has them: DONE or TIMED_OUT.

    Who has nothing to do sleeps at once. Spinning first was no faster where each end had a core
    of its own, and up to three times slower where another process wanted one of them.
    """
    end = blast_end_at(address, 0)
    end.moved = 0
    end.confirmed = 0
    clock = address + _CLOCK_AT
    deadline = monotonic_ns(clock) + limit_ns
    while end.confirmed < total:
        worked = False
        while end.moved < total and end.moved - end.confirmed + CALL_BYTES <= window:
            if not _send_call(address, end, total - end.moved):
                break
            worked = True
        while _take_credit(address, end):
            worked = True
        if worked:
            continue
        if monotonic_ns(clock) >= deadline:
            return TIMED_OUT
        poll_descriptors(descriptors, _LONGEST_SLEEP_NS)
    return DONE


@kernel
def _receive_call(address: int, end: Any) -> int:
    """One read into the next part of the memory: its bytes, TOO_LONG, or -1 for nothing there."""
    if end.position + LONGEST_READ_BYTES > end.memory_bytes:
        end.position = 0
    message = _prepare(
        address + _MESSAGE_AT, address + _VECTOR_AT, end.memory + end.position, LONGEST_READ_BYTES
    )
    nbytes = receive_message(end.fd, address + _MESSAGE_AT)
    if nbytes >= 0 and (message.result_flags & TRUNCATED) != 0:
        return TOO_LONG
    if nbytes > 0:
        end.position += nbytes
        end.moved += nbytes
    return nbytes


@kernel
def receive_blast(
    address: int, descriptors: Any, total: int, credit_every: int, limit_ns: int
) -> int:
    """Receive ``total`` bytes: DONE, TIMED_OUT, or TOO_LONG for a datagram that is not ours."""
    end = blast_end_at(address, 0)
    end.moved = 0
    told = 0
    clock = address + _CLOCK_AT
    deadline = monotonic_ns(clock) + limit_ns
    while end.moved < total:
        nbytes = _receive_call(address, end)
        if nbytes == TOO_LONG:
            return TOO_LONG
        if nbytes < 0:
            if monotonic_ns(clock) >= deadline:
                return TIMED_OUT
            poll_descriptors(descriptors, _LONGEST_SLEEP_NS)
        elif end.moved - told >= credit_every or end.moved >= total:
            told = end.moved
            _give_credit(address, end)
    return DONE
