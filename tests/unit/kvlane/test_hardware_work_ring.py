"""Slots of a queue: taken by posting, freed by completions, each with its caller's number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlane.errors import QueueFullError
from kvlane.hardware.work_ring import QueuePairWork, WorkRing


def test_a_completion_frees_all_before_it() -> None:
    ring = WorkRing(4, is_receive=False)
    tickets = ring.admit(np.array([10, 11, 12]))
    assert ring.free == 1
    assert ring.retire(tickets[1]) == 11
    assert ring.free == 3
    assert ring.retire(tickets[2]) == 12
    assert ring.free == 4


def test_what_does_not_fit_takes_no_slot() -> None:
    ring = WorkRing(2, is_receive=False)
    ring.admit(np.array([1]))
    with pytest.raises(QueueFullError, match="2 work requests for a queue with 1 of 2 slots free"):
        ring.admit(np.array([2, 3]))
    assert ring.free == 1


def test_both_queues_have_tickets_of_their_own() -> None:
    work = QueuePairWork(2, 2)
    (send,), (receive,) = work.sends.admit(np.array([5])), work.receives.admit(np.array([5 << 40]))
    assert send != receive
    assert work.retire(receive) == 5 << 40
    assert (work.sends.free, work.receives.free) == (1, 2)
    assert work.retire(send) == 5
    assert work.sends.free == 2


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=40))
def test_the_ring_is_a_queue(depth: int, steps: list[tuple[int, int]]) -> None:
    ring = WorkRing(depth, is_receive=True)
    outstanding: list[tuple[int, int]] = []
    number = -3
    for post, complete in steps:
        wr_ids = np.arange(number, number + post)
        if post <= depth - len(outstanding):
            outstanding += zip(ring.admit(wr_ids), wr_ids.tolist(), strict=True)
            number += post
        else:
            with pytest.raises(QueueFullError):
                ring.admit(wr_ids)
        if complete < len(outstanding):
            ticket, wr_id = outstanding[complete]
            assert ring.retire(ticket) == wr_id
            del outstanding[: complete + 1]
        assert ring.free == depth - len(outstanding)
