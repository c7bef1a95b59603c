"""Scatter/gather lists and inline data: any split of the bytes gives the same message."""

from __future__ import annotations

import random

import numpy as np
import pytest

from emulator.roce.state import MAX_INLINE_BYTES, MAX_SGE
from kvlane.errors import VerbsError
from kvlane.verbs.enums import AccessFlags, QpState, SendFlags, WcStatus, WrOpcode
from tests.support.roce_pair import Pair, Region
from tests.support.roce_work import (
    Element,
    part,
    pattern,
    post,
    post_receive,
    receive,
    statuses,
    towards,
    work,
)

INLINE = SendFlags.SIGNALED | SendFlags.INLINE
OPCODES = [WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ]


def split(region: Region, lengths: list[int]) -> list[Element]:
    """Elements of these lengths, laid out from the end of the region backwards."""
    elements, end = [], len(region.data)
    for length in lengths:
        end -= length
        elements.append(part(region, end, length))
    return elements


def joined(region: Region, elements: list[Element]) -> np.ndarray:
    """The bytes that the elements name, in their order."""
    offsets = [(addr - region.addr, length) for addr, length, _ in elements]
    return np.concatenate([region.data[o : o + n] for o, n in offsets] or [region.data[:0]])


SPLITS = {
    "one": [1000],
    "packet boundaries": [256, 256, 256, 232],
    "beside the boundaries": [255, 2, 255, 488],
    "single bytes": [1] * MAX_SGE,
    "with empty ones": [0, 100, 0, 0, 412, 0],
    "only empty ones": [0] * 5,
    "as many as there may be": [37] * MAX_SGE,
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("opcode", OPCODES)
def test_every_split_moves_the_bytes_in_order(opcode: WrOpcode, name: str) -> None:
    lengths = SPLITS[name]
    size = sum(lengths)
    pair = Pair(256)
    local, remote = pair.a.region(size + 1), pair.b.region(size + 1)
    local.data[:], remote.data[:] = pattern(size + 1, 1), pattern(size + 1, 2)
    elements = split(local, lengths)
    untouched = int(local.data[0])
    if opcode == WrOpcode.SEND:
        post_receive(pair.b, receive(split(remote, lengths[::-1])))
        expected = joined(local, elements)
    else:
        expected = joined(local, elements)
        if opcode == WrOpcode.RDMA_READ:
            expected = remote.data[:size].copy()
    post(pair.a, work(opcode, elements, **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    if opcode == WrOpcode.RDMA_READ:
        got = joined(local, elements)
    elif opcode == WrOpcode.RDMA_WRITE:
        got = remote.data[:size]
    else:
        got = joined(remote, split(remote, lengths[::-1]))
    assert (got == expected).all()
    assert int(local.data[0]) == untouched
    assert local.guards_hold()
    assert remote.guards_hold()


@pytest.mark.parametrize("seed", range(10))
def test_random_splits_on_both_sides(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(256)
    ends = []
    size = rng.randrange(1, 5000)
    for port in (pair.a, pair.b):
        region = port.region(size)
        cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(MAX_SGE)))
        lengths = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
        ends.append((region, split(region, lengths)))
    (source, gather), (target, scatter) = ends
    source.data[:] = pattern(size, seed)
    post_receive(pair.b, receive(scatter))
    post(pair.a, work(WrOpcode.SEND, gather))
    pair.run()
    assert (joined(source, gather) == joined(target, scatter)).all()


def test_each_element_has_its_own_key() -> None:
    pair = Pair(256)
    first, second = pair.a.region(300), pair.a.region(300)
    first.data[:], second.data[:] = 1, 2
    remote = pair.b.region(600)
    post(pair.a, work(WrOpcode.RDMA_WRITE, [part(first), part(second)], **towards(remote)))
    pair.run()
    assert (remote.data[:300] == 1).all()
    assert (remote.data[300:] == 2).all()


@pytest.mark.parametrize("bad", range(3))
def test_one_bad_element_spoils_the_request_before_anything_is_sent(bad: int) -> None:
    pair = Pair(256)
    local, remote = pair.a.region(900), pair.b.region(900)
    local.data[:] = 1
    elements = split(local, [300, 300, 300])
    addr, length, key = elements[bad]
    elements[bad] = (addr, length, key + 1)
    post(pair.a, work(WrOpcode.RDMA_WRITE, elements, **towards(remote)))
    assert pair.a.transmit(0) == []
    assert statuses(pair.a.poll()) == [WcStatus.LOC_PROT_ERR]


def test_an_empty_element_needs_no_key() -> None:
    pair = Pair(256)
    local, remote = pair.a.region(10), pair.b.region(10)
    local.data[:] = 5
    post(pair.a, work(WrOpcode.RDMA_WRITE, [(0, 0, 0), part(local), (1, 0, 99)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert (remote.data == 5).all()


def test_a_bad_receive_element_refuses_the_whole_message() -> None:
    pair = Pair(256)
    source, target = pair.a.region(600), pair.b.region(600)
    closed = pair.b.region(300, AccessFlags.REMOTE_READ)
    source.data[:] = 1
    post_receive(pair.b, receive([part(target, 0, 300), part(closed)]))
    post(pair.a, work(WrOpcode.SEND, [part(source)]))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_OP_ERR]
    assert statuses(pair.b.poll()) == [WcStatus.LOC_PROT_ERR]
    assert not target.data.any()
    assert not closed.data.any()


def test_a_request_whose_elements_do_not_add_up_is_not_taken() -> None:
    pair = Pair()
    local = pair.a.region(64)
    for field, value in (("length", 9), ("num_sge", MAX_SGE + 1), ("num_sge", -1)):
        wrong = work(WrOpcode.SEND, [part(local, 0, 8)])
        wrong[field] = value
        with pytest.raises(VerbsError, match="sum of its elements"):
            post(pair.a, wrong)
        entry = receive([part(local, 0, 8)])
        entry[field] = value
        with pytest.raises(VerbsError, match="sum of its elements"):
            post_receive(pair.a, entry)
        srq = pair.a.engine.srqs.create(1, 4)
        with pytest.raises(VerbsError, match="sum of its elements"):
            pair.a.engine.srqs.post(srq, entry)
    with pytest.raises(VerbsError, match="sum of its elements"):
        post(pair.a, work(WrOpcode.SEND, [(local.addr, 16, local.key), (local.addr, -8, 0)]))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, MAX_INLINE_BYTES])
@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.RDMA_WRITE])
def test_inline_data_is_what_was_there_when_posting(opcode: WrOpcode, size: int) -> None:
    """And it needs no key: soft-RoCE once copied it from a wrong address."""
    pair = Pair(256)
    scratch = pattern(size + 1)
    expected = scratch.copy()
    remote = pair.b.region(size + 1)
    if opcode == WrOpcode.SEND:
        post_receive(pair.b, receive([part(remote)]))
    half = size // 2
    address = int(scratch.ctypes.data)
    elements = [(address, half, 0), (address + half, size - half, 0)]
    post(pair.a, work(opcode, elements, INLINE, **towards(remote)))
    scratch[:] = 0
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert (remote.data[:size] == expected[:size]).all()
    assert remote.data[size] == 0


def test_inline_data_survives_its_retransmission_and_its_neighbours() -> None:
    pair = Pair(256)
    remote = pair.b.region(20 * 300)
    scratch = np.zeros(300, np.uint8)
    pair.to_b = lambda frames: []
    for i in range(20):
        scratch[:] = i + 1
        element = (int(scratch.ctypes.data), 300, 0)
        post(pair.a, work(WrOpcode.RDMA_WRITE, [element], INLINE, **towards(remote, 300 * i)))
    pair.step()
    pair.to_b = list
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 20
    assert (remote.data.reshape(20, 300) == np.arange(1, 21)[:, None]).all()


def test_more_inline_data_than_there_is_room_for_is_refused_as_a_whole() -> None:
    pair = Pair()
    scratch = np.zeros(MAX_INLINE_BYTES + 1, np.uint8)
    element = (int(scratch.ctypes.data), len(scratch), 0)
    good = work(WrOpcode.SEND, [part(pair.a.region(8))])
    with pytest.raises(VerbsError, match="inline"):
        post(pair.a, good, work(WrOpcode.SEND, [element], INLINE))
    assert pair.a.transmit(0) == []
    assert pair.a.state == QpState.RTS
