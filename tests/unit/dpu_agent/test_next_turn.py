"""When a conversation's next turn is expected, as it is learnt from the turns before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dpu_agent.tiers._next_turn_kernels import LAPSE, LEAD
from dpu_agent.tiers.next_turn import NextTurns
from kvlane.capsule import KeyArray
from kvlane.limits import KEY_BYTES

S = 1_000_000_000


def chain_of(*numbers: int) -> KeyArray:
    rows = [random.Random(number).randbytes(KEY_BYTES) for number in numbers]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, KEY_BYTES).copy()


def due_chains(turns: NextTurns, now: int) -> list[bytes]:
    found = []
    while (chain := turns.take_due(now)) is not None:
        found.append(chain.tobytes())
    return found


def test_a_conversation_is_expected_before_it_has_thought_as_long_as_the_last_time() -> None:
    turns = NextTurns()
    turns.asked(chain_of(1, 2), 0)
    assert not turns.is_any_due
    turns.asked(chain_of(1, 2, 3), 100 * S)
    assert turns.next_due_ns == 100 * S + int(LEAD * 100 * S)
    assert due_chains(turns, turns.next_due_ns - 1) == []
    assert due_chains(turns, 160 * S) == [chain_of(1, 2, 3).tobytes()]
    assert due_chains(turns, 1000 * S) == []  # once


def test_the_last_block_of_a_prompt_may_be_another_the_next_time() -> None:
    turns = NextTurns()
    turns.asked(chain_of(1, 2, 99), 0)
    turns.asked(chain_of(1, 2, 3, 98), 60 * S)
    assert turns.next_due_ns == 60 * S + int(LEAD * 60 * S)


def test_what_was_asked_again_is_not_due_any_more() -> None:
    turns = NextTurns()
    for turn in range(3):
        turns.asked(chain_of(*range(1, 3 + turn)), turn * 40 * S)
    assert due_chains(turns, 10_000 * S) == [chain_of(1, 2, 3, 4).tobytes()]


def test_a_retry_is_no_turn() -> None:
    turns = NextTurns()
    turns.asked(chain_of(1, 2), 0)
    turns.asked(chain_of(1, 2), S // 2)
    assert not turns.is_any_due


def test_a_shared_beginning_makes_no_conversation() -> None:
    turns = NextTurns()
    for user in range(10):
        turns.asked(chain_of(1, 2, 3, 100 + user, 200 + user), user * 20 * S)
    assert not turns.is_any_due


def test_turns_that_are_not_followed_are_expected_no_more() -> None:
    """Everybody asks twice and goes: soon nobody is expected for the third time."""
    turns = NextTurns()
    now, expected = 0, []
    for user in range(20):
        first, second = 10 * user, 10 * user + 1
        turns.asked(chain_of(1000, first), now)
        turns.asked(chain_of(1000, first, second), now + 50 * S)
        now += int(50 * S * (LAPSE + 2))
        expected.append(len(due_chains(turns, now)))
    assert expected[0] == 1
    assert expected[-5:] == [0] * 5


def test_what_is_remembered_is_bounded() -> None:
    turns = NextTurns(conversations=8, kept_keys=16)
    for number in range(1000):
        turns.asked(chain_of(number, number + 5000), number * S)
        assert len(turns._chains) <= 8
        assert turns._keys == sum(map(len, turns._chains.values())) <= 16


@pytest.mark.parametrize("seed", range(3))
def test_think_times_are_learnt_for_each_conversation(seed: int) -> None:
    """Two kinds of users: most that are due come soon, and most that come were due."""
    rng = random.Random(seed)
    turns = NextTurns()
    events = []
    for user in range(60):
        think_s = 20 if user % 2 else 300
        at_s = rng.uniform(0, 600)
        for turn in range(8):
            events.append((at_s, user, turn, think_s))
            at_s += think_s * rng.uniform(0.8, 1.2)
    due: set[int] = set()
    users: dict[bytes, int] = {}
    useful = later = 0
    for at_s, user, turn, _ in sorted(events):
        for chain in due_chains(turns, int(at_s * S)):
            due.add(users[chain])
        if turn >= 2:
            later += 1
            useful += user in due
        due.discard(user)
        chain = chain_of(*(1000 * user + n for n in range(turn + 2)))
        turns.asked(chain, int(at_s * S))
        users[chain.tobytes()] = user
    assert useful > 0.9 * later
