"""Memory of a device over sockets: zeroed, aligned, the process's own, in huge pages if it may."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from emulator.nic.anonymous import HUGE_PAGE_BYTES, anonymous_memory

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 9_000_001])
def test_it_is_zeroed_and_begins_where_pages_do(nbytes: int) -> None:
    memory = anonymous_memory(nbytes)
    assert memory.nbytes == nbytes
    assert not memory.any()
    page = HUGE_PAGE_BYTES if nbytes >= HUGE_PAGE_BYTES else 4096
    assert nbytes == 0 or memory.ctypes.data % page == 0
    memory[:] = 1


def test_large_memory_is_in_huge_pages_where_the_kernel_gives_them() -> None:
    memory = anonymous_memory(4 * HUGE_PAGE_BYTES)
    memory[:] = 1
    inside = huge_kib_at(int(memory.ctypes.data))
    may = _SETTING.exists() and "[never]" not in _SETTING.read_text()
    assert inside > 0 if may else inside == 0


def huge_kib_at(address: int) -> int:
    """Of the mapping that holds an address, what lies in huge pages."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            found = int(span[1], 16) <= address < int(span[2], 16)
        elif found and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    raise AssertionError("the memory is not mapped")


def test_a_forked_child_does_not_write_into_it() -> None:
    memory = anonymous_memory(HUGE_PAGE_BYTES)
    memory[:] = 1
    if (pid := os.fork()) == 0:
        memory[:] = 2
        os._exit(0)
    os.waitpid(pid, 0)
    assert np.unique(memory).tolist() == [1]
