"""What errors of process_vm_readv and writev mean for the request that made the call."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from emulator.pcie import _foreign_kernels as foreign
from emulator.pcie.device import PcieDevice
from emulator.pcie.layout import CONTEXT, PAGE_BYTES, PEER, SCRATCH_WORDS
from kvlane.verbs.enums import WcStatus, WrOpcode
from kvlane.verbs.records import RecordArray, new_records
from tests.support.pcie_ends import End, EndProcess, joined
from tests.support.requirements import lacking

_NOBODY = (1 << 31) - 1
"""No process has this number (PID_MAX_LIMIT is 1 << 22)."""
_NPAGES, _HOLE = 8, 5


class Bench(NamedTuple):
    context: RecordArray
    peer: RecordArray
    pages: np.ndarray[tuple[int], np.dtype[np.uint8]]
    """Of which one cannot be accessed."""
    scratch: np.ndarray[tuple[int], np.dtype[np.int64]]

    def move(self, remote: int, local: int, nbytes: int, writes: bool) -> int:
        return int(foreign.move(self.context[0], self.peer[0], remote, local, (0, nbytes, writes)))


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Records in which the peer is this process itself, whose memory is always reached."""
    pages = np.frombuffer(mmap.mmap(-1, _NPAGES * PAGE_BYTES), np.uint8)
    hole = ctypes.c_void_p(pages.ctypes.data + _HOLE * PAGE_BYTES)
    libc = ctypes.CDLL(None)
    assert libc.mprotect(hole, ctypes.c_size_t(PAGE_BYTES), 0) == 0
    bench = Bench(
        new_records(CONTEXT, 1), new_records(PEER, 1), pages, np.zeros(SCRATCH_WORDS, np.int64)
    )
    bench.context.scratch = bench.scratch.ctypes.data
    bench.context.board = pages.ctypes.data
    bench.peer.pid = os.getpid()
    bench.peer.pidfd = os.pidfd_open(os.getpid())
    yield bench
    os.close(int(bench.peer.pidfd[0]))


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    ("remote_page", "local_page", "status"),
    [
        (0, 2, WcStatus.SUCCESS),
        (4, 0, WcStatus.REM_ACCESS_ERR),
        (_HOLE, 0, WcStatus.REM_ACCESS_ERR),
        (0, 4, WcStatus.LOC_PROT_ERR),
        (0, _HOLE, WcStatus.LOC_PROT_ERR),
    ],
)
def test_memory_that_is_not_there_is_the_fault_of_whose_it_is(
    bench: Bench, writes: bool, remote_page: int, local_page: int, status: WcStatus
) -> None:
    start = int(bench.pages.ctypes.data)
    remote, local = start + remote_page * PAGE_BYTES, start + local_page * PAGE_BYTES
    assert bench.move(remote, local, 2 * PAGE_BYTES, writes) == status
    assert not bench.peer.why_not_reached[0]


@pytest.mark.parametrize("address", [0, -PAGE_BYTES, -(1 << 63), (1 << 63) - PAGE_BYTES])
def test_an_address_that_no_process_has_is_an_error(bench: Bench, address: int) -> None:
    for writes in (False, True):
        local = int(bench.pages.ctypes.data)
        assert bench.move(address, local, PAGE_BYTES, writes) == WcStatus.REM_ACCESS_ERR


def test_a_process_that_does_not_exist_is_a_peer_that_is_gone(bench: Bench) -> None:
    bench.peer.pid = _NOBODY
    local = int(bench.pages.ctypes.data)
    assert bench.move(local, local, PAGE_BYTES, True) == WcStatus.RETRY_EXC_ERR


def test_a_dead_process_is_not_reached_even_if_its_number_is_taken(bench: Bench) -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    dead = os.pidfd_open(child)
    os.waitpid(child, 0)
    bench.peer.pidfd = dead  # while the number is that of this process
    bench.pages[:PAGE_BYTES] = 7
    start = int(bench.pages.ctypes.data)
    assert bench.move(start + PAGE_BYTES, start, PAGE_BYTES, True) == WcStatus.RETRY_EXC_ERR
    assert not bench.pages[PAGE_BYTES : 2 * PAGE_BYTES].any()
    os.close(dead)
    bench.peer.pidfd = os.pidfd_open(os.getpid())


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_request_on_a_dead_peer_fails_before_the_death_is_noticed(opcode: WrOpcode) -> None:
    far, near = EndProcess(), End(PcieDevice())
    try:
        if not near.reaches(*far.call("board")):
            lacking("permit process_vm_readv between processes: CAP_SYS_PTRACE, or Yama's 0")
        endpoint = far.call("open_qp")
        far.call("connect", 0, near.open_qp())
        near.connect(0, endpoint)
        local, remote = near.borrow("local", 4096), far.call("borrow", "remote", 4096)
        near.request(0, opcode, local, remote)
        assert near.completions(1)[0].status == WcStatus.SUCCESS
        far.end()
        near.request(0, opcode, local, remote, 2)
        status = [done.status for done in near.completions(2)]
        assert status == [WcStatus.RETRY_EXC_ERR, WcStatus.WR_FLUSH_ERR]
    finally:
        near.close()
        far.end()


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_peer_that_is_no_longer_reached_is_bounced(opcode: WrOpcode) -> None:
    near, far = EndProcess(), EndProcess()
    try:
        joined(near, far)
        local, remote = near.call("borrow", "l", 300_000), far.call("borrow", "r", 300_000)
        near.call("request", 0, opcode, local, remote)
        assert near.call("completions", 1)[0].status == WcStatus.SUCCESS
        for end in (near, far):
            end.call("lose_reach")
        before = near.call("counters")["bounced_bytes"]
        near.call("request", 0, opcode, local, remote)
        assert near.call("completions", 1)[0].status == WcStatus.SUCCESS
        assert near.call("counters")["bounced_bytes"] == before + 300_000
        assert len(near.call("warnings")) == 1
    finally:
        near.end()
        far.end()
