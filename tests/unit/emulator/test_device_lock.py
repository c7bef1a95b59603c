"""The lock of a device: reentrant, heard by its holder, safe in finalisers and signal handlers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest

import emulator.driving.device_lock as subject
from emulator.driving.device_lock import DeviceLock

PATIENCE_S = 60.0


class Rig:
    """A lock with its word, and how often its holder was to be woken."""

    def __init__(self) -> None:
        self.wanted = np.zeros(1, np.int64)
        self.wakes = threading.Semaphore(0)
        self.lock = DeviceLock(int(self.wanted.ctypes.data), self.wakes.release)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as opened:
        yield opened


def test_its_holder_may_take_it_again(rig: Rig) -> None:
    assert not rig.lock.is_held_here()
    with rig.lock:
        with rig.lock:
            assert rig.lock.is_held_here()
        assert rig.lock.is_held_here()
    assert not rig.lock.is_held_here()
    assert rig.wanted[0] == 0


def test_its_holder_learns_that_others_want_it_and_may_take_it_again_meanwhile(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    def take() -> None:
        with rig.lock:
            assert rig.lock.is_held_here()

    with rig.lock:
        others = [pool.submit(take) for _ in range(3)]
        for _ in others:
            assert rig.wakes.acquire(timeout=PATIENCE_S)
        assert rig.wanted[0] == len(others)
        with rig.lock:
            pass
    for other in others:
        other.result(PATIENCE_S)
    assert rig.wanted[0] == 0


def interrupting(action: Callable[[], None]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that runs ``action`` before every line of the lock, as a finaliser or a
    signal handler may."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != subject.__file__:
            return None
        if event == "line":
            action()
        return trace

    return trace


@pytest.mark.parametrize("contended", [False, True])
def test_what_interrupts_the_taking_of_the_lock_may_take_it(
    rig: Rig, pool: ThreadPoolExecutor, contended: bool
) -> None:
    """Between any two lines; also while others come and go."""
    inside, taken, stop = threading.local(), [0], threading.Event()

    def interrupt() -> None:
        if getattr(inside, "here", False):
            return
        inside.here = True
        with rig.lock:
            taken[0] += 1
        inside.here = False

    def come_and_go() -> None:
        while not stop.is_set():
            with rig.lock:
                pass

    def take_with_interruptions() -> None:
        before = sys.gettrace()
        sys.settrace(interrupting(interrupt))
        try:
            for _ in range(50):
                with rig.lock:
                    pass
        finally:
            sys.settrace(before)

    others = [pool.submit(come_and_go) for _ in range(2 if contended else 0)]
    try:
        pool.submit(take_with_interruptions).result(PATIENCE_S)
    finally:
        stop.set()
    for other in others:
        other.result(PATIENCE_S)
    assert taken[0] >= 100
    assert rig.wanted[0] == 0
