"""Memory that its owner alone can reach: the owner copies, and the ring carries bytes or wish.

A WRITE goes as fragments that name their place (PUT). A READ is asked for in chunks (GET); the
owner leaves each in the landing of the channel that leads to whoever asked. Both are done when the
owner's head has passed them, in the order of the ring: before a SEND that follows.
"""

from __future__ import annotations

from typing import Any

from emulator.pcie import _ring_kernels as ring
from emulator.pcie._access_kernels import opens
from emulator.pcie._completion_kernels import enter_error
from emulator.pcie._foreign_kernels import fetch_own, store_own
from emulator.pcie._sum_kernels import sum_over
from emulator.pcie.layout import (
    CHANNEL_LANDING,
    CHANNEL_RING,
    CHUNK_BYTES,
    FRAGMENT_BYTES,
    LANDING_BYTES,
    RING_HEADER_BYTES,
    FragmentKind,
    News,
)
from kvlane.atomics import store_release
from kvlane.jit import kernel
from kvlane.verbs.enums import AccessFlags, WcStatus

_MESSAGE = int(News.MESSAGE)
_PUT = int(FragmentKind.PUT)
_GET = int(FragmentKind.GET)
_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_REM_INV_REQ_ERR = int(WcStatus.REM_INV_REQ_ERR)
_REM_ACCESS_ERR = int(WcStatus.REM_ACCESS_ERR)
_ADDRESS, _NBYTES, _KEY = 1, 2, 3
_WISH_BYTES = 8
_WISH_SCRATCH = 80

STALLED = -1
"""Nothing can be done before the peer has."""
FAULTED = -2
"""Registered memory of this process is not there."""


# Who wants


@kernel
def put_chunk(context: Any, qp: Any, entry: Any) -> int:
    """Send the next bytes of a WRITE to their owner; how many, ``STALLED`` or ``FAULTED``."""
    nbytes = min(FRAGMENT_BYTES, entry.length - qp.sq_offset)
    if not ring.has_space(qp.outbound, qp.tx_tail, nbytes):
        return STALLED
    header = (_PUT, entry.remote_addr + qp.sq_offset, entry.rkey)
    source = entry.local_addr + qp.sq_offset
    target, first = ring.begin(qp.outbound, qp.tx_tail, header, nbytes)
    rest = nbytes - first
    if not fetch_own(context, source, target, first):
        return FAULTED
    if not fetch_own(context, source + first, qp.outbound + CHANNEL_RING, rest):
        return FAULTED
    qp.tx_tail = ring.publish(qp.outbound, qp.tx_tail, nbytes)
    qp.put_end = entry.ring_end = qp.tx_tail
    qp.news |= _MESSAGE
    context.bounced_bytes += nbytes
    return int(nbytes)


@kernel
def ask_or_collect(context: Any, qp: Any, entry: Any) -> int:
    """Ask for the next bytes of a READ, or take what was asked for.

    How many were taken, 0 when they were asked for, ``STALLED`` or ``FAULTED``.
    """
    nbytes = min(CHUNK_BYTES, entry.length - qp.sq_offset)
    if qp.get_end == 0:
        return _ask(context, qp, entry, nbytes)
    if ring.taken(qp.outbound, qp.tx_head, qp.tx_tail) < qp.get_end:
        return STALLED
    qp.get_end = 0
    target = entry.local_addr + qp.sq_offset
    if not store_own(context, qp.inbound + CHANNEL_LANDING, target, nbytes):
        return FAULTED
    sum_over(entry.sum_addr, target, nbytes)
    context.bounced_bytes += nbytes
    return int(nbytes)


@kernel
def _ask(context: Any, qp: Any, entry: Any, nbytes: int) -> int:
    if not ring.has_space(qp.outbound, qp.tx_tail, _WISH_BYTES):
        return STALLED
    wish = context.scratch + _WISH_SCRATCH
    store_release(wish, nbytes)
    header = (_GET, entry.remote_addr + qp.sq_offset, entry.rkey)
    qp.tx_tail = ring.put(qp.outbound, qp.tx_tail, header, wish, _WISH_BYTES)
    qp.get_end = qp.tx_tail
    qp.news |= _MESSAGE
    return 0


# Who owns


@kernel
def is_for_memory(kind: int) -> bool:
    """Whether a fragment is a PUT or a GET, rather than part of a message."""
    return bool(kind in (_PUT, _GET))


@kernel
def serve(context: Any, qp: Any, kind: int, ready: int) -> int:
    """Carry out the PUT or GET at the head; its bytes.

    The peer's words are read once each. When they ask for what is not theirs, or for memory that
    is no longer there, the queue pair fails.
    """
    addr = ring.header_word(qp.inbound, qp.rx_head, _ADDRESS)
    nbytes = ring.header_word(qp.inbound, qp.rx_head, _NBYTES)
    key = ring.header_word(qp.inbound, qp.rx_head, _KEY)
    if nbytes < 0 or nbytes > FRAGMENT_BYTES or ring.footprint(nbytes) > ready:
        enter_error(qp, _REM_INV_REQ_ERR)
        return 0
    if kind == _PUT:
        status = _store(context, qp, (addr, nbytes, key))
        moved = nbytes
    else:
        moved = ring.header_word(qp.inbound, qp.rx_head + RING_HEADER_BYTES, 0)
        status = _REM_INV_REQ_ERR
        if nbytes == _WISH_BYTES and 0 <= moved <= LANDING_BYTES:
            status = _fetch(context, qp, (addr, moved, key))
    if status != 0:
        enter_error(qp, status)
        return 0
    qp.rx_head = ring.skip(qp.inbound, qp.rx_head, nbytes)
    qp.news |= _MESSAGE
    return moved


@kernel
def _store(context: Any, qp: Any, place: tuple[int, int, int]) -> int:
    """Write a fragment's bytes to (address, length, key); the ``WcStatus``."""
    addr, nbytes, key = place
    if not opens(context, key, addr, nbytes, _REMOTE_WRITE):
        return _REM_ACCESS_ERR
    source, first = ring.content(qp.inbound, qp.rx_head, nbytes)
    if not store_own(context, source, addr, first):
        return _REM_ACCESS_ERR
    if not store_own(context, qp.inbound + CHANNEL_RING, addr + first, nbytes - first):
        return _REM_ACCESS_ERR
    context.rx_bytes += nbytes
    return 0


@kernel
def _fetch(context: Any, qp: Any, place: tuple[int, int, int]) -> int:
    """Leave the bytes at (address, length, key) in the landing; the ``WcStatus``."""
    addr, nbytes, key = place
    if not opens(context, key, addr, nbytes, _REMOTE_READ):
        return _REM_ACCESS_ERR
    if not fetch_own(context, addr, qp.outbound + CHANNEL_LANDING, nbytes):
        return _REM_ACCESS_ERR
    context.tx_bytes += nbytes
    return 0
