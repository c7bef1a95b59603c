"""Sleeping on descriptors without the interpreter's lock, and waking who sleeps so."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvlane.atomics import fetch_add, full_fence, load_acquire, store_release
from kvlane.jit import external, kernel

_POLLIN = 1
_REVENTS_SHIFT, _REVENTS_MASK = 48, 0xFFFF
_NS_PER_S = 1_000_000_000
EVENT_BYTES = 8
"""What an eventfd reads and writes."""

_ppoll = external("ppoll", types.int32(types.int64, types.uint64, types.int64, types.int64))
_read = external("read", types.int64(types.int32, types.int64, types.int64))
_write = external("write", types.int64(types.int32, types.int64, types.int64))


@kernel
def watch(descriptors: Any, index: int, fd: int) -> None:
    """Make entry ``index`` a ``struct pollfd``; a negative descriptor is passed over."""
    descriptors[index] = (fd & 0xFFFFFFFF) | (_POLLIN << 32)


@kernel
def poll_descriptors(descriptors: Any, limit_ns: int) -> int:
    """Until one of them is readable, or time is up; bit ``i`` says that entry ``i`` is."""
    limit = np.empty(2, np.int64)
    limit[0] = limit_ns // _NS_PER_S
    limit[1] = limit_ns % _NS_PER_S
    _ppoll(descriptors.ctypes.data, np.uint64(len(descriptors)), limit.ctypes.data, 0)
    readable = 0
    for index in range(len(descriptors)):
        if (descriptors[index] >> _REVENTS_SHIFT) & _REVENTS_MASK:
            readable |= 1 << index
    return readable


@kernel
def ring(event_fd: int, scratch: int) -> None:
    """Make an eventfd readable; ``scratch`` is the address of a word."""
    store_release(scratch, 1)
    _write(np.int32(event_fd), scratch, EVENT_BYTES)


@kernel
def silence(event_fd: int, scratch: int) -> None:
    """Take back what ``ring`` did."""
    _read(np.int32(event_fd), scratch, EVENT_BYTES)


@kernel
def load_word(address: int) -> int:
    """A word that others write."""
    return int(load_acquire(address))


@kernel
def store_word(address: int, value: int) -> None:
    """Write a word, and look at nothing before it is seen."""
    store_release(address, value)
    full_fence()


@kernel
def add_to_word(address: int, value: int) -> None:
    """Add to a word in one step, and look at nothing before it is seen."""
    fetch_add(address, value)
    full_fence()
