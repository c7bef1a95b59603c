"""Atomics: what they do to the word, who may do it, and that each takes effect exactly once."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.link.frames import Burst
from emulator.wire.aeth import Aeth
from emulator.wire.atomic_eth import AtomicAckEth
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import AccessFlags, QpState, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import ALL_ACCESS, Pair, Region
from tests.support.roce_script import Script, atomic_eth
from tests.support.roce_work import part, post, statuses, towards, work, wr_ids

SWAP, ADD = WrOpcode.ATOMIC_CMP_AND_SWP, WrOpcode.ATOMIC_FETCH_AND_ADD
TOP = (1 << 64) - 1


def word(region: Region, offset: int = 0) -> int:
    return int(region.data[offset : offset + 8].view(np.uint64)[0])


def put_word(region: Region, value: int, offset: int = 0) -> None:
    region.data[offset : offset + 8] = np.frombuffer(value.to_bytes(8, "little"), np.uint8)


def signed(value: int) -> int:
    """As the fields of a work request hold 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def run_atomic(pair: Pair, opcode: WrOpcode, start: int, operand: int, swap: int = 0) -> Region:
    """One atomic on a word that is ``start``; returns the local result, then the remote word."""
    local, remote = pair.a.region(8), pair.b.region(8)
    put_word(remote, start)
    fields = {"compare_add": signed(operand), "swap": signed(swap)}
    post(pair.a, work(opcode, [part(local)], **towards(remote), **fields))
    pair.run()
    assert word(local) == start
    assert local.guards_hold()
    assert remote.guards_hold()
    return remote


@pytest.mark.parametrize("value", [0, 1, 0x0123456789ABCDEF, 1 << 63, TOP])
def test_compare_and_swap_stores_when_equal(value: int) -> None:
    pair = Pair()
    remote = run_atomic(pair, SWAP, value, value, swap=0xFEDCBA9876543210)
    assert word(remote) == 0xFEDCBA9876543210
    (wc,) = pair.a.poll()
    assert (wc.status, wc.opcode, wc.byte_len) == (WcStatus.SUCCESS, WcOpcode.COMP_SWAP, 8)
    assert pair.b.poll() == []


@pytest.mark.parametrize("bit", [0, 31, 32, 63])
def test_compare_and_swap_leaves_a_word_that_differs_in_one_bit(bit: int) -> None:
    pair = Pair()
    start = 0x8000_0000_8000_0001
    assert word(run_atomic(pair, SWAP, start, start ^ (1 << bit), swap=5)) == start


@pytest.mark.parametrize(
    ("start", "operand"),
    [
        (5, 7),
        (TOP, 1),
        (TOP, TOP),
        (1 << 63, 1 << 63),
        ((1 << 63) - 1, 1),
        (0xFFFFFFFF, 1),
        (0, TOP),
    ],
)
def test_fetch_and_add_wraps_at_2_to_64(start: int, operand: int) -> None:
    pair = Pair()
    remote = run_atomic(pair, ADD, start, operand)
    assert word(remote) == (start + operand) & TOP
    assert pair.a.poll()[0].opcode == WcOpcode.FETCH_ADD


@pytest.mark.parametrize("opcode", [SWAP, ADD])
@pytest.mark.parametrize("offset", [1, 4, 7])
def test_a_word_that_is_not_aligned_is_an_invalid_request(opcode: WrOpcode, offset: int) -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(64)
    # The region may begin at any address; what counts is the word's.
    aligned = -remote.addr % 8
    post(pair.a, work(opcode, [part(local)], **towards(remote, aligned + offset), compare_add=0))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_INV_REQ_ERR]
    assert not remote.data.any()
    assert pair.b.state == QpState.ERR


@pytest.mark.parametrize("opcode", [SWAP, ADD])
@pytest.mark.parametrize(
    "access", [ALL_ACCESS & ~AccessFlags.REMOTE_ATOMIC, AccessFlags.LOCAL_WRITE]
)
def test_a_region_without_atomic_access_is_refused(opcode: WrOpcode, access: AccessFlags) -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(8, access)
    post(pair.a, work(opcode, [part(local)], **towards(remote), swap=9))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]
    assert word(remote) == 0


def test_a_queue_pair_without_atomic_access_refuses_them() -> None:
    pair = Pair()
    pair.b.engine.qps.table[pair.b.qp].access = int(ALL_ACCESS & ~AccessFlags.REMOTE_ATOMIC)
    local, remote = pair.a.region(8), pair.b.region(8)
    post(pair.a, work(ADD, [part(local)], **towards(remote), compare_add=1))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]
    assert word(remote) == 0


def test_the_result_needs_eight_writable_local_bytes() -> None:
    for length, access, status in (
        (4, ALL_ACCESS, WcStatus.LOC_LEN_ERR),
        (8, AccessFlags.REMOTE_READ, WcStatus.LOC_PROT_ERR),
    ):
        pair = Pair()
        local, remote = pair.a.region(8, access), pair.b.region(8)
        element = part(local, 0, length)
        post(pair.a, work(ADD, [element], **towards(remote), compare_add=1))
        pair.run()
        assert statuses(pair.a.poll()) == [status]
        assert word(remote) == 0


def test_the_result_may_be_scattered() -> None:
    pair = Pair()
    local, remote = pair.a.region(32), pair.b.region(8)
    put_word(remote, 0x0807060504030201)
    elements = [part(local, 20, 3), part(local, 5, 0), part(local, 0, 5)]
    post(pair.a, work(ADD, elements, **towards(remote), compare_add=1))
    pair.run()
    assert local.data[20:23].tolist() == [1, 2, 3]
    assert local.data[:5].tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_a_repeated_request_is_answered_from_the_kept_result(repeats: int) -> None:
    script = Script()
    region = script.port.region(8)
    put_word(region, 100)
    header = atomic_eth(region, 1)
    assert script.request(Opcode.RC_FETCH_ADD, 0, header) == ["ATOMIC 0 100"]
    assert script.request(Opcode.RC_FETCH_ADD, 1, header) == ["ATOMIC 1 101"]
    for _ in range(repeats):
        assert script.request(Opcode.RC_FETCH_ADD, 0, header) == ["ATOMIC 0 100"]
    assert word(region) == 102
    assert script.counter("duplicate_request") == repeats


def test_a_repetition_that_overtakes_its_own_answer_takes_nobodys_place() -> None:
    """Answered twice, it let the requester go on to what was then refused as one too many."""
    script = Script(options=QpOptions(max_rd_atomic=2))
    region = script.port.region(8)
    base = script.pair.a.first_psn

    def arrives(psn: int) -> None:
        frame = script.frame(Opcode.RC_FETCH_ADD, base + psn, atomic_eth(region, 1))
        script.port.receive(frame, 0)

    for psn in (0, 1, 0, 0, 1):
        arrives(psn)
    # Only the first answer has left when the requester, which has seen it, goes on.
    burst = script.port.burst
    script.port.burst = Burst(1, 1 << 13)
    assert len(script.port.transmit(0)) == 1
    script.port.burst = burst
    arrives(2)
    assert script.answers() == ["ATOMIC 1 1", "ATOMIC 2 2"]
    assert script.port.state == QpState.RTS
    assert word(region) == 3


def test_a_result_that_is_kept_no_more_is_not_made_up() -> None:
    script = Script()
    region = script.port.region(8)
    for psn in range(100):
        script.request(Opcode.RC_FETCH_ADD, psn, atomic_eth(region, 1))
    assert script.request(Opcode.RC_FETCH_ADD, 0, atomic_eth(region, 1)) == []
    assert script.request(Opcode.RC_FETCH_ADD, 99, atomic_eth(region, 1)) == ["ATOMIC 99 99"]
    assert word(region) == 100


def test_a_lost_response_is_asked_for_again_and_the_effect_stays_one() -> None:
    pair = Pair()
    local, remote = pair.a.region(16), pair.b.region(8)
    lost = iter([True])
    pair.to_a = lambda frames: [] if frames and next(lost, False) else frames
    for i in range(2):
        post(
            pair.a,
            work(ADD, [part(local, 8 * i, 8)], **towards(remote), compare_add=10, wr_id=i),
        )
    pair.run()
    done = pair.a.poll()
    assert wr_ids(done) == [0, 1]
    assert set(statuses(done)) == {WcStatus.SUCCESS}
    assert (word(local), word(local, 8), word(remote)) == (0, 10, 20)
    assert pair.b.engine.counters()["duplicate_request"] > 0


def test_no_more_than_agreed_are_under_way() -> None:
    pair = Pair(options=QpOptions(max_rd_atomic=3, ack_timeout_code=8))
    local, remote = pair.a.region(8), pair.b.region(8)
    for _ in range(10):
        post(pair.a, work(ADD, [part(local)], **towards(remote), compare_add=1))
    assert len(pair.a.transmit(0)) == 3
    assert pair.a.transmit(0) == []
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 10
    assert word(remote) == 10


def test_more_than_the_responder_agreed_to_are_refused_unexecuted() -> None:
    pair = Pair(options=QpOptions(max_rd_atomic=4, ack_timeout_code=8))
    pair.b.engine.qps.table[pair.b.qp].max_dest_rd_atomic = 2
    local, remote = pair.a.region(8), pair.b.region(8)
    for _ in range(4):
        post(pair.a, work(ADD, [part(local)], **towards(remote), compare_add=1))
    pair.run()
    done = statuses(pair.a.poll())
    assert done[:3] == [WcStatus.SUCCESS, WcStatus.SUCCESS, WcStatus.REM_INV_REQ_ERR]
    assert word(remote) == 2


def test_none_at_all_is_a_local_error_and_no_wait_for_ever() -> None:
    pair = Pair()
    pair.a.engine.qps.table[pair.a.qp].max_rd_atomic = 0
    local, remote = pair.a.region(8), pair.b.region(8)
    post(pair.a, work(ADD, [part(local)], **towards(remote)))
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.LOC_QP_OP_ERR]


def test_an_answer_of_the_wrong_kind_ends_the_connection() -> None:
    script = Script()
    local, remote = script.port.region(8), script.pair.a.region(8)
    post(script.port, work(ADD, [part(local)], **towards(remote)))
    assert script.requests() == ["FETCH_ADD 0"]
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_ONLY, 0, Aeth.ack(1), payload=bytes(8))
    assert statuses(script.port.poll()) == [WcStatus.BAD_RESP_ERR]


def test_an_answer_counts_once() -> None:
    script = Script()
    local, remote = script.port.region(16), script.pair.a.region(8)
    for i in range(2):
        post(script.port, work(ADD, [part(local, 8 * i, 8)], **towards(remote), wr_id=i))
    assert script.requests() == ["FETCH_ADD 0", "FETCH_ADD 1"]
    for value in (7, 8):
        script.respond(Opcode.RC_ATOMIC_ACKNOWLEDGE, 0, Aeth.ack(1), AtomicAckEth(value))
    assert wr_ids(script.port.poll()) == [0]
    assert word(local) == 7
    script.respond(Opcode.RC_ATOMIC_ACKNOWLEDGE, 1, Aeth.ack(2), AtomicAckEth(9))
    assert wr_ids(script.port.poll()) == [1]
    assert word(local, 8) == 9
