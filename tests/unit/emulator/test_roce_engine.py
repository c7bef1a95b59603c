"""The engine over a perfect channel: every operation and size, errors, and queue rules."""

from __future__ import annotations

import numpy as np
import pytest

from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.enums import AccessFlags, QpState, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import Pair

SIZES = [0, 1, 3, 255, 1023, 1024, 1025, 4096, 20_001]


def pattern(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, nbytes, dtype=np.uint8)


def statuses(completions: list) -> list[WcStatus]:
    return [WcStatus(int(wc.status)) for wc in completions]


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
@pytest.mark.parametrize("size", SIZES)
def test_write_moves_the_bytes_and_only_those(size: int, mtu: int) -> None:
    pair = Pair(mtu)
    source, target = pair.a.region(size + 8), pair.b.region(size + 8)
    source.data[:] = pattern(size + 8)
    pair.a.send(WrOpcode.RDMA_WRITE, source, size, remote=target, wr_id=7, remote_offset=4)
    pair.run()
    (wc,) = pair.a.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (7, WcStatus.SUCCESS, WcOpcode.RDMA_WRITE)
    assert (target.data[4 : 4 + size] == source.data[:size]).all()
    assert not target.data[:4].any()
    assert not target.data[4 + size :].any()
    assert pair.b.poll() == []
    assert target.guards_hold()


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
@pytest.mark.parametrize("size", SIZES)
def test_read_fetches_the_bytes_and_only_those(size: int, mtu: int) -> None:
    pair = Pair(mtu)
    local, remote = pair.a.region(size + 8), pair.b.region(size + 8)
    remote.data[:] = pattern(size + 8)
    pair.a.send(WrOpcode.RDMA_READ, local, size, remote=remote, wr_id=9, offset=4)
    pair.run()
    (wc,) = pair.a.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (9, WcStatus.SUCCESS, WcOpcode.RDMA_READ)
    assert wc.byte_len == size
    assert (local.data[4 : 4 + size] == remote.data[:size]).all()
    assert not local.data[4 + size :].any()
    assert local.guards_hold()


@pytest.mark.parametrize("with_imm", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_send_arrives_in_the_posted_receive(size: int, with_imm: bool) -> None:
    pair = Pair(1024)
    source, target = pair.a.region(size + 1), pair.b.region(size + 1)
    source.data[:] = pattern(size + 1)
    pair.b.recv(target, size + 1, wr_id=5)
    opcode = WrOpcode.SEND_WITH_IMM if with_imm else WrOpcode.SEND
    pair.a.send(opcode, source, size, imm=0xDEADBEEF)
    pair.run()
    (wc,) = pair.b.poll()
    assert (wc.wr_id, wc.status, wc.opcode) == (5, WcStatus.SUCCESS, WcOpcode.RECV)
    assert wc.byte_len == size
    assert wc.imm == (0xDEADBEEF if with_imm else 0)
    assert (target.data[:size] == source.data[:size]).all()
    assert target.data[size] == 0
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_write_with_immediate_consumes_a_receive(size: int) -> None:
    pair = Pair(1024)
    source, target, unused = pair.a.region(size + 1), pair.b.region(size + 1), pair.b.region(8)
    source.data[:] = pattern(size + 1)
    pair.b.recv(unused, 8, wr_id=3)
    pair.a.send(WrOpcode.RDMA_WRITE_WITH_IMM, source, size, remote=target, imm=77)
    pair.run()
    (wc,) = pair.b.poll()
    assert (wc.wr_id, wc.opcode, wc.imm) == (3, WcOpcode.RECV_RDMA_WITH_IMM, 77)
    assert wc.byte_len == size
    assert (target.data[:size] == source.data[:size]).all()
    assert not unused.data.any()


@pytest.mark.parametrize("first_psn", [0xFFFFFF, 0xFFFFFE, 0xFFFFF0, 0x7FFFFF, 0])
def test_sequence_numbers_wrap_in_the_middle_of_messages(first_psn: int) -> None:
    pair = Pair(256, first_psn=first_psn)
    source, target, back = pair.a.region(20_000), pair.b.region(20_000), pair.a.region(20_000)
    source.data[:] = pattern(20_000)
    pair.a.send(WrOpcode.RDMA_WRITE, source, 20_000, remote=target)
    pair.a.send(WrOpcode.RDMA_READ, back, 20_000, remote=target)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS] * 2
    assert (back.data == source.data).all()


def test_completions_come_in_the_order_of_posting() -> None:
    pair = Pair(1024)
    local, remote = pair.a.region(4096), pair.b.region(4096)
    operations = [WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ] * 20
    for wr_id, opcode in enumerate(operations):
        pair.a.send(opcode, local, 4096, remote=remote, wr_id=wr_id)
    pair.run()
    assert [int(wc.wr_id) for wc in pair.a.poll()] == list(range(len(operations)))


def test_unsignaled_success_is_silent_and_unsignaled_failure_is_not() -> None:
    pair = Pair()
    local, remote = pair.a.region(64), pair.b.region(64)
    pair.a.send(WrOpcode.RDMA_WRITE, local, 64, remote=remote, signaled=False)
    pair.run()
    assert pair.a.poll() == []
    pair.a.send(WrOpcode.RDMA_WRITE, local, 64, remote=remote, rkey=1, signaled=False, wr_id=4)
    pair.run()
    (wc,) = pair.a.poll()
    assert (wc.wr_id, wc.status) == (4, WcStatus.REM_ACCESS_ERR)


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_wrong_rkey_fails_both_ends_and_touches_nothing(opcode: WrOpcode) -> None:
    pair = Pair()
    local, remote = pair.a.region(5000), pair.b.region(5000)
    local.data[:] = 1
    pair.b.recv(remote, 100, wr_id=11)
    pair.a.send(opcode, local, 5000, remote=remote, rkey=remote.key ^ 1, wr_id=1)
    pair.a.send(WrOpcode.SEND, local, 10, wr_id=2)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR, WcStatus.WR_FLUSH_ERR]
    (flushed,) = pair.b.poll()
    assert (flushed.wr_id, flushed.status) == (11, WcStatus.WR_FLUSH_ERR)
    assert pair.a.state == pair.b.state == QpState.ERR
    assert not remote.data.any()
    assert (local.data == 1).all()


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 10), (1, 4096), (4096, 1), (5000, 1), (-(1 << 40), 1)]
)
@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_range_outside_the_remote_region_is_refused(
    opcode: WrOpcode, offset: int, length: int
) -> None:
    pair = Pair()
    local, remote = pair.a.region(8192), pair.b.region(4096)
    pair.a.send(opcode, local, length, remote=remote, remote_offset=offset)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]
    assert remote.guards_hold()


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_an_empty_transfer_checks_no_key(opcode: WrOpcode) -> None:
    pair = Pair()
    local, remote = pair.a.region(8), pair.b.region(8)
    pair.a.send(opcode, local, 0, remote=remote, rkey=0)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]


@pytest.mark.parametrize(
    ("opcode", "granted"),
    [
        (WrOpcode.RDMA_WRITE, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ),
        (WrOpcode.RDMA_READ, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE),
    ],
)
def test_a_region_without_the_permission_is_refused(opcode: WrOpcode, granted: AccessFlags) -> None:
    pair = Pair()
    local, remote = pair.a.region(64), pair.b.region(64, granted)
    pair.a.send(opcode, local, 64, remote=remote)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]


def test_a_region_of_another_protection_domain_is_refused() -> None:
    from tests.support.roce_pair import ALL_ACCESS, Region

    pair = Pair()
    local, foreign = pair.a.region(64), Region(pair.b.engine, 64, ALL_ACCESS, pd=2)
    pair.a.send(WrOpcode.RDMA_WRITE, local, 64, remote=foreign)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]


def test_a_deregistered_region_is_refused_even_when_its_entry_is_used_again() -> None:
    pair = Pair()
    local, remote = pair.a.region(64), pair.b.region(64)
    pair.b.engine.regions.deregister(remote.key)
    again = pair.b.region(64)
    assert again.key >> 8 == remote.key >> 8
    pair.a.send(WrOpcode.RDMA_WRITE, local, 64, remote=remote)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]
    assert not again.data.any()


def test_deregistering_in_the_middle_of_a_read_ends_it_with_a_nak() -> None:
    pair = Pair(256)
    local, remote = pair.a.region(200_000), pair.b.region(200_000)
    pair.a.send(WrOpcode.RDMA_READ, local, 200_000, remote=remote)
    pair.step()
    pair.b.engine.regions.deregister(remote.key)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_ACCESS_ERR]


@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_a_wrong_lkey_is_a_local_error_after_what_was_posted_before(opcode: WrOpcode) -> None:
    pair = Pair()
    local, remote = pair.a.region(64), pair.b.region(64)
    bad = pair.a.region(64, AccessFlags.REMOTE_READ)
    if opcode != WrOpcode.RDMA_READ:
        bad.key += 1
    pair.b.recv(remote, 64)
    pair.a.send(WrOpcode.RDMA_WRITE, local, 64, remote=remote, wr_id=1)
    pair.a.send(opcode, bad, 64, remote=remote, wr_id=2)
    pair.run()
    done = pair.a.poll()
    assert [int(wc.wr_id) for wc in done] == [1, 2]
    assert statuses(done) == [WcStatus.SUCCESS, WcStatus.LOC_PROT_ERR]


def test_a_message_longer_than_the_receive_fails_both_ends() -> None:
    pair = Pair(256)
    source, target = pair.a.region(1000), pair.b.region(1000)
    source.data[:] = 1
    pair.b.recv(target, 600)
    pair.a.send(WrOpcode.SEND, source, 1000)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_INV_REQ_ERR]
    assert statuses(pair.b.poll()) == [WcStatus.LOC_LEN_ERR]
    assert not target.data[600:].any()


def test_a_receive_without_local_permission_is_a_remote_operation_error() -> None:
    pair = Pair()
    source, target = pair.a.region(64), pair.b.region(64, AccessFlags.REMOTE_READ)
    pair.b.recv(target, 64)
    pair.a.send(WrOpcode.SEND, source, 64)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.REM_OP_ERR]
    assert statuses(pair.b.poll()) == [WcStatus.LOC_PROT_ERR]


def test_a_late_receive_is_waited_for() -> None:
    pair = Pair(256, QpOptions(ack_timeout_code=8, min_rnr_timer_code=1))
    source, target = pair.a.region(1000), pair.b.region(1000)
    source.data[:] = pattern(1000)
    pair.a.send(WrOpcode.SEND, source, 1000)
    for _ in range(50):
        pair.step()
    assert pair.a.poll() == []
    assert pair.b.engine.counters()["rnr_nak_sent"] > 1
    pair.b.recv(target, 1000)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    assert (target.data == source.data).all()
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 0


def test_receiver_not_ready_ends_when_its_retries_are_used_up() -> None:
    pair = Pair(256, QpOptions(rnr_retry_count=3, min_rnr_timer_code=1))
    pair.a.send(WrOpcode.SEND, pair.a.region(10), 10)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.RNR_RETRY_EXC_ERR]
    assert pair.b.engine.counters()["rnr_nak_sent"] == 4


def test_a_silent_peer_ends_the_queue_pair_after_the_retries() -> None:
    pair = Pair(256, QpOptions(retry_count=2, ack_timeout_code=8))
    local, remote = pair.a.region(1000), pair.b.region(1000)
    pair.to_b = lambda frames: []
    pair.a.send(WrOpcode.RDMA_WRITE, local, 1000, remote=remote, wr_id=1)
    pair.a.send(WrOpcode.RDMA_READ, local, 1000, remote=remote, wr_id=2)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.RETRY_EXC_ERR, WcStatus.WR_FLUSH_ERR]
    assert pair.a.engine.counters()["local_ack_timeout_err"] == 3
    assert pair.a.state == QpState.ERR


def test_failing_a_queue_pair_flushes_both_queues_in_order() -> None:
    pair = Pair()
    local = pair.a.region(64)
    for wr_id in range(5):
        pair.a.recv(local, 64, wr_id=100 + wr_id)
        pair.a.send(WrOpcode.SEND, local, 64, wr_id=wr_id, signaled=False)
    pair.a.engine.qps.fail(pair.a.qp)
    done = pair.a.poll()
    assert [int(wc.wr_id) for wc in done] == [*range(5), *range(100, 105)]
    assert set(statuses(done)) == {WcStatus.WR_FLUSH_ERR}
    pair.a.send(WrOpcode.SEND, local, 64, wr_id=5, signaled=False)
    pair.a.recv(local, 64, wr_id=105)
    later = pair.a.poll()
    assert [int(wc.wr_id) for wc in later] == [5, 105]
    assert set(statuses(later)) == {WcStatus.WR_FLUSH_ERR}


def test_a_full_queue_takes_none_of_a_batch() -> None:
    pair = Pair(options=QpOptions(max_send_wr=4, max_recv_wr=4))
    local, remote = pair.a.region(8), pair.b.region(8)
    for _ in range(4):
        pair.a.send(WrOpcode.RDMA_WRITE, local, 8, remote=remote)
        pair.a.recv(local, 8)
    with pytest.raises(QueueFullError):
        pair.a.send(WrOpcode.RDMA_WRITE, local, 8, remote=remote)
    with pytest.raises(QueueFullError):
        pair.a.recv(local, 8)
    pair.run()
    assert len(pair.a.poll()) == 4
    pair.a.send(WrOpcode.RDMA_WRITE, local, 8, remote=remote)


def test_queue_pair_numbers_are_not_used_again_soon() -> None:
    pair = Pair()
    seen = set()
    for _ in range(100):
        index = pair.a.new_qp()
        seen.add(pair.a.engine.qps.number(index))
        pair.a.engine.qps.destroy(index)
    assert len(seen) == 100


@pytest.mark.parametrize("order", ["as they came", "from the last", "the first last"])
def test_queue_pairs_that_are_gone_cost_a_burst_nothing(order: str) -> None:
    """It looks at records up to the last one in use."""
    pair = Pair()
    qps = pair.a.engine.qps
    nic, before = qps._nic, int(qps._nic.qp_high)
    made = [pair.a.new_qp() for _ in range(20)]
    assert nic.qp_high == before + 20
    if order == "from the last":
        made.reverse()
    elif order == "the first last":
        made = [*made[1:], made[0]]
    for position, index in enumerate(made):
        qps.destroy(index)
        rest = made[position + 1 :]
        assert nic.qp_high == max([before, *(i + 1 for i in rest)])
    local, remote = pair.a.region(8), pair.b.region(8)
    pair.a.send(WrOpcode.RDMA_WRITE, local, 8, remote=remote)
    pair.run()
    assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
    qps.destroy(pair.a.qp)
    assert nic.qp_high == 0
    assert pair.a.transmit(0) == []
    assert pair.a.engine.next_deadline() >= 1 << 61


def test_connecting_twice_is_an_illegal_transition() -> None:
    pair = Pair()
    with pytest.raises(VerbsError, match="RTS to RTR"):
        pair.a.connect(pair.b, 1024)


def test_a_full_completion_queue_is_reported() -> None:
    pair = Pair()
    small = pair.a.engine.cqs.create(2)
    pair.a.engine.qps.table[pair.a.qp].send_cq = small
    pair.a.cq = small
    local, remote = pair.a.region(8), pair.b.region(8)
    for _ in range(3):
        pair.a.send(WrOpcode.RDMA_WRITE, local, 8, remote=remote)
    pair.run()
    with pytest.raises(VerbsError, match="overrun"):
        pair.a.poll()
    assert pair.a.engine.counters()["cq_overflow"] == 1
