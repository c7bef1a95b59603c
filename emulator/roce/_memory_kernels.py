"""Protection and movement: key checks, gathering from and scattering to SGE lists."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import (
    MAX_INLINE_BYTES,
    MR_REGION,
    MR_WINDOW_2,
    mr_at,
)
from kvlane.atomics import prefetch
from kvlane.jit import kernel
from kvlane.rawmem import copy, copy_past_cache
from kvlane.verbs.enums import SendFlags

_INLINE = int(SendFlags.INLINE)
_READ_AHEAD_BYTES = 4096
_WRITE_AHEAD_BYTES = 1024
"""Less: what is written into is in the cache more often, and then this only costs."""
_CACHE_LINE_BYTES = 64


@kernel
def copy_out(destination: int, source: int, nbytes: int, left: int) -> None:
    """Copy a part of a message into a packet; ``left`` is how much of it lies behind.

    What comes next begins to be fetched meanwhile: the processor's own prefetching starts anew
    on every page, and packets are as long as those.
    """
    copy(destination, source, nbytes)
    _fetch(source + nbytes, min(left, _READ_AHEAD_BYTES))


@kernel
def copy_in(destination: int, source: int, nbytes: int, left: int) -> None:
    """Copy a packet's payload into memory; ``left`` is how much of the message comes behind."""
    copy(destination, source, nbytes)
    _fetch(destination + nbytes, min(left, _WRITE_AHEAD_BYTES))


@kernel
def put(destination: int, source: int, nbytes: int, left: int, streams: bool) -> None:
    """``copy_in``, or past the cache: see ``copy_past_cache``."""
    if streams:
        copy_past_cache(destination, source, nbytes)
    else:
        copy_in(destination, source, nbytes, left)


@kernel
def _fetch(address: int, nbytes: int) -> None:
    for offset in range(0, nbytes, _CACHE_LINE_BYTES):
        prefetch(address + offset)


@kernel
def host_address(nic: Any, qp: Any, key: int, addr: int, length: int, access: int) -> int:
    """Where in this process a range lies that ``key`` opens to ``qp`` for ``access``; else 0.

    A region belongs to a protection domain; a type 2 window besides to one queue pair
    (IBTA 1.7 section 10.6.6.3).
    """
    index = opened_by(nic, qp, key, access)
    if index == 0 or length < 0:
        return 0
    return _place(mr_at(nic.mrs, index), addr, length)


@kernel
def opened_by(nic: Any, qp: Any, key: int, access: int) -> int:
    """Index of the region or window that ``key`` opens to ``qp`` for ``access``; else 0."""
    index = key >> 8
    if index <= 0 or index >= nic.mr_capacity:
        return 0
    mr = mr_at(nic.mrs, index)
    if mr.key != key or mr.pd != qp.pd or (mr.access & access) != access:
        return 0
    if mr.kind == MR_WINDOW_2 and mr.qpn != qp.qpn:
        return 0
    return int(index)


@kernel
def _place(mr: Any, addr: int, length: int) -> int:
    """Where a range of a region or window lies in this process; 0 when it is not inside."""
    # Offsets, not ends: an address near 2^63 must not wrap round into the region.
    offset = addr - mr.addr
    if offset < 0 or offset > mr.length or length > mr.length - offset:
        return 0
    return int(mr.host_addr + offset)


@kernel
def local_address(nic: Any, pd: int, key: int, addr: int, length: int, access: int) -> int:
    """The same for an lkey and the protection domain of its work request; windows have none."""
    index = key >> 8
    if index <= 0 or index >= nic.mr_capacity or length < 0:
        return 0
    mr = mr_at(nic.mrs, index)
    if mr.key != key or mr.kind != MR_REGION or mr.pd != pd or (mr.access & access) != access:
        return 0
    return _place(mr, addr, length)


@kernel
def sges_allowed(nic: Any, pd: int, entry: Any, access: int) -> bool:
    """True when every SGE of a WQE or RQE is inside a region of ``pd`` that permits ``access``."""
    for i in range(entry.num_sge):
        if (
            entry.sge_length[i] > 0
            and local_address(
                nic, pd, entry.sge_lkey[i], entry.sge_addr[i], entry.sge_length[i], access
            )
            == 0
        ):
            return False
    return True


@kernel
def gather(nic: Any, qp: Any, wqe: Any, offset: int, length: int, destination: int) -> bool:
    """Copy message bytes [offset, offset + length) out of a WQE; False when a key is gone.

    Keys are looked up again for every packet: a region may be deregistered while its
    message is under way.
    """
    if (wqe.send_flags & _INLINE) != 0:
        slot = qp.sq_next % qp.sq_size
        copy(destination, qp.inline_data + slot * MAX_INLINE_BYTES + offset, length)
        return True
    skip = offset
    for i in range(wqe.num_sge):
        if length <= 0:
            break
        element = wqe.sge_length[i]
        if skip >= element:
            skip -= element
            continue
        chunk = min(element - skip, length)
        source = local_address(nic, qp.pd, wqe.sge_lkey[i], wqe.sge_addr[i] + skip, chunk, 0)
        if source == 0:
            return False
        copy_out(destination, source, chunk, element - skip - chunk)
        destination += chunk
        length -= chunk
        skip = 0
    return True


@kernel
def scatter(
    nic: Any,
    pd: int,
    entry: Any,
    part: tuple[int, int],
    source: int,
    access: int,
    streams: bool,
) -> bool:
    """Copy bytes from ``source`` to an SGE list; ``part`` is their message offset, and how many.

    False, with a part perhaps copied, when an element's key no longer permits ``access``. What
    ``streams`` goes past the cache, and is seen by others after a full fence.
    """
    skip, length = part
    for i in range(entry.num_sge):
        if length <= 0:
            break
        element = entry.sge_length[i]
        if skip >= element:
            skip -= element
            continue
        chunk = min(element - skip, length)
        target = local_address(nic, pd, entry.sge_lkey[i], entry.sge_addr[i] + skip, chunk, access)
        if target == 0:
            return False
        put(target, source, chunk, element - skip - chunk, streams)
        source += chunk
        length -= chunk
        skip = 0
    return True
