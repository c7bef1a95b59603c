"""Who is acknowledged by which sync."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.segments.group_commit import GroupCommit


def test_a_sync_covers_what_was_written_when_it_began() -> None:
    commit: GroupCommit[str] = GroupCommit(100)
    first, second = commit.begin(10), commit.begin(20)
    assert (first, second, commit.given) == (100, 110, 130)
    commit.wrote(first, "first")
    mark = commit.sync_wanted()
    assert mark == 110
    commit.wrote(second, "second")
    assert commit.sync_wanted() is None  # one at a time
    assert commit.synced(mark) == ["first"]
    later = commit.sync_wanted()
    assert later == 130
    assert commit.synced(later) == ["second"]
    assert commit.sync_wanted() is None
    assert commit.idle


def test_a_batch_behind_a_gap_is_not_acknowledged() -> None:
    commit: GroupCommit[str] = GroupCommit(0)
    first, second = commit.begin(10), commit.begin(10)
    commit.wrote(second, "second")
    assert commit.sync_wanted() is None
    commit.wrote(first, None)
    assert commit.sync_wanted() == 20


def test_a_failed_sync_fails_all_who_wait() -> None:
    commit: GroupCommit[str] = GroupCommit(0)
    offsets = [commit.begin(10) for _ in range(3)]
    commit.wrote(offsets[0], "written")
    commit.wrote(offsets[2], "behind a gap")
    assert commit.sync_wanted() == 10
    assert commit.sync_failed() == ["written", "behind a gap"]
    assert commit.broken
    assert not commit.idle
    commit.drop(offsets[1])
    assert commit.idle


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_everybody_is_released_once_and_never_too_early(sizes: list[int], rng: object) -> None:
    commit: GroupCommit[int] = GroupCommit(0)
    offsets = [commit.begin(size) for size in sizes]
    order = list(range(len(sizes)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    released: list[int] = []
    written: set[int] = set()
    mark: int | None = None
    for number in order:
        commit.wrote(offsets[number], number)
        written.add(number)
        if mark is None:
            mark = commit.sync_wanted()
        elif rng.random() < 0.5:  # type: ignore[attr-defined]
            for each in commit.synced(mark):
                assert set(range(each + 1)) <= written
                assert offsets[each] + sizes[each] <= mark
                released.append(each)
            mark = None
    while mark is not None or (mark := commit.sync_wanted()) is not None:
        released += commit.synced(mark)
        mark = None
    assert released == list(range(len(sizes)))
