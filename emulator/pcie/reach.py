"""Whether the kernel lets this process read and write the memory of another.

Whoever may not trace a process may not: another user, a process that has made itself
undumpable, ``kernel.yama.ptrace_scope``, a seccomp filter, a container.
"""

from __future__ import annotations

import ctypes
import errno
import os

from emulator.pcie.layout import BOARD_MAGIC

_libc = ctypes.CDLL(None, use_errno=True)


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("length", ctypes.c_uint64))


def why_not_reached(pid: int, board_address: int) -> int:
    """0 when memory of a process can be reached, tried where it says that its board is; else the
    errno. A process in a PID namespace that this one does not see has the number 0."""
    if pid <= 0:
        return errno.ESRCH
    word = ctypes.c_int64(0)
    here = _IoVector(ctypes.addressof(word), 8)
    there = _IoVector(board_address & ((1 << 64) - 1), 8)
    count = _libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if count < 0:
        return ctypes.get_errno()
    return 0 if word.value == BOARD_MAGIC else errno.EFAULT


def advice(pid: int, error: int) -> str:
    """What to tell people about a process that is not reached."""
    if pid <= 0:
        return (
            "memory of a process in another PID namespace cannot be reached: what device.alloc "
            "did not give is copied twice, the second time by that process. Allocate with "
            "device.alloc, or let both share a PID namespace"
        )
    return (
        f"memory of process {pid} cannot be reached ({os.strerror(error)}): what device.alloc did "
        f"not give is copied twice, the second time by that process. Allocate with device.alloc, "
        f"or permit process_vm_readv: grant CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope=0"
    )
