"""Held: many chains are asked for at once, each is followed as far as it is stored and no more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_driver.buffers import key_chains
from host_driver.matching import MatchEachOperation
from kvlane.capsule import CommandStatus, KeyArray, Opcode
from kvlane.errors import ProtocolError, TransferError
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from tests.support.scripted_agent import Received, Rig

FOR_EVER_NS = 1 << 62


def chain(number: int, length: int) -> KeyArray:
    """Keys that say of which chain they are, and where in it."""
    keys = np.zeros((length, 32), np.uint8)
    keys[:, 0] = number
    keys[:, 4:8] = np.arange(length, dtype="<u4").view(np.uint8).reshape(length, 4)
    return keys


def asked(received: Received) -> tuple[int, int, int]:
    """Chain, first position and number of the keys of a command."""
    keys = received.command.keys
    return int(keys[0, 0]), int(keys[0, 4:8].view("<u4")[0]), len(keys)


def match_each(rig: Rig, chains: list[KeyArray]) -> MatchEachOperation:
    operation = MatchEachOperation(key_chains(chains), FOR_EVER_NS)
    rig.queue.submit(operation)
    rig.pump()
    return operation


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.integers(0, 2 * MAX_KEYS_PER_CAPSULE + 3).flatmap(
            lambda length: st.tuples(st.just(length), st.integers(0, length))
        ),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_every_chain_is_followed_as_far_as_it_is_stored(
    lengths: list[tuple[int, int]], order: object
) -> None:
    rig = Rig(depth=4)
    stored = [held for _, held in lengths]
    operation = match_each(rig, [chain(i, length) for i, (length, _) in enumerate(lengths)])
    while not operation.ended:
        received = rig.agent.commands()
        assert received
        order.shuffle(received)  # type: ignore[attr-defined]
        for item in received:
            number, first, count = asked(item)
            assert item.command.opcode is Opcode.MATCH
            assert first <= stored[number]
            rig.agent.answer(item, result=min(count, stored[number] - first))
        rig.pump()
    assert operation.error is None
    assert operation.result().tolist() == stored
    assert rig.queue.idle


def test_all_chains_are_in_flight_at_once() -> None:
    rig = Rig(depth=8)
    match_each(rig, [chain(i, 3) for i in range(8)])
    assert [asked(item) for item in rig.agent.commands()] == [(i, 0, 3) for i in range(8)]
    assert rig.queue.in_flight == 8


@pytest.mark.parametrize("chains", [[], [chain(0, 0)]], ids=["none", "an empty one"])
def test_nothing_to_ask_for_ends_at_once(chains: list[KeyArray]) -> None:
    rig = Rig()
    operation = match_each(rig, chains)
    assert operation.ended
    assert operation.result().tolist() == [0] * len(chains)
    assert rig.agent.commands() == []


def test_an_answer_beyond_one_chain_is_none_even_if_another_is_longer() -> None:
    rig = Rig()
    operation = match_each(rig, [chain(0, 2), chain(1, 9)])
    rig.agent.answer(rig.agent.commands()[0], result=3)
    rig.pump()
    assert isinstance(operation.error, ProtocolError)
    assert "matched 3 keys of 2" in str(operation.error)


def test_an_error_tells_what_is_known_of_every_chain() -> None:
    rig = Rig()
    operation = match_each(rig, [chain(i, 5) for i in range(3)])
    first, second, _ = rig.agent.commands()
    rig.agent.answer(first, result=4)
    rig.agent.answer(second, status=CommandStatus.INTERNAL)
    rig.pump()
    rig.queue.fail(TransferError("gone"))
    with pytest.raises(TransferError) as caught:
        operation.raise_error()
    assert caught.value.results.tolist() == [4, 0, 0]
