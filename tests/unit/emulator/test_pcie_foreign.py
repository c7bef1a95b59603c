"""Memory that the device did not allocate, between two processes: by system call, or bounced."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from kvlane.verbs.enums import AccessFlags, QpState, WcStatus, WrOpcode
from tests.support.pcie_ends import SUM_SEED, EndProcess, cannot_be_reached, cannot_reach, joined
from tests.support.requirements import lacking


class Ends(NamedTuple):
    near: EndProcess
    """Asks."""
    far: EndProcess
    is_bounced: bool


@pytest.fixture(scope="module", params=["by system call", "bounced"])
def processes(request: pytest.FixtureRequest) -> Iterator[Ends]:
    is_bounced = request.param == "bounced"
    near = EndProcess(cannot_reach if is_bounced else None)
    far = EndProcess(cannot_be_reached if is_bounced else None)
    try:
        if not is_bounced and not near.call("reaches", *far.call("board")):
            lacking("permit process_vm_readv between processes: CAP_SYS_PTRACE, or Yama's 0")
        yield Ends(near, far, is_bounced)
    finally:
        near.end()
        far.end()


@pytest.fixture
def ends(processes: Ends) -> Ends:
    for end in processes[:2]:
        end.renew()
    joined(processes.near, processes.far)
    return processes


def content_of(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 4095, 65_537, (5 << 20) + 3])
@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_bytes_go_both_ways(ends: Ends, opcode: WrOpcode, nbytes: int, shared: bool) -> None:
    local = ends.near.call("alloc" if shared else "borrow", "local", nbytes)
    remote = ends.far.call("borrow", "remote", nbytes, 13)
    sent = content_of(nbytes)
    reads = opcode is WrOpcode.RDMA_READ
    (ends.far if reads else ends.near).call("fill", "remote" if reads else "local", sent)
    ends.near.call("request", 0, opcode, local, remote)
    assert [done.status for done in ends.near.call("completions", 1)] == [WcStatus.SUCCESS]
    assert ends.near.call("content", "local") == sent
    assert ends.far.call("content", "remote") == sent
    assert not reads or ends.near.call("sums") == [zlib.crc32(sent, SUM_SEED)]
    bounced = ends.near.call("counters")["bounced_bytes"]
    assert bounced == (nbytes if ends.is_bounced else 0)


@pytest.mark.parametrize("kind", ["alloc", "borrow"])
def test_a_send_comes_after_the_writes_before_it(ends: Ends, kind: str) -> None:
    local, word = ends.near.call("borrow", "local", 1 << 20), ends.near.call("borrow", "word", 1)
    remote = ends.far.call(kind, "remote", 1 << 20)
    inbox = ends.far.call("alloc", "inbox", 64)
    ends.far.call("receive", 0, inbox, 8)
    for turn in range(1, 5):
        sent = bytes([turn]) * (1 << 20)
        ends.near.call("fill", "local", sent)
        ends.near.call("request", 0, WrOpcode.RDMA_WRITE, local, remote)
        ends.near.call("request", 0, WrOpcode.SEND, word, remote)
        assert ends.far.call("completions", 1)[0].status == WcStatus.SUCCESS
        assert ends.far.call("content", "remote") == sent
        assert len(ends.near.call("completions", 2)) == 2


def test_immediate_data_comes_after_its_write(ends: Ends) -> None:
    local = ends.near.call("borrow", "local", 300_000)
    remote = ends.far.call("borrow", "remote", 300_000)
    ends.far.call("receive", 0, remote)
    ends.near.call("fill", "local", b"x" * 300_000)
    ends.near.call("request", 0, WrOpcode.RDMA_WRITE_WITH_IMM, local, remote)
    (done,) = ends.far.call("completions", 1)
    assert (done.status, done.byte_len) == (WcStatus.SUCCESS, 300_000)
    assert ends.far.call("content", "remote") == b"x" * 300_000


@pytest.mark.parametrize("kind", ["alloc", "borrow"])
def test_what_follows_a_write_sees_it(ends: Ends, kind: str) -> None:
    ones, twos = ends.near.call("borrow", "1", 1 << 20), ends.near.call("borrow", "2", 1 << 20)
    back = ends.near.call("borrow", "back", 1 << 20)
    remote = ends.far.call(kind, "remote", 1 << 20)
    ends.near.call("fill", "1", b"1" * (1 << 20))
    ends.near.call("fill", "2", b"2" * (1 << 20))
    for local in (ones, twos):
        ends.near.call("request", 0, WrOpcode.RDMA_WRITE, local, remote)
    ends.near.call("request", 0, WrOpcode.RDMA_READ, back, remote)
    assert [done.status for done in ends.near.call("completions", 3)] == [0, 0, 0]
    assert ends.near.call("content", "back") == b"2" * (1 << 20)


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_page_that_is_not_there_is_an_error(ends: Ends, opcode: WrOpcode) -> None:
    local = ends.near.call("borrow", "local", 16 * 4096)
    remote = ends.far.call("borrow_with_hole", "remote", 16, 7)
    ends.near.call("request", 0, opcode, local, remote, 2)
    status = [done.status for done in ends.near.call("completions", 2)]
    assert status == [WcStatus.REM_ACCESS_ERR, WcStatus.WR_FLUSH_ERR]
    assert ends.near.call("state", 0) == QpState.ERR
    joined(ends.near, ends.far)
    whole = ends.far.call("borrow", "whole", 16 * 4096)
    ends.near.call("request", 1, opcode, local, whole)
    assert ends.near.call("completions", 1)[0].status == WcStatus.SUCCESS


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_local_page_that_is_not_there_is_an_error_of_this_end(
    ends: Ends, opcode: WrOpcode
) -> None:
    local = ends.near.call("borrow_with_hole", "local", 16, 7)
    remote = ends.far.call("borrow", "remote", 16 * 4096)
    ends.near.call("request", 0, opcode, local, remote)
    assert ends.near.call("completions", 1)[0].status == WcStatus.LOC_PROT_ERR


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_region_that_is_gone_is_not_reached(ends: Ends, opcode: WrOpcode) -> None:
    local = ends.near.call("borrow", "local", 4096)
    remote = ends.far.call("borrow", "remote", 4096)
    ends.near.call("fill", "local", b"x" * 4096)
    ends.far.call("deregister", "remote")
    ends.near.call("request", 0, opcode, local, remote)
    assert ends.near.call("completions", 1)[0].status == WcStatus.REM_ACCESS_ERR
    assert ends.far.call("content", "remote") == bytes(4096)
    assert ends.near.call("content", "local") == b"x" * 4096


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_nothing_lands_in_a_region_that_closes_meanwhile(ends: Ends, opcode: WrOpcode) -> None:
    nbytes = 64 << 20
    reads = opcode is WrOpcode.RDMA_READ
    local, remote = ends.near.call("borrow", "l", nbytes), ends.far.call("borrow", "r", nbytes)
    ends.near.call("request", 0, opcode, local, remote)
    ends.far.call("deregister", "r")
    ends.far.call("fill", "r", b"7" * nbytes)
    (done,) = ends.near.call("completions", 1)
    # All of it may have come before: then it is a success, and nothing comes later either.
    assert done.status in (WcStatus.SUCCESS, WcStatus.REM_ACCESS_ERR)
    if reads:
        assert b"7" not in ends.near.call("content", "l")
    else:
        assert ends.far.call("content", "r") == b"7" * nbytes


@pytest.mark.parametrize(
    ("opcode", "access"),
    [
        (WrOpcode.RDMA_WRITE, AccessFlags.REMOTE_READ),
        (WrOpcode.RDMA_READ, AccessFlags.REMOTE_WRITE | AccessFlags.LOCAL_WRITE),
    ],
)
def test_a_key_opens_only_for_its_access(ends: Ends, opcode: WrOpcode, access: AccessFlags) -> None:
    local = ends.near.call("borrow", "local", 4096)
    remote = ends.far.call("borrow", "remote", 4096, access=access)
    ends.near.call("request", 0, opcode, local, remote)
    assert ends.near.call("completions", 1)[0].status == WcStatus.REM_ACCESS_ERR


def test_people_are_told_once_why_memory_is_bounced(ends: Ends) -> None:
    local = ends.near.call("borrow", "local", 4096)
    shared, remote = ends.far.call("alloc", "shared", 4096), ends.far.call("borrow", "r", 4096)
    ends.near.call("request", 0, WrOpcode.RDMA_WRITE, local, shared)
    ends.near.call("completions", 1)
    assert ends.near.call("warnings") == []
    for _ in range(3):
        ends.near.call("request", 0, WrOpcode.RDMA_WRITE, local, remote)
        ends.near.call("completions", 1)
    joined(ends.near, ends.far)
    ends.near.call("request", 1, WrOpcode.RDMA_WRITE, local, remote)
    ends.near.call("completions", 1)
    told = ends.near.call("warnings")
    assert len(told) == ends.is_bounced
    for text in told:
        assert "Operation not permitted" in text
        assert "device.alloc" in text
        assert "CAP_SYS_PTRACE" in text


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_queue_pair_that_closes_ends_what_is_asked_of_it(ends: Ends, opcode: WrOpcode) -> None:
    local, remote = ends.near.call("borrow", "l", 4096), ends.far.call("borrow", "r", 4096)
    ends.far.call("close_qp", 0)
    ends.near.call("request", 0, opcode, local, remote, 3)
    status = [done.status for done in ends.near.call("completions", 3)]
    assert status == [WcStatus.RETRY_EXC_ERR, *[WcStatus.WR_FLUSH_ERR] * 2]
