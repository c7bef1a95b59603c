"""Peers that are stopped or killed in the middle of a copy: only their own queue pair ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.pcie.device import PcieDevice
from emulator.pcie.layout import CHANNEL_ACTIVE
from kvlane.verbs.enums import QpState, WcStatus, WrOpcode
from tests.support.pcie_ends import End, EndProcess, cannot_be_reached, cannot_reach, joined

_NBYTES = 8 << 20
_TRIES = 1000


@pytest.fixture
def victim() -> Iterator[End]:
    end = End(PcieDevice())
    yield end
    end.close()


@pytest.fixture
def writer() -> Iterator[EndProcess]:
    process = EndProcess()
    yield process
    process.end()


@pytest.fixture
def other() -> Iterator[EndProcess]:
    process = EndProcess()
    yield process
    process.end()


def connect(victim: End, process: EndProcess, qp: int) -> None:
    """Queue pair ``qp`` of the victim with the first of a process."""
    ours, theirs = victim.open_qp(), process.call("open_qp")
    victim.connect(qp, theirs)
    process.call("connect", 0, ours)


def stop_in_mid_copy(victim: End, writer: EndProcess) -> None:
    """The writer writes to the victim's memory, and is stopped while it does."""
    target = victim.alloc("target", _NBYTES)
    local = writer.call("alloc", "local", _NBYTES)
    connect(victim, writer, 0)
    writer.start("copy_for_ever", 0, local, target)
    words = victim.channel(0)
    seen = 0
    for _ in range(_TRIES):
        while words[CHANNEL_ACTIVE // 8] == seen:
            victim.device.progress()
        writer.stop()
        seen = int(words[CHANNEL_ACTIVE // 8])
        if seen & 1:
            return
        writer.go_on()
    raise AssertionError("the writer is never in the middle of a copy")


def mapped_memories() -> int:
    """How many allocations this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:kvlane-memory")


def exchange(victim: End, other: EndProcess, qp: int) -> None:
    """Traffic both ways with a process that is well."""
    ours, theirs = victim.alloc("ours", 4096), other.call("alloc", "theirs", 4096)
    victim.fill("ours", b"x" * 4096)
    victim.request(qp, WrOpcode.RDMA_WRITE, ours, theirs)
    assert victim.completions(1)[0].status == WcStatus.SUCCESS
    assert other.call("content", "theirs") == b"x" * 4096
    other.call("fill", "theirs", b"y" * 4096)
    other.call("request", 0, WrOpcode.RDMA_WRITE, theirs, ours)
    assert other.call("completions", 1)[0].status == WcStatus.SUCCESS
    assert victim.content("ours") == b"y" * 4096


def test_others_go_on_beside_a_peer_that_is_stopped(
    victim: End, writer: EndProcess, other: EndProcess
) -> None:
    stop_in_mid_copy(victim, writer)
    connect(victim, other, 1)
    exchange(victim, other, 1)
    kept = weakref.ref(victim.memory("target"))
    victim.forget("target")
    gc.collect()
    # It may go on with its copy at any time.
    assert kept() is not None
    assert victim.state(0) == QpState.ERR
    assert victim.state(1) == QpState.RTS
    exchange(victim, other, 1)
    writer.end()
    victim.alloc("another", 4096)
    gc.collect()
    assert kept() is None


def test_a_peer_that_is_killed_in_mid_copy_holds_no_memory(victim: End, writer: EndProcess) -> None:
    gc.collect()
    victim.alloc("before", 4096)
    before = mapped_memories()
    stop_in_mid_copy(victim, writer)
    inbox = victim.alloc("inbox", 64)
    victim.receive(0, inbox, 2)
    writer.end()
    assert [done.status for done in victim.completions(2)] == [WcStatus.WR_FLUSH_ERR] * 2
    assert victim.state(0) == QpState.ERR
    for name in ("target", "inbox"):
        kept = weakref.ref(victim.memory(name))
        victim.forget(name)
        gc.collect()
        assert kept() is None
    victim.close_qp(0)
    victim.alloc("after", 4096)
    assert mapped_memories() == before + 1


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_an_owner_that_is_killed_ends_what_it_was_to_copy(opcode: WrOpcode) -> None:
    near, far = EndProcess(cannot_reach), EndProcess(cannot_be_reached)
    try:
        joined(near, far)
        local = near.call("borrow", "local", _NBYTES)
        remote = far.call("borrow", "remote", _NBYTES)
        far.stop()
        near.call("request", 0, opcode, local, remote, 2)
        near.start("completions", 2)
        far.end()
        status = [done.status for done in near.result()]
        assert status == [WcStatus.RETRY_EXC_ERR, WcStatus.WR_FLUSH_ERR]
        assert np.frombuffer(near.call("content", "local"), np.uint8).any() == 0
    finally:
        near.end()
        far.end()
