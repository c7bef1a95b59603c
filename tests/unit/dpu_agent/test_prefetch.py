"""Blocks that come back before anybody asks: which, when, and what became of the guess."""

from __future__ import annotations

import pytest

from dpu_agent.cache.invariants import check_invariants
from dpu_agent.tiers.demotion import reserve_blocks
from dpu_agent.tiers.mover import Pace
from dpu_agent.tiers.prefetch import PrefetchMode
from tests.support.capsule_host import key_array
from tests.support.tier_rig import BLOCK_BYTES, Rig

S = 1_000_000_000
MATCH = Pace(PrefetchMode.MATCH)


def rig_with_cold(*keys: int, hot: int = 32, pace: Pace = MATCH) -> Rig:
    """A rig in which some blocks lie colder and nothing is in memory."""
    rig = Rig(hot=hot, pace=pace)
    for key in keys:
        rig.store(key)
        rig.mover.keep(key_array(key), lambda: None)
        rig.step()
        rig.hot.delete(key_array(key))
    assert all(rig.places(key) == (False, True) for key in keys)
    return rig


def guesses(rig: Rig) -> tuple[int, int, int]:
    check_invariants(rig.hot)
    known = rig.hot.guesses()
    return known.open, known.useful, known.wasted


def test_what_a_match_has_found_colder_comes_back_by_itself() -> None:
    rig = rig_with_cold(1, 2, 3)
    rig.mover.notice(key_array(1, 2, 3), rig.now)
    rig.step()
    assert [rig.places(key)[0] for key in (1, 2, 3)] == [True] * 3
    assert guesses(rig) == (3, 0, 0)
    assert rig.content(1) == 1  # asked for
    assert guesses(rig) == (2, 1, 0)
    rig.content(1)
    assert guesses(rig) == (2, 1, 0)  # once
    rig.hot.delete(key_array(2))
    assert guesses(rig) == (1, 1, 1)
    figures = rig.mover.figures
    assert (figures.prefetched, figures.prefetched_bytes) == (3, 3 * BLOCK_BYTES)
    assert rig.hot.stats().pinned == rig.cold.stats().pinned == 0


def test_behind_a_gap_nothing_is_guessed() -> None:
    rig = rig_with_cold(1, 3)
    rig.mover.notice(key_array(1, 2, 3), rig.now)
    rig.step()
    assert (rig.places(1)[0], rig.places(3)[0]) == (True, False)


def test_without_prefetch_nothing_comes() -> None:
    rig = rig_with_cold(1, pace=Pace())
    rig.mover.notice(key_array(1), rig.now)
    rig.step()
    assert not rig.places(1)[0]
    assert rig.mover.next_step_in_ns(rig.now) is None


def test_who_waits_goes_first() -> None:
    rig = rig_with_cold(1, 2)
    rig.mover.want(key_array(1), rig.mover.end, rig.now)
    rig.mover.notice(key_array(1, 2), rig.now)
    rig.mover.step(rig.now)
    assert len(rig.medium.pending) == 1
    rig.step()
    assert rig.places(2)[0]
    assert rig.mover.figures.prefetched == 1


def test_a_command_that_wants_what_is_being_guessed_makes_it_useful() -> None:
    rig = rig_with_cold(1)
    rig.mover.notice(key_array(1), rig.now)
    rig.mover.step(rig.now)
    told: list[int] = []
    rig.mover.want(key_array(1), lambda wish: (told.append(1), rig.mover.end(wish))[0], rig.now)
    assert len(rig.medium.pending) == 1
    rig.step()
    assert told == [1]
    rig.content(1)
    assert guesses(rig) == (0, 1, 0)


def test_guesses_leave_slots_free_and_cost_no_block_that_has_no_copy() -> None:
    rig = rig_with_cold(*range(1, 17), hot=64)
    rig.store(*range(101, 165))
    rig.step()
    rig.mover.notice(key_array(*range(1, 17)), rig.now)
    while rig.mover.step(rig.now) or rig.medium.pending:
        assert rig.free() >= reserve_blocks(64) // 2
        rig.medium.perform_all()
    assert rig.mover.figures.prefetched > 0
    assert rig.mover.figures.dropped == 0
    assert all(True in rig.places(key) for key in range(101, 165))


def test_few_guesses_are_open_at_a_time() -> None:
    rig = rig_with_cold(*range(1, 13), hot=32)
    rig.mover.notice(key_array(*range(1, 13)), rig.now)
    rig.step()
    assert guesses(rig)[0] == 32 // 8
    for key in range(1, 13):
        rig.content(key)
        rig.step()
    assert rig.mover.figures.prefetched == 12


def test_a_guess_that_comes_too_late_is_given_up() -> None:
    rig = rig_with_cold(1, 2, hot=8)
    rig.mover.notice(key_array(1, 2), rig.now)
    rig.step()
    assert guesses(rig)[0] == 1  # one slot in eight
    rig.content(1)
    rig.now += 10 * S
    rig.step()
    assert not rig.places(2)[0]
    assert rig.mover.figures.prefetch_skipped == 1


def test_the_budget_is_kept_and_what_waits_for_it_is_called_again() -> None:
    pace = Pace(PrefetchMode.MATCH, prefetch_bytes_per_s=BLOCK_BYTES)
    rig = rig_with_cold(1, 2, 3, hot=64, pace=pace)
    start = rig.now
    rig.mover.notice(key_array(1, 2, 3), rig.now)
    for _ in range(100):
        rig.mover.step(rig.now)
        rig.medium.perform_all()
        moved = rig.mover.figures.prefetched_bytes
        assert moved <= BLOCK_BYTES * ((rig.now - start) / S + 2)
        wait_ns = rig.mover.next_step_in_ns(rig.now)
        rig.now += S // 10 if wait_ns is None else wait_ns
    assert rig.mover.figures.prefetched == 3


def test_deleted_blocks_do_not_come_back_on_a_guess() -> None:
    rig = rig_with_cold(1, 2)
    rig.mover.notice(key_array(1, 2), rig.now)
    rig.mover.step(rig.now)
    rig.mover.delete(key_array(1), lambda _: None, rig.now)
    rig.step()
    assert rig.places(1) == (False, False)
    assert rig.places(2)[0]
    assert rig.cold.stats().pinned == 0


def test_the_next_turn_brings_back_what_has_left_meanwhile() -> None:
    rig = rig_with_cold(1, 2, 3, hot=32, pace=Pace(PrefetchMode.NEXT_TURN))
    for turn in range(3):
        rig.now = turn * 60 * S
        rig.mover.notice(key_array(1, 2, *range(3, 3 + turn)), rig.now)
        rig.step()
    for key in (1, 2, 3):
        rig.hot.delete(key_array(key))
    assert rig.mover.next_step_in_ns(rig.now) == pytest.approx(30 * S, rel=0.01)
    rig.now += 31 * S
    rig.step()
    assert [rig.places(key)[0] for key in (1, 2, 3)] == [True] * 3


def test_a_damaged_block_is_no_guess() -> None:
    rig = rig_with_cold(1)
    rig.medium.fails = True
    rig.mover.notice(key_array(1), rig.now)
    rig.step()
    assert rig.places(1) == (False, False)
    assert guesses(rig) == (0, 0, 0)
    assert rig.mover.figures.damaged == 1


def test_demotion_keeps_its_rate() -> None:
    rig = Rig(hot=32, pace=Pace(demote_bytes_per_s=4 * BLOCK_BYTES))
    start = rig.now
    for number in range(1, 200):
        rig.store(number)
        rig.mover.step(rig.now)
        rig.medium.perform_all()
        wait_ns = rig.mover.next_step_in_ns(rig.now)
        rig.now += S // 10 if wait_ns is None else min(wait_ns, S // 10)
        moved = rig.mover.figures.demoted_bytes
        # A second's worth and one batch of sixteen blocks may come at once.
        assert moved <= BLOCK_BYTES * (4 * ((rig.now - start) / S + 1) + 16)
    assert rig.mover.figures.demoted > 0
    assert rig.hot.stats().evicted > rig.mover.figures.demoted
