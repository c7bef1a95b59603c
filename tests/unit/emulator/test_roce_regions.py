"""Regions that are changed in place: by which addresses peers name them afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from kvlane.verbs.enums import AccessFlags, WcStatus, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Pair, Region
from tests.support.roce_work import part, post, statuses, work

ZERO_BASED = ALL_ACCESS | AccessFlags.ZERO_BASED
NBYTES = 64


class Target:
    """A region of ``b``, and memory that it can be moved to."""

    def __init__(self, access: int, iova: int | None = None) -> None:
        self.pair = Pair()
        engine = self.pair.b.engine
        self.first = Region(engine, NBYTES, AccessFlags(access), iova=iova)
        self.second = np.zeros(NBYTES, np.uint8)
        self.second_addr = int(self.second.ctypes.data)

    def change(self, *, moves: bool = False, access: int | None = None) -> None:
        memory = (self.second_addr, NBYTES, self.second) if moves else None
        self.pair.b.engine.regions.change(self.first.key, access=access, memory=memory)

    def write(self, addr: int) -> WcStatus:
        local = self.pair.a.region(8)
        local.data[:] = 7
        fields = {"remote_addr": addr, "rkey": self.first.key}
        post(self.pair.a, work(WrOpcode.RDMA_WRITE, [part(local)], **fields))
        self.pair.run()
        (status,) = statuses(self.pair.a.poll())
        return status


@pytest.mark.parametrize("access", [None, ZERO_BASED, ZERO_BASED | AccessFlags.MW_BIND])
def test_a_zero_based_region_counts_from_nought_wherever_it_moves(access: int | None) -> None:
    target = Target(ZERO_BASED)
    assert target.write(0) == WcStatus.SUCCESS
    target.change(moves=True, access=access)
    assert target.write(NBYTES - 8) == WcStatus.SUCCESS
    assert target.second.tolist() == [0] * (NBYTES - 8) + [7] * 8
    assert target.first.data.tolist() == [7] * 8 + [0] * (NBYTES - 8)
    assert target.write(target.second_addr) == WcStatus.REM_ACCESS_ERR


def test_another_region_is_named_by_where_it_moves() -> None:
    target = Target(ALL_ACCESS)
    target.change(moves=True)
    assert target.write(target.second_addr) == WcStatus.SUCCESS
    assert target.second[:8].tolist() == [7] * 8
    assert target.write(0) == WcStatus.REM_ACCESS_ERR


@pytest.mark.parametrize("moves", [False, True])
def test_access_that_says_so_makes_it_zero_based(moves: bool) -> None:
    target = Target(ALL_ACCESS)
    target.change(moves=moves, access=ZERO_BASED)
    assert target.write(0) == WcStatus.SUCCESS
    target.change(moves=True)
    assert target.write(0) == WcStatus.SUCCESS
    assert target.write(target.second_addr) == WcStatus.REM_ACCESS_ERR


@pytest.mark.parametrize("moves", [False, True])
def test_access_that_does_not_say_so_makes_it_absolute(moves: bool) -> None:
    target = Target(ZERO_BASED)
    target.change(moves=moves, access=ALL_ACCESS)
    there = target.second_addr if moves else target.first.host_addr
    assert target.write(there) == WcStatus.SUCCESS
    assert target.write(0) == WcStatus.REM_ACCESS_ERR


def test_a_change_of_access_alone_keeps_the_addresses() -> None:
    target = Target(ALL_ACCESS, iova=1 << 40)
    target.change(access=ALL_ACCESS | AccessFlags.MW_BIND)
    assert target.write(1 << 40) == WcStatus.SUCCESS
