"""Reaching memory: that of this process by lkey, a peer's by rkey."""

from __future__ import annotations

from typing import Any

from numba import types

from emulator.pcie._channel_kernels import copy_shared
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
from kvlane.jit import external, kernel
from kvlane.verbs.enums import AccessFlags, WcStatus

_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_REGION_BYTES = int(REGION.itemsize)
_ADDR, _LENGTH, _ACCESS, _MAP_ID, _MAP_OFFSET = 8, 16, 24, 32, 40
assert (REGION.names or ())[:6] == ("key", "addr", "length", "access", "map_id", "map_offset")
_SUCCESS = int(WcStatus.SUCCESS)
_REM_ACCESS_ERR = int(WcStatus.REM_ACCESS_ERR)
_REM_OP_ERR = int(WcStatus.REM_OP_ERR)

_VM_ARGUMENTS = (types.int64,) * 6
_process_vm_readv = external("process_vm_readv", types.int64(*_VM_ARGUMENTS))
_process_vm_writev = external("process_vm_writev", types.int64(*_VM_ARGUMENTS))


@kernel
def opens(context: Any, lkey: int, addr: int, length: int, access: int) -> bool:
    """Whether a local key opens a range of this process's memory for ``access``."""
    region = region_at(context.board + BOARD_REGIONS, lkey & REGION_INDEX_MASK)
    if lkey <= 0 or region.key != lkey or region.access & access != access:
        return False
    offset = addr - region.addr
    return bool(offset >= 0 and length <= region.length - offset)


@kernel
def move(context: Any, qp: Any, peer: Any, entry: Any, at: tuple[int, int, bool]) -> int:
    """Copy one chunk of an RDMA request; the ``WcStatus``.

    ``at`` is the chunk's offset, its length, and whether it goes to the peer. The owner of the
    memory takes a key back, then waits until nobody is active: so we say that we are before
    we look at the key (Dekker's protocol).
    """
    qp.active += 1
    store_release(qp.outbound + CHANNEL_ACTIVE, qp.active)
    full_fence()
    status = load_acquire(qp.outbound + CHANNEL_VERDICT)
    if status == _SUCCESS:
        status = _move_by_key(context, peer, entry, at)
    qp.active += 1
    store_release(qp.outbound + CHANNEL_ACTIVE, qp.active)
    return int(status)


@kernel
def _move_by_key(context: Any, peer: Any, entry: Any, at: tuple[int, int, bool]) -> int:
    """The peer's words are read once each: it may change them at any time."""
    region = peer.board + BOARD_REGIONS + (entry.rkey & REGION_INDEX_MASK) * _REGION_BYTES
    key = load_acquire(region)
    offset = entry.remote_addr - load_acquire(region + _ADDR)
    room = load_acquire(region + _LENGTH) - offset
    needed = _REMOTE_WRITE if at[2] else _REMOTE_READ
    permitted = load_acquire(region + _ACCESS) & needed != 0
    if entry.rkey <= 0 or key != entry.rkey or not permitted or offset < 0 or entry.length > room:
        return _REM_ACCESS_ERR
    local = entry.local_addr + at[0]
    place = load_acquire(region + _MAP_OFFSET) + offset + at[0]
    mapped = _mapped(peer, load_acquire(region + _MAP_ID), place, at[1])
    if mapped != 0:
        here, there = (mapped, local) if at[2] else (local, mapped)
        copy_shared(context.channels, here, there, at[1])
        return _SUCCESS
    if peer.reaches_memory and _move_by_kernel(context, peer, entry.remote_addr + at[0], local, at):
        return _SUCCESS
    return _REM_OP_ERR


@kernel
def _mapped(peer: Any, map_id: int, offset: int, nbytes: int) -> int:
    """Where a range of the peer's shared memory is in this process; 0 when it is not mapped.

    Whatever the peer wrote, the range is checked against the mapping as this process made it.
    """
    if map_id < 0 or map_id >= MAP_CAPACITY:
        return 0
    mapping = map_at(peer.maps, map_id)
    if mapping.address == 0 or offset < 0 or offset > mapping.nbytes - nbytes:
        return 0
    address: int = mapping.address + offset
    return address


@kernel
def _move_by_kernel(
    context: Any, peer: Any, remote: int, local: int, at: tuple[int, int, bool]
) -> bool:
    """Copy memory of a peer that is not shared by a system call; whether all of it went."""
    iov = context.scratch
    store_release(iov, local)
    store_release(iov + 8, at[1])
    store_release(iov + 16, remote)
    store_release(iov + 24, at[1])
    if at[2]:
        return bool(_process_vm_writev(peer.pid, iov, 1, iov + 16, 1, 0) == at[1])
    return bool(_process_vm_readv(peer.pid, iov, 1, iov + 16, 1, 0) == at[1])
