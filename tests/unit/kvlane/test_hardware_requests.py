"""Batches become linked lists of pyverbs' work requests, which are used again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulator.pyverbs import wr
from kvlane.errors import VerbsError
from kvlane.hardware.binding import Binding
from kvlane.hardware.requests import (
    SendRequests,
    post_receives,
    require_length,
    require_postable_sends,
    rows_of,
)
from kvlane.verbs.enums import SendFlags, WrOpcode
from kvlane.verbs.records import RECV_WR, SEND_WR, RecordArray, new_records
from tests.support.fake_rdma import FakePyverbsError, fake_binding

MAX_BYTES = 1 << 30


@pytest.fixture
def binding() -> Binding:
    return replace(fake_binding(), wr=wr)


def chained(head: Any) -> Iterator[Any]:
    while head is not None:
        yield head
        head = head.next_wr


def writes(count: int) -> RecordArray:
    requests = new_records(SEND_WR, count)
    requests.opcode = WrOpcode.RDMA_WRITE
    requests.send_flags = SendFlags.SIGNALED
    requests.local_addr = 1000 + np.arange(count)
    requests.length = 10
    requests.lkey = 0xFFFFFFFF
    requests.remote_addr = -1  # of a peer that lies: the device refuses it, not Python
    requests.rkey = 77
    return requests


def test_a_batch_is_a_list_in_its_order(binding: Binding) -> None:
    pool = SendRequests(binding)
    requests = list(chained(pool.fill(rows_of(writes(3)), [8, 10, 12])))
    assert [request.wr_id for request in requests] == [8, 10, 12]
    assert [request.elements for request in requests] == [
        [(address, 10, 0xFFFFFFFF)] for address in (1000, 1001, 1002)
    ]
    assert {request.remote_addr for request in requests} == {(1 << 64) - 1}
    assert {request.remote_key for request in requests} == {77}


def test_lists_of_all_lengths_end_where_they_should_and_are_made_once(binding: Binding) -> None:
    pool = SendRequests(binding)
    longest = {id(request) for request in chained(pool.fill(rows_of(writes(5)), range(5)))}
    for count in (1, 4, 2, 5):
        head = pool.fill(rows_of(writes(count)), range(100, 100 + count))
        requests = list(chained(head))
        assert [request.wr_id for request in requests] == list(range(100, 100 + count))
        assert {id(request) for request in requests} <= longest


def test_immediate_data_goes_out_as_it_stands_on_the_wire(binding: Binding) -> None:
    batch = writes(1)
    batch.opcode, batch.imm = WrOpcode.SEND_WITH_IMM, 0x01020304
    request = SendRequests(binding).fill(rows_of(batch), [0])
    assert request.imm_data == socket.htonl(0x01020304)


def test_every_request_is_freed_once(binding: Binding, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyverbs frees what it has allocated for a request only when it is told to."""
    freed: list[int] = []
    for kind in (wr.SGE, wr.RecvWR, wr.SendWR):
        monkeypatch.setattr(kind, "close", lambda request: freed.append(id(request)))
    pool = SendRequests(binding)
    pool.fill(rows_of(writes(3)), range(3))
    elements = [id(element) for element in pool._elements]
    pool.close()
    pool.close()
    assert freed == elements

    freed.clear()
    posted: list[Any] = []

    class Queue:
        def post_recv(self, head: Any) -> None:
            posted.extend(chained(head))
            raise FakePyverbsError("refused")

    with pytest.raises(FakePyverbsError):
        post_receives(binding, Queue(), rows_of(new_records(RECV_WR, 3)), [1, 3, 5])
    assert [request.wr_id for request in posted] == [1, 3, 5]
    assert len(set(freed)) == len(freed) == 4
    assert {id(request) for request in posted} <= set(freed)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"opcode": WrOpcode.ATOMIC_FETCH_AND_ADD}, "opcode 6 is none of"),
        ({"opcode": WrOpcode.BIND_MW}, "opcode 8 is none of"),
        ({"opcode": 99}, "opcode 99 is none of"),
        ({"send_flags": SendFlags.INLINE}, "INLINE"),
        ({"length": MAX_BYTES + 1}, "moves 0 to 1073741824 bytes, not 1073741825"),
        ({"length": -1}, "not -1"),
    ],
)
def test_what_cannot_be_posted_is_refused_before_anything_is(
    fields: dict[str, int], told: str
) -> None:
    batch = writes(3)
    for name, value in fields.items():
        batch[name][2] = value
    with pytest.raises(VerbsError, match=told):
        require_postable_sends(rows_of(batch), MAX_BYTES)


def test_lengths_up_to_the_limit_are_fine() -> None:
    require_length(0, MAX_BYTES)
    require_length(MAX_BYTES, MAX_BYTES)
    require_postable_sends(rows_of(writes(2)), 10)
    with pytest.raises(VerbsError):
        require_postable_sends(rows_of(writes(2)), 9)
