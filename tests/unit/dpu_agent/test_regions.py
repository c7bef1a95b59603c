"""Which ranges a session may name: exact bounds, no wrap-around, all-or-nothing changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.control.core import RemoteRegion
from dpu_agent.data.regions import RegionTable
from dpu_agent.data.state import CONNECTION
from kvlane.errors import CapacityError, SessionError
from kvlane.limits import MAX_REGIONS_PER_SESSION
from kvlane.verbs.records import new_records

TOP = 1 << 64


def new_table() -> RegionTable:
    """A table over a connection's record of its own."""
    return RegionTable(new_records(CONNECTION, 1)[0])


def table(*regions: tuple[int, int, int]) -> RegionTable:
    made = new_table()
    made.add([RemoteRegion(*region) for region in regions])
    return made


def contains(made: RegionTable, *ranges: tuple[int, int, int]) -> list[bool]:
    return [
        made.contains(addr - TOP if addr >= TOP // 2 else addr, length, rkey)
        for addr, length, rkey in ranges
    ]


def test_bounds_are_exact() -> None:
    made = table((1000, 100, 7))
    ranges = [(1000, 100, 7), (1000, 101, 7), (999, 1, 7), (1099, 1, 7), (1100, 1, 7), (1100, 0, 7)]
    assert contains(made, *ranges) == [True, False, False, True, False, True]


def test_each_range_is_judged_by_the_region_of_its_own_rkey() -> None:
    made = table((1000, 100, 7), (5000, 100, 3))
    ranges = [(1000, 1, 3), (5000, 1, 3), (5000, 1, 7), (1000, 1, 5), (1000, 1, 9)]
    assert contains(made, *ranges) == [False, True, False, False, False]


def test_a_sum_that_would_wrap_is_outside() -> None:
    made = table((0, 4096, 1), (TOP - 4096, 4096, 2))
    ranges = [
        (TOP - 1, 2, 1),
        (TOP - 4096, 4096, 2),
        (TOP - 4096, 4097, 2),
        (TOP - 1, 2, 2),
        (TOP - 1, 1, 2),
        (0, 0, 2),
    ]
    assert contains(made, *ranges) == [False, True, False, False, True, False]


def test_without_regions_nothing_is_inside() -> None:
    assert contains(table(), (0, 0, 0), (1, 1, 1)) == [False, False]


addresses = st.one_of(st.integers(0, 300), st.integers(TOP - 300, TOP - 1))


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(addresses, st.integers(1, 300)), max_size=4),
    st.lists(
        st.tuples(
            addresses,
            st.one_of(st.integers(0, 310), st.just((1 << 32) - 1)),
            st.integers(0, 6),
        ),
        min_size=1,
    ),
)
def test_it_agrees_with_integers_of_any_size(
    regions: dict[int, tuple[int, int]], ranges: list[tuple[int, int, int]]
) -> None:
    fitting = {k: (a, n) for k, (a, n) in regions.items() if a + n <= TOP}
    made = table(*((addr, length, rkey) for rkey, (addr, length) in fitting.items()))
    expected = [
        rkey in fitting
        and fitting[rkey][0] <= addr
        and addr + length <= fitting[rkey][0] + fitting[rkey][1]
        for addr, length, rkey in ranges
    ]
    assert contains(made, *ranges) == expected


@pytest.mark.parametrize(
    "bad",
    [RemoteRegion(TOP - 4, 5, 9), RemoteRegion(0, 0, 9), RemoteRegion(0, TOP + 1, 9)],
)
def test_a_region_that_cannot_exist_is_refused_with_all_its_batch(bad: RemoteRegion) -> None:
    made = new_table()
    with pytest.raises(SessionError, match="outside"):
        made.add([RemoteRegion(0, 10, 1), bad])
    assert contains(made, (0, 10, 1)) == [False]


def test_an_rkey_is_added_once() -> None:
    made = table((0, 10, 1))
    with pytest.raises(SessionError, match="0x1 "):
        made.add([RemoteRegion(50, 10, 1)])
    with pytest.raises(SessionError, match="0x2 "):
        made.add([RemoteRegion(50, 10, 2), RemoteRegion(70, 10, 2)])
    assert contains(made, (0, 10, 1), (50, 10, 1), (50, 10, 2)) == [True, False, False]


def test_a_registration_that_is_repeated_exactly_is_taken_and_changes_nothing() -> None:
    """Its answer was lost, and the host could not know that it had been carried out."""
    made = table((0, 10, 1), (20, 10, 2))
    made.add([RemoteRegion(20, 10, 2)])
    made.add([RemoteRegion(0, 10, 1), RemoteRegion(40, 10, 3)])
    assert contains(made, (0, 10, 1), (20, 10, 2), (40, 10, 3)) == [True, True, True]
    made.remove([1])
    assert contains(made, (0, 10, 1), (20, 10, 2)) == [False, True]


@pytest.mark.parametrize("other", [RemoteRegion(1, 10, 1), RemoteRegion(0, 9, 1)])
def test_an_rkey_that_is_repeated_with_another_range_is_refused_with_all_its_batch(
    other: RemoteRegion,
) -> None:
    made = table((0, 10, 1))
    with pytest.raises(SessionError, match="0x1 "):
        made.add([RemoteRegion(50, 10, 2), other])
    assert contains(made, (0, 10, 1), (50, 10, 2)) == [True, False]


def test_a_repetition_takes_no_place_of_another_region() -> None:
    regions = [RemoteRegion(i * 10, 10, i) for i in range(MAX_REGIONS_PER_SESSION)]
    made = new_table()
    made.add(regions)
    made.add(regions)
    with pytest.raises(CapacityError):
        made.add([RemoteRegion(0, 10, MAX_REGIONS_PER_SESSION)])


def test_removing_an_unknown_rkey_removes_nothing() -> None:
    made = table((0, 10, 1), (20, 10, 2))
    with pytest.raises(SessionError, match="0x3"):
        made.remove([1, 3])
    assert contains(made, (0, 10, 1), (20, 10, 2)) == [True, True]
    made.remove([1, 1])
    assert contains(made, (0, 10, 1), (20, 10, 2)) == [False, True]


def test_regions_are_bounded() -> None:
    made = table(*((i * 10, 10, i) for i in range(MAX_REGIONS_PER_SESSION)))
    with pytest.raises(CapacityError):
        made.add([RemoteRegion(0, 10, MAX_REGIONS_PER_SESSION)])
    made.remove([0])
    made.add([RemoteRegion(0, 10, MAX_REGIONS_PER_SESSION)])
