"""Memory that is not shared: copied by the kernel between two processes, or within this one.

A system call answers where a copy of our own would be killed: when memory is registered that is
no longer there, or was never to be read.
"""

from __future__ import annotations

import errno
import mmap
from typing import Any

import numpy as np
from numba import types

from kvlane.atomics import store_release
from kvlane.jit import external, kernel
from kvlane.rawmem import copy, record_accessor
from kvlane.verbs.enums import WcStatus

UNREACHABLE = -1
"""Instead of a ``WcStatus``: the kernel does not permit it."""

_SUCCESS = int(WcStatus.SUCCESS)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_REM_ACCESS_ERR = int(WcStatus.REM_ACCESS_ERR)
_REM_OP_ERR = int(WcStatus.REM_OP_ERR)
_GONE = int(WcStatus.RETRY_EXC_ERR)
_ESRCH, _EFAULT = errno.ESRCH, errno.EFAULT
_NOT_PERMITTED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_POLLIN = 1
_PAGE_MASK = mmap.PAGESIZE - 1
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23

_VM_ARGUMENTS = (types.int64,) * 6
_process_vm_readv = external("process_vm_readv", types.int64(*_VM_ARGUMENTS))
_process_vm_writev = external("process_vm_writev", types.int64(*_VM_ARGUMENTS))
_madvise = external("madvise", types.int32(types.int64, types.int64, types.int32))
_poll = external("poll", types.int32(types.int64, types.uint64, types.int32))
_errno_location = external("__errno_location", types.int64())
_int_at = record_accessor(np.dtype([("value", "i4")]))


@kernel
def move(context: Any, peer: Any, remote: int, local: int, at: tuple[int, int, bool]) -> int:
    """Copy between this process and a peer; the ``WcStatus``, or ``UNREACHABLE``.

    ``at`` is as in ``_access_kernels.move``. A process id may be another's as soon as its process
    is dead, so that is asked first.
    """
    if _is_dead(context, peer.pidfd):
        return _GONE
    done = 0
    while done < at[1]:
        error = 0
        vectors = _describe(context, local + done, remote + done, at[1] - done)
        if at[2]:
            count = _process_vm_writev(peer.pid, vectors, 1, vectors + 16, 1, 0)
        else:
            count = _process_vm_readv(peer.pid, vectors, 1, vectors + 16, 1, 0)
        if count <= 0:
            error = int(_int_at(_errno_location(), 0).value) if count < 0 else _EFAULT
            return _status_of(context, peer, error, (local, at[1], at[2]))
        done += count
    return _SUCCESS


@kernel
def _describe(context: Any, local: int, remote: int, nbytes: int) -> int:
    """Two ``struct iovec``; where they are."""
    vectors: int = context.scratch
    store_release(vectors, local)
    store_release(vectors + 8, nbytes)
    store_release(vectors + 16, remote)
    store_release(vectors + 24, nbytes)
    return vectors


@kernel
def _status_of(context: Any, peer: Any, error: int, local: tuple[int, int, bool]) -> int:
    """What an errno means for the request; ``local`` is address, length, and whether it is read."""
    if error == _ESRCH:
        return _GONE
    if error in _NOT_PERMITTED:
        peer.why_not_reached = error
        return UNREACHABLE
    if error != _EFAULT:
        return _REM_OP_ERR
    advice = _MADV_POPULATE_READ if local[2] else _MADV_POPULATE_WRITE
    can_tell = _is_there(context.board, 1, _MADV_POPULATE_READ)  # since Linux 5.14
    if can_tell and not _is_there(local[0], local[1], advice):
        return _LOC_PROT_ERR
    return _REM_ACCESS_ERR


@kernel
def _is_there(addr: int, nbytes: int, advice: int) -> bool:
    """Whether memory can be read, or written, without a fault."""
    first = addr & ~_PAGE_MASK
    return bool(_madvise(first, addr + nbytes - first, np.int32(advice)) == 0)


@kernel
def _is_dead(context: Any, pidfd: int) -> bool:
    """Whether the process of a pidfd has ended."""
    descriptor = context.scratch + 40
    store_release(descriptor, (pidfd & 0xFFFFFFFF) | (_POLLIN << 32))
    return bool(_poll(descriptor, np.uint64(1), np.int32(0)) > 0)


@kernel
def fetch_own(context: Any, source: int, target: int, nbytes: int) -> bool:
    """Copy registered memory of this process to ``target``; false when some is not there."""
    if nbytes == 0:
        return True
    if not context.reaches_itself:
        copy(target, source, nbytes)
        return True
    vectors = _describe(context, target, source, nbytes)
    return bool(_process_vm_readv(context.pid, vectors, 1, vectors + 16, 1, 0) == nbytes)


@kernel
def store_own(context: Any, source: int, target: int, nbytes: int) -> bool:
    """Copy to registered memory of this process; false when some is not there."""
    if nbytes == 0:
        return True
    if not context.reaches_itself:
        copy(target, source, nbytes)
        return True
    vectors = _describe(context, source, target, nbytes)
    return bool(_process_vm_writev(context.pid, vectors, 1, vectors + 16, 1, 0) == nbytes)
