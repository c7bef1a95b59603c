"""What ``alloc`` gives: in huge pages or not, there at once, and not without end."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.pcie import mapping
from emulator.pcie.device import PcieDevice
from emulator.pcie.layout import MAP_CAPACITY
from emulator.pcie.mapping import HUGE_PAGE_BYTES
from kvlane.errors import CapacityError
from kvlane.verbs.protocols import Device
from tests.support.verbs_backends import device_of

_NBYTES = 3 * HUGE_PAGE_BYTES + 5


@pytest.fixture
def device() -> Iterator[Device]:
    with device_of("pcie") as opened:
        yield opened


def resident_bytes(address: int, nbytes: int) -> int:
    """How much of a mapping of this process has its pages in the page table."""
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(pagemap.read(-(-nbytes // mmap.PAGESIZE) * 8), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63))) * mmap.PAGESIZE


@pytest.mark.parametrize("nbytes", [1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, _NBYTES])
def test_memory_is_there_before_it_is_touched(device: Device, nbytes: int) -> None:
    memory = device.alloc(nbytes)
    assert resident_bytes(memory.ctypes.data, nbytes) >= nbytes
    assert not memory.any()


def test_large_memory_begins_where_a_huge_page_can(device: Device) -> None:
    kept = [device.alloc(_NBYTES) for _ in range(5)]
    assert {memory.ctypes.data % HUGE_PAGE_BYTES for memory in kept} == {0}
    assert {memory.nbytes for memory in kept} == {_NBYTES}


@pytest.mark.parametrize("step", ["memfd_create", "ftruncate", "populate"])
def test_without_huge_pages_there_are_ordinary_ones(
    device: Device, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whichever step finds the pool empty; no descriptor is lost on the way."""
    make, resize = os.memfd_create, os.ftruncate
    huge: set[int] = set()

    def memfd_create(name: str, flags: int) -> int:
        is_huge = bool(flags & os.MFD_HUGETLB)
        if is_huge and step == "memfd_create":
            raise OSError(errno.ENOSYS, "no huge pages")
        # An ordinary file in its place: this machine may have no pool.
        fd = make(name, flags & (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        if is_huge:
            huge.add(fd)
        return fd

    def ftruncate(fd: int, nbytes: int) -> None:
        if fd in huge:
            huge.remove(fd)
            if step == "ftruncate":
                raise OSError(errno.ENOMEM, "no huge pages")
        resize(fd, nbytes)

    answers = iter([False, True] if step == "populate" else [True])
    monkeypatch.setattr(os, "memfd_create", memfd_create)
    monkeypatch.setattr(os, "ftruncate", ftruncate)
    monkeypatch.setattr(mapping.Mapping, "populate", lambda _self: next(answers))
    before = len(os.listdir("/proc/self/fd"))
    memory = device.alloc(_NBYTES)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert next(answers, None) is None
    memory[:] = 1


def test_huge_pages_of_the_pool_are_used_first(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    make = os.memfd_create

    def memfd_create(name: str, flags: int) -> int:
        asked.append(flags & os.MFD_HUGETLB)
        return make(name, flags & (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))

    monkeypatch.setattr(os, "memfd_create", memfd_create)
    device.alloc(HUGE_PAGE_BYTES)
    device.alloc(HUGE_PAGE_BYTES - 1)
    assert asked == [os.MFD_HUGETLB, 0]


def test_more_allocations_than_peers_can_map_are_refused(device: Device) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = MAP_CAPACITY + 1024
    if hard != resource.RLIM_INFINITY and hard < enough:
        enough = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    try:
        kept = [device.alloc(1) for _ in range(min(MAP_CAPACITY, enough - 1024))]
        with pytest.raises(CapacityError, match="fewer and larger"):
            kept.extend(device.alloc(1) for _ in range(1024 + 1))
        kept.pop()
        kept.append(device.alloc(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_the_error_says_what_to_do(device: Device) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        with pytest.raises(CapacityError, match="ulimit -n"):
            device.alloc(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    device.alloc(1)


def test_a_closed_device_keeps_no_descriptor_and_its_arrays_stay() -> None:
    before = set(os.listdir("/proc/self/fd"))
    device = PcieDevice()
    kept = [device.alloc(100) for _ in range(3)]
    dropped = device.alloc(100)
    kept[0][:] = 7
    device.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    assert kept[0].tolist() == [7] * 100
    addresses = [int(array.ctypes.data) for array in kept]
    del dropped, kept[1:]
    mapped = Path("/proc/self/maps").read_text()
    assert f"{addresses[0]:x}-" in mapped
    assert not any(f"\n{address:x}-" in mapped for address in addresses[1:])
    kept[0][:] = 8
