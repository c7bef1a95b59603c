"""Moves that are told before it is known where something was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.tiers.recent_moves import RecentMoves


def test_what_is_told_while_an_append_is_under_way_is_followed() -> None:
    moves = RecentMoves()
    turn = moves.begin()
    moves.tell([(1, 2), (2, 3)])
    moves.tell([(3, 4), (8, 9)])
    assert [moves.newest(place) for place in (1, 3, 7, 8)] == [4, 4, 7, 9]
    moves.end(turn)
    assert len(moves) == 0


def test_nothing_is_remembered_for_nobody() -> None:
    moves = RecentMoves()
    moves.tell([(1, 2)])
    assert len(moves) == 0


@given(st.lists(st.sampled_from("bte"), max_size=60), st.randoms(use_true_random=False))
def test_moves_are_kept_for_as_long_as_somebody_may_need_them(
    steps: list[str], rng: object
) -> None:
    """Each append is written at once and learns of it at its end; there it is found."""
    moves = RecentMoves()
    place_of: dict[int, tuple[int, int, int]] = {}
    fresh = iter(range(1, 10_000))
    for step in steps:
        if step == "b":
            turn, place = moves.begin(), next(fresh)
            place_of[place] = (turn, place, place)
        elif step == "t":
            told = []
            for name, (turn, first, place) in place_of.items():
                new = next(fresh)
                told.append((place, new))
                place_of[name] = (turn, first, new)
            moves.tell(told)
        elif place_of:
            turn, first, place = place_of.pop(rng.choice(sorted(place_of)))  # type: ignore[attr-defined]
            assert moves.newest(first) == place
            moves.end(turn)
    for turn, first, place in place_of.values():
        assert moves.newest(first) == place
        moves.end(turn)
    assert len(moves) == 0
