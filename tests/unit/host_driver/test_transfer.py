"""Held: blocks reach the agent where they lie or through staging, and come back whole.

The agent's part of the data path, the RDMA, is played by the test: it reads and writes at
the addresses that the descriptors name.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

import numpy as np
import pytest

from host_driver.buffers import block_list
from host_driver.commands import Request
from host_driver.transfer import Placement, RetrieveOperation, StoreOperation
from kvlane.capsule import CommandFlags, KeyStatus
from kvlane.errors import ProtocolError, TransferError
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from kvlane.verbs.records import RecordArray
from tests.support.scripted_agent import Received, Rig

RKEY = 4711


def store(rig: Rig, blocks: list[Any], rkeys: list[int], checksums: bool = False) -> StoreOperation:
    listed = block_list(blocks, name="blocks", writable=False)
    placement = Placement(listed, np.array(rkeys, np.int64), rig.staging)
    operation = StoreOperation(
        Request(np.zeros((len(blocks), 32), np.uint8), 10**18), placement, checksums=checksums
    )
    rig.queue.submit(operation)
    rig.pump()
    return operation


def retrieve(
    rig: Rig, into: list[Any], rkeys: list[int], checksums: bool = False
) -> RetrieveOperation:
    listed = block_list(into, name="into", writable=True)
    placement = Placement(listed, np.array(rkeys, np.int64), rig.staging)
    operation = RetrieveOperation(
        Request(np.zeros((len(into), 32), np.uint8), 10**18), placement, checksums=checksums
    )
    rig.queue.submit(operation)
    rig.pump()
    return operation


def read(descriptor: RecordArray) -> bytes:
    return ctypes.string_at(int(descriptor.addr), int(descriptor.length))


def write(descriptor: RecordArray, data: bytes) -> None:
    assert len(data) <= descriptor.length
    ctypes.memmove(int(descriptor.addr), data, len(data))


def one(rig: Rig) -> Received:
    (received,) = rig.agent.commands()
    return received


def test_registered_blocks_are_named_where_they_lie() -> None:
    rig = Rig()
    blocks = np.arange(300, dtype=np.uint8).reshape(3, 100)
    operation = store(rig, list(blocks), [RKEY] * 3)
    received = one(rig)
    descriptors = received.command.descriptors
    assert descriptors.addr.tolist() == [row.ctypes.data for row in blocks]
    assert descriptors.rkey.tolist() == [RKEY] * 3
    assert descriptors.length.tolist() == [100] * 3
    assert rig.staging.used_bytes == 0
    rig.agent.answer(received, key_status=KeyStatus.EXISTS)
    rig.pump()
    assert operation.result().ok.all()
    assert operation.result().statuses.tolist() == [KeyStatus.EXISTS] * 3


def test_other_blocks_are_copied_into_staging_beside_registered_ones() -> None:
    rig = Rig()
    blocks = [b"a" * 70, np.full(50, 7, np.uint8), b"c" * 9]
    operation = store(rig, blocks, [-1, RKEY, -1])
    received = one(rig)
    descriptors = received.command.descriptors
    assert descriptors.rkey.tolist() == [rig.staging.region.rkey, RKEY, rig.staging.region.rkey]
    assert [read(d) for d in descriptors] == [b"a" * 70, b"\x07" * 50, b"c" * 9]
    assert rig.staging.used_bytes == 128 + 64
    rig.agent.answer(received)
    rig.pump()
    assert operation.result().ok.all()
    assert rig.staging.used_bytes == 0


def test_what_was_retrieved_into_staging_is_copied_out_and_no_more() -> None:
    rig = Rig()
    into: list[Any] = [bytearray(b"." * 10), bytearray(b"." * 10), np.zeros(10, np.uint8)]
    operation = retrieve(rig, into, [-1, -1, RKEY])
    received = one(rig)
    descriptors = received.command.descriptors
    write(descriptors[0], b"0123456789")
    write(descriptors[1], b"abcdefghij")
    write(descriptors[2], b"zerocopy")
    results = received.results(KeyStatus.OK, 10, 0)
    results.length = [4, 10, 8]
    results.status[1] = KeyStatus.NOT_FOUND
    rig.agent.answer(received, results=results)
    rig.pump()
    result = operation.result()
    assert result.ok.tolist() == [True, False, True]
    assert result.lengths.tolist() == [4, 10, 8]
    assert bytes(into[0]) == b"0123......"
    assert bytes(into[1]) == b".........."
    assert into[2].tobytes() == b"zerocopy\0\0"
    assert rig.staging.used_bytes == 0


def test_commands_wait_for_staging_instead_of_failing() -> None:
    rig = Rig(staging=4096)
    blocks = [bytes([i]) * 1000 for i in range(12)]
    operation = store(rig, blocks, [-1] * 12)
    seen: list[bytes] = []
    while not operation.ended:
        received = rig.agent.commands()
        assert received
        assert rig.staging.used_bytes <= 4096
        for item in received:
            seen += [read(d) for d in item.command.descriptors]
            rig.agent.answer(item)
        rig.pump()
    assert seen == blocks
    assert operation.result().ok.all()


def test_a_block_as_large_as_the_staging_goes_alone() -> None:
    rig = Rig(staging=4096)
    small = store(rig, [b"s"], [-1])
    large = store(rig, [b"L" * 4096], [-1])
    first = one(rig)
    assert not large.ended
    rig.agent.answer(first)
    rig.pump()
    second = one(rig)
    assert read(second.command.descriptors[0]) == b"L" * 4096
    rig.agent.answer(second)
    rig.pump()
    assert small.ended
    assert large.result().ok.all()


def test_registered_blocks_fill_capsules() -> None:
    rig = Rig()
    blocks = np.zeros((MAX_KEYS_PER_CAPSULE + 1, 64), np.uint8)
    store(rig, list(blocks), [RKEY] * len(blocks))
    sizes = [len(item.command.descriptors) for item in rig.agent.commands()]
    assert sizes == [MAX_KEYS_PER_CAPSULE, 1]


def test_a_failure_gives_the_staging_back() -> None:
    rig = Rig()
    operation = store(rig, [b"x" * 100], [-1])
    assert rig.staging.used_bytes
    rig.queue.fail(TransferError("gone"))
    assert operation.ended
    assert rig.staging.used_bytes == 0


def test_staging_that_cannot_be_given_back_keeps_no_caller_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    operations = [store(rig, [b"x" * 100], [-1]) for _ in range(3)]

    def broken(addr: int) -> None:
        raise KeyError(addr)

    monkeypatch.setattr(rig.staging, "release", broken)
    rig.queue.fail(TransferError("gone"))
    assert [type(operation.error) for operation in operations] == [TransferError] * 3


def test_an_error_tells_which_blocks_were_stored() -> None:
    rig = Rig(staging=4096)
    operation = store(rig, [bytes(1000)] * 3, [-1] * 3)
    first, _, _ = rig.agent.commands()
    rig.agent.answer(first)
    rig.pump()
    rig.queue.fail(TransferError("gone"))
    with pytest.raises(TransferError) as caught:
        operation.raise_error()
    assert caught.value.results.statuses.tolist() == [
        KeyStatus.OK,
        KeyStatus.ABORTED,
        KeyStatus.ABORTED,
    ]


def test_checksums_go_with_a_store_only_when_wanted() -> None:
    rig = Rig()
    blocks = [b"abc" * 30, np.arange(90, dtype=np.uint8)]
    store(rig, blocks, [-1, RKEY], checksums=True)
    command = one(rig).command
    assert command.flags == CommandFlags.CHECKSUM
    assert command.descriptors.checksum.tolist() == [zlib.crc32(bytes(b)) for b in blocks]
    store(rig, blocks, [-1, RKEY])
    command = one(rig).command
    assert command.flags == CommandFlags(0)
    assert command.descriptors.checksum.tolist() == [0, 0]


@pytest.mark.parametrize("rkey", [-1, RKEY], ids=["staged", "zero copy"])
def test_a_block_that_arrives_altered_is_marked(rkey: int) -> None:
    rig = Rig()
    into = [bytearray(5) for _ in range(3)]
    operation = retrieve(rig, into, [rkey] * 3, checksums=True)
    received = one(rig)
    for descriptor, data in zip(
        received.command.descriptors, (b"right", b"wrong", b"wrong"), strict=True
    ):
        write(descriptor, data)
    results = received.results(KeyStatus.OK, 5, zlib.crc32(b"right"))
    results.status[2] = KeyStatus.NOT_FOUND
    rig.agent.answer(received, results=results)
    rig.pump()
    assert operation.result().statuses.tolist() == [
        KeyStatus.OK,
        KeyStatus.CHECKSUM_MISMATCH,
        KeyStatus.NOT_FOUND,
    ]


def test_an_agent_that_claims_to_have_written_too_much_is_not_believed() -> None:
    rig = Rig()
    operation = retrieve(rig, [bytearray(5)], [-1])
    rig.agent.answer(one(rig), length=6)
    rig.pump()
    assert isinstance(operation.error, ProtocolError)
    assert rig.staging.used_bytes == 0


def test_a_buffer_that_is_too_short_says_what_it_needs() -> None:
    rig = Rig()
    operation = retrieve(rig, [bytearray(5)], [-1])
    rig.agent.answer(one(rig), key_status=KeyStatus.BAD_LENGTH, length=600)
    rig.pump()
    assert operation.result().lengths.tolist() == [600]
    assert not operation.result().ok.any()
