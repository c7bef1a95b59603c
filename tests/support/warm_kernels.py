"""Compiles the NIC's kernels before the workers of a parallel run begin.

Otherwise each worker compiles all of them, on all processors at once, while some test waits for
a peer that is stuck in the compiler and takes it for dead.
"""

from __future__ import annotations

import time

from emulator.backend import open_device
from host_driver.self_test import self_test
from kvlane.jit import is_warm, mark_warm

_NAME = "tests"


def warm_kernels() -> None:
    """Let a NIC talk to itself, unless an earlier run of these sources has."""
    if is_warm(_NAME):
        return
    print("compiling kernels, once", flush=True)
    device = open_device({"listen": "127.0.0.1:0"})
    try:
        if self_test(device, time.monotonic_ns):
            mark_warm(_NAME)
    finally:
        device.close()
