"""What tests of the driver's API against a real agent have in common."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

import host_driver
from host_driver import Dpu, SyncDpu
from host_driver.emulated import EmulatedAgent, EmulatedOptions

START_TIMEOUT_MS = 300_000
BLOCK = 4096
PATIENCE_S = 30.0
"""For what must come about; much longer than it takes."""
_POLL_S = 0.01


def start_agent(options: EmulatedOptions | None = None) -> EmulatedAgent:
    """An agent of its own; the test closes it."""
    return EmulatedAgent(options or EmulatedOptions(capacity=16 << 20), START_TIMEOUT_MS)


def chain(dpu: Dpu | SyncDpu, count: int, first_token: int = 0) -> list[bytes]:
    """Keys of ``count`` blocks."""
    tokens = list(range(first_token, first_token + 4 * count))
    return host_driver.block_chain(dpu.root_key, tokens, 4)


def payload(count: int, nbytes: int = BLOCK, seed: int = 1) -> np.ndarray:
    """Blocks that all differ."""
    return np.random.default_rng(seed).integers(0, 256, (count, nbytes), np.uint8)


def freeze(pid: int) -> None:
    """Stop a child process, and return when it has stopped: a signal alone takes its time."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


async def until(condition: Callable[[], bool]) -> None:
    """Wait on the loop for something to come about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not come about")
        await asyncio.sleep(_POLL_S)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait in this thread for something to come about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not come about")
        time.sleep(_POLL_S)
