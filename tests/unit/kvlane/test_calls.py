"""Functions by address, and ordered access to words."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvlane.calls import PROTOTYPE, Callbacks
from tests.support.call_kernels import WEIGHTED, add_often, call_through, exercise_word, sleep_for
from tests.support.loopback_verbs import LoopbackFabric


def test_a_kernel_is_called_by_its_address() -> None:
    assert call_through(WEIGHTED.address, 1, 2, 3, 4) == 4321


def test_arguments_and_result_keep_64_bits_and_sign() -> None:
    assert call_through(WEIGHTED.address, -(1 << 62), 0, 0, 0) == -(1 << 62)


def test_python_stands_in_for_a_kernel() -> None:
    heard: list[tuple[int, ...]] = []

    def hear(*numbers: int) -> int:
        heard.append(numbers)
        return -7

    entry = PROTOTYPE(hear)
    address = ctypes.cast(entry, ctypes.c_void_p).value or 0
    assert call_through(address, 1, 2, 3, 4) == -7
    assert heard == [(1, 2, 3, 4)]


def test_words_are_written_and_read_where_they_lie() -> None:
    words = np.zeros(3, np.int64)
    assert exercise_word(int(words[1:].ctypes.data)) == 12
    assert words.tolist() == [0, 7, 0]


def test_a_sleep_whose_time_is_over_is_none_also_where_the_system_takes_no_negative_time() -> None:
    (device,) = LoopbackFabric(devices=1).devices
    assert sleep_for(device.calls, -1, False) == 0
    assert device.take_fault() is None


def test_python_functions_are_called_by_address_and_their_exceptions_kept() -> None:
    callbacks = Callbacks()

    def weighted(first: int, second: int, third: int, fourth: int) -> int:
        if first < 0:
            raise ValueError(f"{first} is negative")
        return first + 10 * second + 100 * third + 1000 * fourth

    address, other = callbacks.add(weighted), callbacks.add(lambda *_: 7)
    assert call_through(address, 1, 2, 3, 4) == 4321
    assert call_through(other, 1, 2, 3, 4) == 7
    assert callbacks.take_fault() is None
    assert call_through(address, -1, 0, 0, 0) == -1
    assert call_through(address, -2, 0, 0, 0) == -1
    assert "-1 is negative" in str(callbacks.take_fault())
    assert callbacks.take_fault() is None


def test_words_are_added_to_by_many_threads_and_no_addition_is_lost() -> None:
    word = np.zeros(1, np.int64)
    address, rounds, threads = int(word.ctypes.data), 2_000, 4
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(add_often, address, rounds) for _ in range(threads)]
            for job in jobs:
                job.result()
    finally:
        sys.setswitchinterval(before)
    assert word[0] == threads * rounds
