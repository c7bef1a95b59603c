"""The lock of compiled code: one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvlane._ticket_kernels import GATE_WORDS
from tests.support.gate_kernels import add_slowly


def test_steps_of_many_threads_do_not_overlap() -> None:
    """An addition in two halves loses some as soon as two threads are between them."""
    gate, count = np.zeros(GATE_WORDS, np.int64), np.zeros(1, np.int64)
    addresses = int(gate.ctypes.data), int(count.ctypes.data)
    threads, rounds = 4, 300
    add_slowly(*addresses, 0)  # compiles
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(add_slowly, *addresses, rounds) for _ in range(threads)]:
            done.result()
    assert count[0] == threads * rounds
