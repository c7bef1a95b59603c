"""Compiling what a device calls from Python before anybody waits for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import types

from emulator.driving import _sleep_kernels as words
from emulator.pcie import _entry_kernels as kernels
from kvlane.jit import JIT_ENABLED

_KERNELS: tuple[tuple[Callable[..., Any], int], ...] = (
    (kernels.progress, 4),
    (kernels.poll_cq, 4),
    (kernels.post_send, 4),
    (kernels.post_recv, 4),
    (kernels.doze, 3),
    (kernels.end_sleep, 2),
    (kernels.forget, 3),
    (kernels.give_up_peer, 2),
    (kernels.notify, 2),
    (kernels.kick_sleepers, 1),
    (kernels.prepare_sleep, 1),
    (words.load_word, 1),
    (words.store_word, 2),
    (words.add_to_word, 2),
)
"""Each with how many integers it takes."""


@functools.cache
def compile_kernels() -> None:
    """Once in a process: else the first failure, or the first close, would stall the device for
    as long as the compiler takes."""
    for function, count in _KERNELS:
        if JIT_ENABLED:
            compiled: Any = function
            compiled.compile((types.int64,) * count)
