"""Protection and movement: key checks, gathering from and scattering to SGE lists."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import mr_at
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import AccessFlags

_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)


@kernel
def access_allowed(nic: Any, pd: int, key: int, range_start: int, length: int, access: int) -> bool:
    """True when ``key`` opens the whole range for ``access`` within protection domain ``pd``."""
    index = key >> 8
    if index <= 0 or index >= nic.mr_capacity or length < 0:
        return False
    mr = mr_at(nic.mrs, index)
    if mr.key != key or mr.pd != pd or (mr.access & access) != access:
        return False
    # Offsets, not ends: an address near 2^63 must not wrap round into the region.
    offset = range_start - mr.addr
    return bool(0 <= offset <= mr.length and length <= mr.length - offset)


@kernel
def sges_allowed(nic: Any, pd: int, entry: Any, access: int) -> bool:
    """True when every SGE of a WQE or RQE is inside a region that permits ``access``."""
    for i in range(entry.num_sge):
        if entry.sge_length[i] > 0 and not access_allowed(
            nic, pd, entry.sge_lkey[i], entry.sge_addr[i], entry.sge_length[i], access
        ):
            return False
    return True


@kernel
def gather(wqe: Any, offset: int, length: int, destination: int) -> None:
    """Copy message bytes [offset, offset + length) out of the SGEs of ``wqe``."""
    skip = offset
    for i in range(wqe.num_sge):
        if length <= 0:
            break
        size = wqe.sge_length[i]
        if skip >= size:
            skip -= size
            continue
        chunk = min(size - skip, length)
        copy(destination, wqe.sge_addr[i] + skip, chunk)
        destination += chunk
        length -= chunk
        skip = 0


@kernel
def scatter(entry: Any, offset: int, length: int, source: int) -> None:
    """Copy ``length`` bytes from ``source`` to message offset ``offset`` of an SGE list."""
    skip = offset
    for i in range(entry.num_sge):
        if length <= 0:
            break
        size = entry.sge_length[i]
        if skip >= size:
            skip -= size
            continue
        chunk = min(size - skip, length)
        copy(entry.sge_addr[i] + skip, source, chunk)
        source += chunk
        length -= chunk
        skip = 0
