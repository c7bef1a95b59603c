"""Reaching memory: that of this process by lkey, a peer's by rkey."""

from __future__ import annotations

from typing import Any

from emulator.pcie import _foreign_kernels as foreign
from emulator.pcie import _ring_kernels as ring
from emulator.pcie._channel_kernels import copy_shared
from emulator.pcie._completion_kernels import believable
from emulator.pcie._sum_kernels import sum_over
from emulator.pcie.layout import (
    BOARD_REGIONS,
    CHANNEL_ACTIVE,
    CHANNEL_VERDICT,
    MAP_CAPACITY,
    REGION,
    REGION_INDEX_MASK,
    map_at,
    region_at,
)
from kvlane.atomics import full_fence, load_acquire, store_release
from kvlane.jit import kernel
from kvlane.verbs.enums import AccessFlags, WcStatus

_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_REGION_BYTES = int(REGION.itemsize)
_ADDR, _LENGTH, _ACCESS, _MAP_ID, _MAP_OFFSET = 8, 16, 24, 32, 40
assert (REGION.names or ())[:6] == ("key", "addr", "length", "access", "map_id", "map_offset")
_SUCCESS = int(WcStatus.SUCCESS)
_REM_ACCESS_ERR = int(WcStatus.REM_ACCESS_ERR)
_MAX_WORD = (1 << 63) - 1

UNREACHABLE = foreign.UNREACHABLE
"""Instead of a ``WcStatus``: only its owner can reach this memory."""
LATER = -2
"""Instead of a ``WcStatus``: not before something else has happened."""


@kernel
def is_inside(addr: int, length: int, start: int, room: int) -> bool:
    """Whether a range lies inside another, whatever the four words are: nothing overflows."""
    if start < 0 or room < 0 or room > _MAX_WORD - start:
        return False
    if addr < start or length < 0 or length > room:
        return False
    return bool(addr - start <= room - length)


@kernel
def opens(context: Any, key: int, addr: int, length: int, access: int) -> bool:
    """Whether a key of this device opens a range of this process's memory for ``access``."""
    region = region_at(context.board + BOARD_REGIONS, key & REGION_INDEX_MASK)
    if key <= 0 or region.key != key or region.access & access != access:
        return False
    return is_inside(addr, length, region.addr, region.length)


@kernel
def move(context: Any, qp: Any, peer: Any, entry: Any, at: tuple[int, int, bool]) -> int:
    """Copy one chunk of an RDMA request; the ``WcStatus``, ``UNREACHABLE`` or ``LATER``.

    ``at`` is the chunk's offset, its length, and whether it goes to the peer. The owner of the
    memory takes a key back, then waits until nobody is active: so we say that we are before
    we look at the key (Dekker's protocol).
    """
    qp.active += 1
    store_release(qp.outbound + CHANNEL_ACTIVE, qp.active)
    full_fence()
    status = load_acquire(qp.outbound + CHANNEL_VERDICT)
    if status == _SUCCESS:
        status = _move_by_key(context, qp, peer, entry, at)
    else:
        status = believable(status)
    qp.active += 1
    store_release(qp.outbound + CHANNEL_ACTIVE, qp.active)
    return int(status)


@kernel
def _move_by_key(context: Any, qp: Any, peer: Any, entry: Any, at: tuple[int, int, bool]) -> int:
    """The peer's words are read once each: it may change them at any time."""
    region = peer.board + BOARD_REGIONS + (entry.rkey & REGION_INDEX_MASK) * _REGION_BYTES
    key = load_acquire(region)
    start = load_acquire(region + _ADDR)
    needed = _REMOTE_WRITE if at[2] else _REMOTE_READ
    permitted = load_acquire(region + _ACCESS) & needed != 0
    if entry.rkey <= 0 or key != entry.rkey or not permitted:
        return _REM_ACCESS_ERR
    if not is_inside(entry.remote_addr, entry.length, start, load_acquire(region + _LENGTH)):
        return _REM_ACCESS_ERR
    local = entry.local_addr + at[0]
    map_id = load_acquire(region + _MAP_ID)
    offset = entry.remote_addr - start + at[0]
    mapped = mapped_at(peer, map_id, load_acquire(region + _MAP_OFFSET), offset, at[1])
    if mapped == 0 and _may_be_mapped_soon(context, qp, map_id):
        return LATER
    if mapped == 0 and peer.why_not_reached != 0:
        return UNREACHABLE
    if not _is_all_put(qp):
        return LATER
    if mapped == 0:
        status = foreign.move(context, peer, entry.remote_addr + at[0], local, at)
        if status == _SUCCESS and not at[2]:
            sum_over(entry.sum_addr, local, at[1])
        return int(status)
    if at[2]:
        copy_shared(context.channels, mapped, local, at[1], 0)
    else:
        copy_shared(context.channels, local, mapped, at[1], entry.sum_addr)
    return _SUCCESS


@kernel
def mapped_at(peer: Any, map_id: int, start: int, offset: int, nbytes: int) -> int:
    """Where a range of the peer's shared memory is in this process; 0 when it is not mapped.

    The range begins ``offset`` bytes, not negative, behind ``start``. Whatever the peer wrote,
    it is checked against the mapping as this process made it.
    """
    if map_id < 0 or map_id >= MAP_CAPACITY:
        return 0
    mapping = map_at(peer.maps, map_id)
    if mapping.address == 0 or start < 0 or start > mapping.length:
        return 0
    if not is_inside(offset, nbytes, 0, mapping.length - start):
        return 0
    address: int = mapping.address + start + offset
    return address


@kernel
def _may_be_mapped_soon(context: Any, qp: Any, map_id: int) -> bool:
    """Whether the message that brings this memory may wait to be attended to: true once."""
    if map_id < 0 or map_id >= MAP_CAPACITY or qp.awaited_map == map_id + 1:
        return False
    qp.awaited_map = map_id + 1
    context.attend_due = 1
    return True


@kernel
def _is_all_put(qp: Any) -> bool:
    """Whether the peer has carried out what it was asked to copy: nothing overtakes that."""
    if qp.put_end == 0:
        return True
    if ring.taken(qp.outbound, qp.tx_head, qp.tx_tail) < qp.put_end:
        return False
    qp.put_end = 0
    return True
