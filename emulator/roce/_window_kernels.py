"""Memory windows: binding, and taking access away (IBTA 1.7 section 10.6.6)."""

from __future__ import annotations

from typing import Any

from emulator.roce.state import MR_REGION, MR_WINDOW_1, MR_WINDOW_2, mr_at
from kvlane.jit import kernel
from kvlane.verbs.enums import AccessFlags

_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_REMOTE_ATOMIC = int(AccessFlags.REMOTE_ATOMIC)
_MW_BIND = int(AccessFlags.MW_BIND)
_ZERO_BASED = int(AccessFlags.ZERO_BASED)
_FLUSH = int(AccessFlags.FLUSH_GLOBAL | AccessFlags.FLUSH_PERSISTENT)
_REMOTE = int(
    AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC | _FLUSH
)


@kernel
def window_of(nic: Any, key: int) -> int:
    """Index of the window with this key, or 0."""
    index = key >> 8
    if index <= 0 or index >= nic.mr_capacity:
        return 0
    mr = mr_at(nic.mrs, index)
    if mr.key != key or mr.kind == MR_REGION:
        return 0
    return int(index)


@kernel
def _region_permits(nic: Any, qp: Any, wqe: Any) -> bool:
    """May a window be opened on what the bind names?"""
    index = wqe.mw_lkey >> 8
    if index <= 0 or index >= nic.mr_capacity:
        return False
    mr = mr_at(nic.mrs, index)
    if mr.key != wqe.mw_lkey or mr.kind != MR_REGION or mr.pd != qp.pd:
        return False
    if (mr.access & _MW_BIND) == 0:
        return False
    writes = (wqe.mw_access & (_REMOTE_WRITE | _REMOTE_ATOMIC)) != 0
    if writes and (mr.access & _LOCAL_WRITE) == 0:
        return False
    flushes = wqe.mw_access & _FLUSH
    if (mr.access & flushes) != flushes:
        return False
    offset = wqe.mw_addr - mr.addr
    return bool(0 <= offset <= mr.length and wqe.mw_length <= mr.length - offset)


@kernel
def bind_window(nic: Any, qp: Any, wqe: Any) -> bool:
    """Carry out a bind; one of length 0 closes the window. False when it is not allowed."""
    index = window_of(nic, wqe.mw_key)
    if index == 0:
        return False
    window = mr_at(nic.mrs, index)
    if window.pd != qp.pd or wqe.mw_length < 0:
        return False
    # A type 2 window that is bound must be invalidated before it is bound anew.
    if window.kind == MR_WINDOW_2 and window.length > 0 and wqe.mw_length > 0:
        return False
    if wqe.mw_length > 0 and not _region_permits(nic, qp, wqe):
        return False
    window.key = (index << 8) | (wqe.mw_new_key & 0xFF)
    window.length = wqe.mw_length
    window.qpn = qp.qpn if window.kind == MR_WINDOW_2 else 0
    window.access = wqe.mw_access & _REMOTE
    if wqe.mw_length > 0:
        mr = mr_at(nic.mrs, wqe.mw_lkey >> 8)
        window.host_addr = mr.host_addr + (wqe.mw_addr - mr.addr)
        window.addr = 0 if (wqe.mw_access & _ZERO_BASED) != 0 else wqe.mw_addr
        window.region = mr.key
    else:
        window.access = 0
        window.region = 0
    return True


@kernel
def invalidate_window(nic: Any, qp: Any, key: int) -> bool:
    """Close a type 2 window that is bound to this queue pair; False when it is none."""
    index = window_of(nic, key)
    if index == 0:
        return False
    window = mr_at(nic.mrs, index)
    if window.kind == MR_WINDOW_1 or window.pd != qp.pd or window.qpn not in (0, qp.qpn):
        return False
    window.access = 0
    window.length = 0
    window.qpn = 0
    window.region = 0
    return True
