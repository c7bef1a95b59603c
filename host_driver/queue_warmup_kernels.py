"""Compiles the command queue's kernels, before there is a NIC whose peer would wait for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof

from host_driver import _queue_kernels as kernels
from host_driver._address_kernels import address_of
from kvlane.jit import JIT_ENABLED
from kvlane.limits import KEY_BYTES
from kvlane.verbs.calls import VerbCalls


def compile_queue_kernels() -> None:
    """Compile or load them for the arguments that the queue has; none of them runs."""
    calls = VerbCalls(0, 0, 0, 0, 0, 0, 0)
    for kernel, arguments in (
        (kernels.enqueue, (0, 0)),
        (kernels.withdraw, (0, 0)),
        (kernels.forget_finished, (0,)),
        (kernels.pump, (0, calls)),
        (kernels.run_until, (0, calls, 0, 0, True, 0)),
        (address_of, (np.zeros((1, KEY_BYTES), np.uint8),)),
        (address_of, (np.frombuffer(bytes(KEY_BYTES), np.uint8).reshape(1, KEY_BYTES),)),
        (address_of, (np.zeros((1, 2), np.int64),)),
        (address_of, (np.zeros(1, np.int64),)),
        (address_of, (np.zeros(1, np.uint8),)),
        (address_of, (np.zeros(1, np.uint32),)),
    ):
        _compile(kernel, arguments)


def _compile(kernel: Any, arguments: tuple[Any, ...]) -> None:
    if JIT_ENABLED:
        kernel.compile(tuple(typeof(argument) for argument in arguments))
