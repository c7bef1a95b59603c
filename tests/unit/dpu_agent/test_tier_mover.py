"""Blocks that leave memory for a colder tier and come back: what is kept, what is seen when."""

from __future__ import annotations

import numpy as np
import pytest

from dpu_agent.segments.requests import ItemStatus
from dpu_agent.tiers.demotion import reserve_blocks
from dpu_agent.tiers.promotion import Wish
from tests.support.capsule_host import key_array
from tests.support.tier_rig import HOT_BLOCKS, Rig


def test_slots_are_kept_free_and_what_held_them_lies_colder() -> None:
    rig = Rig()
    rig.store(*range(1, HOT_BLOCKS + 1))
    assert rig.free() == 0
    rig.step()
    assert rig.free() >= reserve_blocks(HOT_BLOCKS)
    for key in range(1, HOT_BLOCKS + 1):
        assert rig.places(key) != (False, False)
    assert rig.mover.figures.demoted == rig.cold.stats().blocks


def test_a_block_is_in_memory_until_it_lies_colder() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.mover.step(1)
    assert rig.places(1) == (True, False)
    rig.medium.perform_all()
    assert rig.places(1) == (True, False)
    rig.mover.step(2)
    assert rig.places(1) == (False, True)
    assert (rig.hot.displaced_blocks, rig.hot.demoted_blocks) == (0, 1)
    assert rig.hot.stats().evicted == 1


def test_what_is_wanted_comes_back_with_its_bytes() -> None:
    rig = Rig(hot=2)
    rig.store(1, 2)
    rig.step()
    told: list[Wish] = []
    gone = [key for key in (1, 2) if not rig.places(key)[0]]
    rig.mover.want(key_array(*gone), told.append, rig.now)
    assert told == []
    rig.step()
    (wish,) = told
    assert [rig.content(key) for key in gone] == gone
    rig.mover.end(wish)
    assert rig.hot.stats().pinned == 0
    assert rig.cold.stats().pinned == 0


def test_nobody_sees_a_block_before_it_was_read() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    rig.mover.want(key_array(1), rig.mover.end, rig.now)
    rig.mover.step(rig.now)
    assert rig.places(1) == (False, True)


def test_two_who_want_one_block_have_it_read_once() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    told: list[Wish] = []
    for _ in range(2):
        rig.mover.want(key_array(1), told.append, rig.now)
    assert len(rig.medium.pending) == 1
    rig.step()
    assert len(told) == 2
    assert rig.hot.stats().pinned == 1
    for wish in told:
        rig.mover.end(wish)
    assert rig.hot.stats().pinned == 0


def test_what_nobody_has_is_told_at_once() -> None:
    rig = Rig()
    told: list[int] = []
    rig.mover.want(key_array(77), lambda _: told.append(1), rig.now)
    assert told == [1]


def test_without_a_slot_nothing_comes_and_it_is_counted() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    rig.store(2)
    slots = rig.hot.pin(key_array(2), rig.now)
    told: list[int] = []
    rig.mover.want(key_array(1), lambda _: told.append(1), rig.now)
    assert told == [1]
    assert rig.mover.figures.no_room == 1
    assert rig.places(1) == (False, True)
    rig.hot.unpin(slots, rig.hot.generations(slots))
    assert rig.cold.stats().pinned == 0


def test_a_damaged_block_is_never_seen_and_is_forgotten() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    ((location, (key, content, checksum)),) = rig.medium.blocks.items()
    rig.medium.blocks[location] = (key, content[:-1] + b"!", checksum)
    told: list[int] = []
    rig.mover.want(key_array(1), lambda _: told.append(1), rig.now)
    rig.step()
    assert told == [1]
    assert rig.places(1) == (False, False)
    assert rig.mover.figures.damaged == 1
    assert rig.medium.blocks == {}
    assert rig.free() == 1


def test_what_cannot_be_written_leaves_memory_all_the_same() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.medium.fails = True
    rig.step()
    assert rig.places(1) == (False, False)
    assert rig.mover.figures.dropped == 1
    assert rig.cold.stats().writing == 0


def test_a_full_tier_forgets_what_its_policy_chooses_on_the_medium_too() -> None:
    rig = Rig(hot=1, cold=2)
    for key in (1, 2, 3):
        rig.store(key)
        rig.step()
    assert [rig.places(key)[1] for key in (1, 2, 3)] == [False, True, True]
    assert sorted(key for key, _, _ in rig.medium.blocks.values()) == sorted(
        key_array(key)[0].tobytes() for key in (2, 3)
    )


def test_where_the_medium_runs_short_more_leave_than_come() -> None:
    rig = Rig(hot=1)
    for key in (1, 2, 3, 4):
        rig.store(key)
        rig.step()
    rig.is_short = True
    rig.store(5)
    rig.step()
    assert [rig.places(key)[1] for key in (1, 2, 3, 4, 5)] == [False, False, True, True, True]
    assert sorted(key for key, _, _ in rig.medium.blocks.values()) == sorted(
        key_array(key)[0].tobytes() for key in (3, 4, 5)
    )
    assert rig.cold.stats().evicted == 2
    assert rig.cold.stats().pinned == 0


def test_a_block_that_is_read_does_not_leave_where_the_medium_runs_short() -> None:
    rig = Rig(hot=3)
    rig.store(1)
    rig.mover.keep(key_array(1), lambda: None)
    rig.step()
    rig.hot.delete(key_array(1))
    rig.mover.want(key_array(1), rig.mover.end, rig.now)
    rig.is_short = True
    rig.store(2)
    rig.mover.keep(key_array(2), lambda: None)
    rig.step()
    assert rig.mover.figures.promoted == 1
    assert rig.places(1) == (True, True)


def test_a_block_that_lies_colder_already_leaves_without_a_copy() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    rig.mover.want(key_array(1), rig.mover.end, rig.now)
    rig.step()
    rig.step()
    assert rig.mover.figures.demoted == 1
    assert len(rig.medium.blocks) == 1


def test_a_delete_reaches_the_medium_before_it_is_told() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    told: list[bool] = []
    rig.mover.delete(key_array(1, 9), told.append, rig.now)
    assert rig.places(1) == (False, False)
    assert told == []
    assert [durable for _, durable in rig.medium.removed] == [True]
    rig.step()
    assert told == [True]
    assert rig.medium.blocks == {}


def test_a_block_that_is_deleted_while_it_leaves_does_not_come_back() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.mover.step(1)
    rig.hot.delete(key_array(1))
    rig.step()
    assert rig.places(1) == (False, False)
    assert rig.medium.blocks == {}
    assert rig.free() == 1


def test_a_block_that_is_deleted_while_it_comes_back_is_not_seen() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    told: list[str] = []
    rig.mover.want(key_array(1), lambda _: told.append("want"), rig.now)
    rig.mover.delete(key_array(1), lambda _: told.append("delete"), rig.now)
    rig.step()
    assert sorted(told) == ["delete", "want"]
    assert rig.places(1) == (False, False)
    assert rig.medium.blocks == {}
    assert rig.free() == 1


@pytest.mark.parametrize("times", [1, 3])
def test_blocks_are_found_where_the_medium_has_moved_them(times: int) -> None:
    rig = Rig(hot=1)
    for key in (1, 2):
        rig.store(key)
        rig.step()
    for _ in range(times):
        rig.medium.move_all()
    rig.step()
    for key in (1, 2):
        rig.mover.want(key_array(key), rig.mover.end, rig.now)
        rig.step()
        assert rig.mover.figures.damaged == 0
    assert rig.mover.figures.promoted == 2


def test_what_is_to_survive_is_written_and_stays_in_memory() -> None:
    rig = Rig()
    rig.store(1, 2)
    told: list[int] = []
    rig.mover.keep(key_array(1, 2, 1, 9), lambda: told.append(1))
    assert told == []
    rig.step()
    assert told == [1]
    assert [rig.places(key) for key in (1, 2)] == [(True, True)] * 2
    assert rig.hot.stats().pinned == 0
    rig.mover.keep(key_array(1, 2), lambda: told.append(2))
    assert told == [1, 2]


def test_what_leaves_memory_anyway_is_written_once_for_whoever_waits() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.mover.step(1)
    told: list[int] = []
    for name in (1, 2):
        rig.mover.keep(key_array(1), lambda name=name: told.append(name))
    assert len(rig.medium.pending) == 1
    rig.step()
    assert told == [1, 2]
    assert rig.places(1) == (False, True)


def test_what_cannot_be_written_is_told_and_stays_in_memory() -> None:
    rig = Rig()
    rig.store(1)
    rig.medium.fails = True
    told: list[int] = []
    rig.mover.keep(key_array(1), lambda: told.append(1))
    rig.step()
    assert told == [1]
    assert rig.places(1) == (True, False)
    assert (rig.hot.stats().pinned, rig.cold.stats().writing) == (0, 0)


def test_a_block_may_be_moved_before_it_is_known_where_it_was_written() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.mover.step(1)
    rig.medium.perform_all()
    rig.medium.move_all()
    rig.step()
    told: list[bool] = []
    rig.mover.delete(key_array(1), told.append, rig.now)
    rig.step()
    assert told == [True]
    assert rig.medium.blocks == {}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_block_may_be_moved_long_before_those_written_with_it_are_there(is_deleted: bool) -> None:
    rig = Rig()
    rig.store(1, 2)
    rig.mover.keep(key_array(1, 2), lambda: None)
    rig.medium.perform_part(1)
    for _ in range(2):
        rig.medium.move_all()
        rig.mover.step(rig.now)
    if is_deleted:
        rig.hot.delete(key_array(1, 2))
    rig.step()
    assert len(rig.medium.blocks) == (0 if is_deleted else 2)
    for slot in np.flatnonzero(rig.cold.arrays.table["length"][: rig.cold.stats().blocks]):
        assert rig.tier.location(int(slot)) in rig.medium.blocks


def test_a_delete_is_tried_again_until_there_is_room_for_it() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    rig.medium.delete_fails_with = ItemStatus.NO_SPACE
    told: list[bool] = []
    rig.mover.delete(key_array(1), told.append, rig.now)
    for turn in range(1, 4):
        rig.medium.perform_all()
        rig.mover.step(rig.now)
        assert (told, rig.full) == ([], turn)
        rig.mover.step(rig.now)
    rig.medium.delete_fails_with = None
    rig.step()
    assert told == [True]
    assert rig.medium.blocks == {}


def test_a_delete_that_the_medium_cannot_carry_out_is_told() -> None:
    rig = Rig(hot=1)
    rig.store(1)
    rig.step()
    rig.medium.delete_fails_with = ItemStatus.IO_ERROR
    told: list[bool] = []
    rig.mover.delete(key_array(1), told.append, rig.now)
    rig.step()
    assert told == [False]


def test_a_delete_waits_for_a_copy_that_is_under_way() -> None:
    """Told before, it would not hold: the copy is durable once it is written."""
    rig = Rig(hot=1)
    rig.store(1)
    rig.mover.step(1)
    rig.hot.delete(key_array(1))
    told: list[bool] = []
    rig.mover.delete(key_array(1), told.append, rig.now)
    rig.medium.perform()
    assert told == []
    rig.mover.step(rig.now)
    assert (told, len(rig.medium.blocks)) == ([], 1)
    rig.step()
    assert (told, rig.medium.blocks) == ([True], {})
    assert [durable for _, durable in rig.medium.removed] == [True]


def test_a_delete_waits_until_what_was_evicted_is_gone_for_good() -> None:
    rig = Rig(hot=1, cold=1)
    rig.store(1)
    rig.step()
    rig.store(2)
    rig.mover.step(rig.now)  # the copy of block 2 has taken the row of block 1
    told: list[bool] = []
    rig.mover.delete(key_array(1), told.append, rig.now)
    assert told == []
    rig.step()
    assert told == [True]
    assert [durable for _, durable in rig.medium.removed] == [True]
    assert [key for key, _, _ in rig.medium.blocks.values()] == [key_array(2)[0].tobytes()]


def test_a_delete_is_not_told_as_done_while_something_evicted_may_come_back() -> None:
    rig = Rig(hot=1, cold=1)
    rig.medium.delete_fails_with = ItemStatus.IO_ERROR
    for key in (1, 2):
        rig.store(key)
        rig.step()
    told: list[bool] = []
    rig.mover.delete(key_array(1), told.append, rig.now)
    rig.step()
    assert told == [False]
    rig.medium.delete_fails_with = None
    rig.mover.delete(key_array(1), told.append, rig.now)
    rig.step()
    assert told == [False, True]
    assert [key for key, _, _ in rig.medium.blocks.values()] == [key_array(2)[0].tobytes()]


def test_what_is_in_memory_already_stays_there_for_whoever_wants_it() -> None:
    rig = Rig(hot=2)
    wishes: list[Wish] = []
    rig.store(1)
    rig.store(2)
    rig.mover.want(key_array(1), wishes.append, rig.now)
    assert rig.hot.stats().pinned == 1
    rig.step()
    assert [rig.places(key) for key in (1, 2)] == [(True, False), (False, True)]
    rig.mover.want(key_array(2, 1), wishes.append, rig.now)
    rig.step()
    assert [len(wish.pins) for wish in wishes] == [1, 2]
    for wish in wishes:
        rig.mover.end(wish)
    assert rig.hot.stats().pinned == 0


def test_a_block_is_kept_that_is_stored_anew_while_its_deleted_one_is_copied() -> None:
    rig = Rig()
    told: list[str] = []
    rig.store(1)
    rig.mover.keep(key_array(1), lambda: told.append("old"))
    rig.hot.delete(key_array(1))
    rig.store(1)
    rig.mover.keep(key_array(1), lambda: told.append("new"))
    rig.step()
    assert told == ["old", "new"]
    assert rig.places(1) == (True, True)
    assert len(rig.medium.blocks) == 1
