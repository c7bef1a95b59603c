"""DMA channels: whatever helpers do or fail to do, a copy is whole when it returns."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.backend import open_device
from emulator.nic.options import NicOptions
from emulator.pcie import _channel_kernels as kernels
from emulator.pcie.channels import Channels, channels_for
from emulator.pcie.device import PcieDevice
from kvlane.errors import ConfigError, VerbsError
from kvlane.jit import JIT_ENABLED
from kvlane.verbs.enums import WrOpcode
from tests.support.verbs_backends import ALL_ACCESS, Pair

LARGE = kernels.LARGE_BYTES
GIVE_UP_S = 60.0
ROOM = 3 * LARGE


@pytest.fixture(params=[1, 2, 4])
def channels(request: pytest.FixtureRequest) -> Iterator[Channels]:
    made = Channels(request.param)
    yield made
    made.close()


def helpers() -> int:
    """Threads of channels in this process."""
    return sum(thread.name.startswith("kvlane-channel") for thread in threading.enumerate())


def copy(channels: Channels, target: np.ndarray, source: np.ndarray, word: int = 0) -> None:
    """With all channels."""
    address = int(target.ctypes.data), int(source.ctypes.data)
    kernels.copy_shared(channels.address, *address, len(source), word)


def pattern(nbytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_copies_of_every_length_are_whole_and_nothing_beside_them(channels: Channels) -> None:
    source = pattern(ROOM, 1)

    @given(
        length=st.one_of(
            st.integers(0, ROOM - 16),
            st.sampled_from([LARGE - 1, LARGE, LARGE + 1, LARGE + 4095, 2 * LARGE]),
        ),
        at=st.integers(0, 8),
        to=st.integers(0, 8),
        summed=st.booleans(),
    )
    def check(length: int, at: int, to: int, summed: bool) -> None:
        target = np.full(ROOM, 0xA5, np.uint8)
        sums = np.array([1, 2, 3], np.uint32)
        word = int(sums[1:].ctypes.data)
        copy(channels, target[to : to + length], source[at : at + length], word * summed)
        wanted = zlib.crc32(source[at : at + length].tobytes(), 2) if summed else 2
        assert sums.tolist() == [1, wanted, 3]
        assert np.array_equal(target[to : to + length], source[at : at + length])
        assert (target[:to] == 0xA5).all()
        assert (target[to + length :] == 0xA5).all()

    check()


def test_ranges_that_overlap_are_moved(channels: Channels) -> None:
    memory = pattern(ROOM, 2)
    before = memory.copy()
    sums = np.zeros(1, np.uint32)
    word = int(sums.ctypes.data)
    copy(channels, memory[100 : 100 + 2 * LARGE], memory[: 2 * LARGE], word)
    assert sums[0] == zlib.crc32(before[: 2 * LARGE].tobytes())
    assert np.array_equal(memory[100 : 100 + 2 * LARGE], before[: 2 * LARGE])


def test_many_jobs_in_a_row_are_each_their_own(channels: Channels) -> None:
    """A helper that is late for one job must not copy by the addresses of another."""
    sources = [pattern(LARGE + 4096 * n, n) for n in range(5)]
    targets = [np.zeros_like(source) for source in sources]
    for round_number in range(200):
        index = round_number % len(sources)
        targets[index][:] = 0
        copy(channels, targets[index], sources[index])
        assert np.array_equal(targets[index], sources[index])
    if JIT_ENABLED and channels.count > 1:
        assert channels.counters()["channel_jobs"] == 200


def test_a_claim_is_of_the_job_that_is_there_when_it_is_made(channels: Channels) -> None:
    """Claimed by hand, in the order that a helper held up in between would give."""
    first, second = pattern(LARGE, 3), pattern(LARGE, 4)
    target = np.zeros(LARGE, np.uint8)
    at = int(target.ctypes.data)
    record = channels.address
    pieces = kernels.publish(record, at, int(first.ctypes.data), LARGE, False)
    claimed = [kernels.claim(record) for _ in range(pieces)]
    assert claimed == list(range(pieces))
    assert kernels.claim(record) == kernels.NONE
    for index in claimed:
        assert not kernels.is_done(record, pieces)
        kernels.copy_claimed(record, index)
    assert kernels.is_done(record, pieces)
    assert np.array_equal(target, first)
    pieces = kernels.publish(record, at, int(second.ctypes.data), LARGE, True)
    while kernels.copy_piece(record):
        pass
    assert np.array_equal(target, second)


def test_helpers_begin_with_the_first_large_copy_sleep_without_work_and_end_with_close() -> None:
    before = helpers()
    channels = Channels(3)
    small, large = pattern(LARGE - 1, 5), pattern(LARGE, 6)
    copy(channels, np.zeros_like(small), small)
    assert helpers() == before
    copy(channels, np.zeros_like(large), large)
    assert helpers() == before + (2 if JIT_ENABLED else 0)
    give_up = time.monotonic() + GIVE_UP_S
    while not channels._helpers.asleep[: helpers() - before].all():
        assert time.monotonic() < give_up
        time.sleep(0.001)
    sleeps = channels.counters()["channel_helper_sleeps"]
    time.sleep(0.05)
    assert channels.counters()["channel_helper_sleeps"] == sleeps
    channels.close()
    channels.close()
    assert helpers() == before
    target = np.zeros_like(large)
    copy(channels, target, large)
    assert np.array_equal(target, large)
    assert helpers() == before


def test_channels_that_nobody_has_any_more_end() -> None:
    before = helpers()
    channels = Channels(2)
    large = pattern(LARGE, 7)
    copy(channels, np.zeros_like(large), large)
    del channels
    give_up = time.monotonic() + GIVE_UP_S
    while helpers() > before:
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_a_forked_child_copies_alone() -> None:
    channels = Channels(2)
    large = pattern(LARGE, 8)
    copy(channels, np.zeros_like(large), large)
    if (pid := os.fork()) == 0:
        target = np.zeros_like(large)
        copy(channels, target, large)
        os._exit(0 if np.array_equal(target, large) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    target = np.zeros_like(large)
    copy(channels, target, large)
    assert np.array_equal(target, large)
    channels.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_device_is_closed_while_it_copies(count: int) -> None:
    device = PcieDevice(channels=count)
    pair = Pair(device).connect()
    memory = device.alloc(4 * LARGE)
    region = device.register(memory, ALL_ACCESS)
    large = {"local_addr": region.addr, "lkey": region.lkey, "length": 2 * LARGE}
    large |= {"remote_addr": region.addr + 2 * LARGE, "rkey": region.rkey}
    before, began = helpers(), threading.Event()

    def copy_on() -> None:
        while True:
            pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, **large))
            pair.completions(1)
            began.set()

    with ThreadPoolExecutor() as pool:
        copying = pool.submit(copy_on)
        assert began.wait(GIVE_UP_S)
        device.close()
        with pytest.raises(VerbsError, match="closed"):
            copying.result(GIVE_UP_S)
    assert helpers() == before


def test_their_number_follows_the_processors() -> None:
    assert [channels_for(n) for n in (1, 2, 3, 4, 8, 64)] == [1, 2, 2, 2, 4, 4]
    assert [channels_for(n, 2) for n in (1, 2, 4, 8, 64)] == [1, 1, 1, 2, 4]


def test_only_the_pcie_link_has_them() -> None:
    assert NicOptions(link="pcie", channels=3).channels == 3
    with pytest.raises(ConfigError, match="only the pcie link"):
        open_device({"channels": 2})
    with pytest.raises(ConfigError, match="channels"):
        open_device({"link": "pcie", "channels": 17})
    open_device({"link": "pcie", "channels": 2}).close()
