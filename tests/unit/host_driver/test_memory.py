"""Held: blocks are found in the one region that holds all of them, and regions stay disjoint."""

from __future__ import annotations

import numpy as np
import pytest

from host_driver.memory import REMOTE_ACCESS, Region, RegionTable
from kvlane.errors import ConfigError
from kvlane.verbs.enums import AccessFlags


class FixedRegion:
    """A memory region at an address of the test's choice."""

    def __init__(self, addr: int, length: int, key: int) -> None:
        self.addr, self.length, self.lkey, self.rkey = addr, length, key, key
        self.closed = False

    def close(self) -> None:
        self.closed = True


def region(addr: int, length: int, key: int) -> Region:
    return Region(FixedRegion(addr, length, key), owner=None)


@pytest.fixture
def table() -> RegionTable:
    """[1000, 1100) under key 7, [1100, 1200) under key 8, [5000, 5010) under key 9."""
    made = RegionTable()
    for addr, length, key in ((5000, 10, 9), (1000, 100, 7), (1100, 100, 8)):
        made.add(region(addr, length, key))
    return made


@pytest.mark.parametrize(
    ("addr", "length", "rkey"),
    [
        (1000, 100, 7),
        (1000, 1, 7),
        (1099, 1, 7),
        (1100, 1, 8),
        (1199, 1, 8),
        (5009, 1, 9),
        (999, 1, -1),
        (999, 50, -1),
        (1050, 51, -1),  # runs on into the neighbour, which has another key
        (1200, 1, -1),
        (5000, 11, -1),
        (9000, 1, -1),
    ],
)
def test_a_block_is_found_only_where_all_of_it_is(
    table: RegionTable, addr: int, length: int, rkey: int
) -> None:
    located = table.locate(np.array([addr]), np.array([length]))
    assert located.rkeys.tolist() == [rkey]
    assert [found.rkey for found in located.regions] == ([rkey] if rkey >= 0 else [])


def test_many_blocks_name_each_region_once(table: RegionTable) -> None:
    addrs = np.array([1100, 1010, 1150, 3000, 1020])
    located = table.locate(addrs, np.full(5, 10))
    assert located.rkeys.tolist() == [8, 7, 8, -1, 7]
    assert [found.rkey for found in located.regions] == [7, 8]


def test_an_empty_table_finds_nothing() -> None:
    located = RegionTable().locate(np.array([1, 2]), np.array([1, 1]))
    assert located.rkeys.tolist() == [-1, -1]
    assert located.regions == ()


@pytest.mark.parametrize(
    ("addr", "length"), [(999, 2), (1000, 100), (1099, 1), (1010, 5), (900, 9000), (5009, 100)]
)
def test_overlapping_regions_are_refused(table: RegionTable, addr: int, length: int) -> None:
    with pytest.raises(ConfigError, match="overlaps"):
        table.add(region(addr, length, 1))
    assert len(table) == 3


@pytest.mark.parametrize(("addr", "length"), [(900, 100), (1200, 3800), (5010, 1)])
def test_adjacent_regions_are_taken(table: RegionTable, addr: int, length: int) -> None:
    table.add(region(addr, length, 1))
    assert table.locate(np.array([addr]), np.array([length])).rkeys.tolist() == [1]


def test_a_removed_region_is_not_found_and_its_place_is_free(table: RegionTable) -> None:
    assert table.remove(1000).rkey == 7
    assert table.locate(np.array([1000, 1100]), np.array([1, 1])).rkeys.tolist() == [-1, 8]
    table.add(region(1000, 100, 17))
    assert table.locate(np.array([1000]), np.array([1])).rkeys.tolist() == [17]


@pytest.mark.parametrize("addr", [0, 1001, 6000])
def test_only_the_start_of_a_region_removes_it(table: RegionTable, addr: int) -> None:
    with pytest.raises(ConfigError, match="alloc"):
        table.remove(addr)
    assert len(table) == 3


def test_drained_regions_are_all_handed_over(table: RegionTable) -> None:
    assert [found.rkey for found in table.drain()] == [7, 8, 9]
    assert len(table) == 0


def test_an_agent_may_both_read_and_write_what_is_registered_and_no_more() -> None:
    granted = {flag for flag in AccessFlags if flag in REMOTE_ACCESS}
    assert granted == {
        AccessFlags.LOCAL_WRITE,
        AccessFlags.REMOTE_READ,
        AccessFlags.REMOTE_WRITE,
    }
