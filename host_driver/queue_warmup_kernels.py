"""Compiles the command queue's kernels, before there is a NIC whose peer would wait for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof

from host_driver import _queue_kernels as kernels
from host_driver._address_kernels import address_of
from host_driver._chain_kernels import follow_chains, list_chains, write_spans
from host_driver._job_kernels import describe_job
from host_driver._placement_kernels import list_rows, locate_blocks, sum_room
from kvlane.jit import JIT_ENABLED
from kvlane.limits import KEY_BYTES


def compile_queue_kernels() -> None:
    """Compile or load them for the arguments that the queue has; none of them runs."""
    words = np.zeros(1, np.int64)
    spans = np.zeros((1, 2), np.int64)
    moves = (words, words, words, np.zeros(1, np.uint32))
    for kernel, arguments in (
        (kernels.enqueue, (0, 0)),
        (kernels.withdraw, (0, 0)),
        (kernels.forget_finished, (0,)),
        (kernels.pump, (0,)),
        (kernels.run_until, (0, 0, 0, True, 0)),
        (address_of, (np.zeros((1, KEY_BYTES), np.uint8),)),
        (address_of, (np.frombuffer(bytes(KEY_BYTES), np.uint8).reshape(1, KEY_BYTES),)),
        (address_of, (np.zeros(1, np.int64),)),
        (address_of, (np.zeros(1, np.uint8),)),
        (describe_job, (words, (0, 0), 0, 0, spans, moves)),
        (locate_blocks, (words,) * 5),
        (sum_room, (words, words, 0, words)),
        (list_chains, (words, words)),
        (write_spans, (words, words, words, spans)),
        (follow_chains, (words, words, words, spans, words)),
        (list_rows, (0, 0, 0, words, words)),
    ):
        _compile(kernel, arguments)


def _compile(kernel: Any, arguments: tuple[Any, ...]) -> None:
    if JIT_ENABLED:
        kernel.compile(tuple(typeof(argument) for argument in arguments))
