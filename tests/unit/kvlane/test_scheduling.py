"""Held: who waits in a loop gives the core to others, and each turn of it ends."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from kvlane._scheduling_kernels import UNYIELDING_NS, wait_a_turn
from kvlane.atomics import load_acquire
from kvlane.jit import kernel


@kernel
def turns_until(word: int, idle_ns: int, limit: int) -> int:
    """Turns of a loop that waits for a word to change; ``limit`` at most."""
    turns = 0
    while load_acquire(word) == 0 and turns < limit:
        wait_a_turn(idle_ns)
        turns += 1
    return turns


@pytest.mark.parametrize("idle_ns", [0, UNYIELDING_NS - 1, UNYIELDING_NS, 1 << 40])
def test_a_turn_comes_to_an_end(idle_ns: int) -> None:
    word = np.zeros(1, np.int64)
    assert turns_until(int(word.ctypes.data), idle_ns, 3) == 3


def test_one_core_is_enough_for_who_waits_and_who_is_waited_for() -> None:
    word = np.zeros(1, np.int64)
    address = int(word.ctypes.data)
    core = {min(os.sched_getaffinity(0))}
    waited: list[int] = []

    def wait() -> None:
        os.sched_setaffinity(0, core)
        waited.append(turns_until(address, UNYIELDING_NS, 1 << 40))

    def set_word() -> None:
        os.sched_setaffinity(0, core)
        word[0] = 1

    threads = [threading.Thread(target=work, daemon=True) for work in (wait, set_word)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(waited) == 1
