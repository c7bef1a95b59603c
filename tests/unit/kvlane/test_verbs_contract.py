"""What every backend of the verbs holds to, whoever made it: one set of tests for all."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.calls import FAULT, PostResult
from kvlane.verbs.enums import (
    AccessFlags,
    QpState,
    SendFlags,
    WcFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from kvlane.verbs.protocols import CompletionQueue, Device, QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, RecordArray, new_records
from tests.support import call_kernels
from tests.support.verbs_backends import ALL_ACCESS, BACKEND_NAMES, PATIENCE_S, Pair, device_of

HOUR_MS = 3_600_000.0
QUICK_FAILURE = QpOptions(ack_timeout_code=8, retry_count=1)


@pytest.fixture(params=BACKEND_NAMES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with device_of(request.param) as opened:
        yield opened


@pytest.fixture
def pair(device: Device) -> Pair:
    return Pair(device).connect()


# Memory


def test_allocated_memory_is_whole_pages_of_zeros(device: Device) -> None:
    memory = device.alloc(100_000)
    assert memory.nbytes == 100_000
    assert memory.ctypes.data % mmap.PAGESIZE == 0
    assert not memory.any()
    memory[:] = 1


def test_a_region_is_exactly_its_array(device: Device) -> None:
    memory = device.alloc(8192)
    region = device.register(memory[100:200], ALL_ACCESS)
    assert (region.addr, region.length) == (memory.ctypes.data + 100, 100)


@pytest.mark.parametrize("access", [AccessFlags.LOCAL_WRITE, AccessFlags.REMOTE_WRITE])
def test_read_only_memory_is_not_registered_for_writing(
    device: Device, access: AccessFlags
) -> None:
    memory = np.frombuffer(bytes(64), np.uint8)
    with pytest.raises(VerbsError, match="read-only"):
        device.register(memory, access)
    device.register(memory, AccessFlags.REMOTE_READ).close()


def test_remote_writing_needs_local_writing(device: Device) -> None:
    with pytest.raises(VerbsError, match="local write"):
        device.register(device.alloc(64), AccessFlags.REMOTE_WRITE)


def test_memory_with_gaps_is_not_registered(device: Device) -> None:
    with pytest.raises(VerbsError, match="contiguous"):
        device.register(np.zeros((8, 8), np.uint8)[:, ::2], AccessFlags.REMOTE_READ)


def test_registered_memory_lives_until_it_is_deregistered(device: Device) -> None:
    memory = np.zeros(4096, np.uint8)
    alive = weakref.ref(memory)
    region = device.register(memory, ALL_ACCESS)
    del memory
    gc.collect()
    assert alive() is not None
    region.close()
    region.close()
    gc.collect()
    assert alive() is None


def test_nobody_reads_by_a_key_that_was_given_back(pair: Pair) -> None:
    pair.far_region.close()
    pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_READ))
    assert pair.completions(1).status[0] == WcStatus.REM_ACCESS_ERR
    assert not pair.near_bytes.any()


# Traffic


@pytest.mark.parametrize("opcode", [WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_bytes_arrive(pair: Pair, opcode: WrOpcode) -> None:
    content = np.random.default_rng(opcode).integers(1, 256, Pair.NBYTES, np.uint8)
    (pair.far_bytes if opcode is WrOpcode.RDMA_READ else pair.near_bytes)[:] = content
    pair.far.post_recv(pair.receives())
    pair.near.post_send(pair.sends(opcode=opcode))
    done = pair.completions(2 if opcode is WrOpcode.SEND else 1)
    assert (done.status == WcStatus.SUCCESS).all()
    assert (pair.near_bytes == content).all()
    assert (pair.far_bytes == content).all()


def test_a_completion_tells_what_it_completes(pair: Pair) -> None:
    big, negative = (1 << 63) - 1, -5
    pair.far.post_recv(pair.receives(wr_id=negative))
    pair.near.post_send(
        pair.sends(opcode=WrOpcode.SEND_WITH_IMM, wr_id=big, length=100, imm=0x01020304)
    )
    by_end = {int(done.qp_num): done for done in pair.completions(2)}
    sent, came = by_end[pair.near.endpoint.qp_num], by_end[pair.far.endpoint.qp_num]
    assert (sent.wr_id, sent.opcode) == (big, WcOpcode.SEND)
    assert (came.wr_id, came.opcode, came.byte_len) == (negative, WcOpcode.RECV, 100)
    assert came.wc_flags & WcFlags.WITH_IMM
    assert came.imm == 0x01020304


def test_a_batch_goes_out_in_its_order(pair: Pair) -> None:
    count = 100
    pair.near_bytes[:count] = np.arange(count)
    places = pair.far_region.addr + np.arange(count)
    pair.far.post_recv(pair.receives(count, local_addr=places, length=1))
    starts = pair.near_region.addr + np.arange(count)
    pair.near.post_send(pair.sends(count, local_addr=starts, length=1))
    done = pair.completions(2 * count)
    assert (done.status == WcStatus.SUCCESS).all()
    for end in (pair.near, pair.far):
        of_end = done[done.qp_num == end.endpoint.qp_num]
        assert of_end.wr_id.tolist() == list(range(count))
    assert (pair.far_bytes[:count] == np.arange(count)).all()


def test_batches_of_all_sizes_follow_each_other(pair: Pair) -> None:
    for count in (1, 7, 3, 64, 2, 64, 1):
        pair.far_bytes[:] = 0
        pair.near_bytes[:count] = 1 + np.arange(count)
        steps = np.arange(count)
        writes = pair.sends(
            count,
            WrOpcode.RDMA_WRITE,
            local_addr=pair.near_region.addr + steps,
            remote_addr=pair.far_region.addr + steps,
            length=1,
        )
        pair.near.post_send(writes)
        assert pair.completions(count).wr_id.tolist() == list(range(count))
        assert pair.far_bytes[: count + 1].tolist() == [*range(1, count + 1), 0]


def test_polling_takes_no_more_than_asked_and_loses_none(pair: Pair) -> None:
    pair.near.post_send(pair.sends(10, WrOpcode.RDMA_WRITE))
    assert pair.completions(3).wr_id.tolist() == [0, 1, 2]
    assert pair.completions(7).wr_id.tolist() == list(range(3, 10))
    assert pair.cq.poll(new_records(WC, 5)) == 0


# Sums


@pytest.mark.parametrize("nbytes", [0, 1, 3, 64, 4096, 4097, 9000, Pair.NBYTES])
def test_a_read_continues_the_sums_that_it_is_given(pair: Pair, nbytes: int) -> None:
    if not pair.device.calls.sums_reads:
        with pytest.raises(VerbsError, match="sum_addr"):
            pair.near.post_send(
                pair.sends(opcode=WrOpcode.RDMA_READ, sum_addr=pair.near_region.addr)
            )
        return
    pair.far_bytes[:] = np.random.default_rng(nbytes).integers(0, 256, Pair.NBYTES, np.uint8)
    sums = np.array([0xAAAAAAAA, 0, 7, 0, 0xAAAAAAAA], np.uint32)
    half = nbytes // 2
    reads = pair.sends(4, WrOpcode.RDMA_READ)
    reads.length = [nbytes, half, nbytes - half, nbytes]
    reads.local_addr += [0, 0, half, 0]
    reads.remote_addr += [0, 0, half, 0]
    reads.sum_addr = int(sums.ctypes.data) + 4 * np.array([1, 2, 2, 3])
    reads.sum_addr[3] = 0
    pair.near.post_send(reads)
    assert (pair.completions(4).status == WcStatus.SUCCESS).all()
    data = pair.far_bytes[:nbytes].tobytes()
    assert sums.tolist() == [0xAAAAAAAA, zlib.crc32(data), zlib.crc32(data, 7), 0, 0xAAAAAAAA]


# Slots


def test_a_batch_that_does_not_fit_is_not_posted_at_all(device: Device) -> None:
    pair = Pair(device, QpOptions(max_send_wr=4, max_recv_wr=4)).connect()
    with pytest.raises(QueueFullError):
        pair.near.post_send(pair.sends(5, WrOpcode.RDMA_WRITE))
    pair.near_bytes[:] = 7
    with pytest.raises(QueueFullError):
        pair.far.post_recv(pair.receives(5))
    pair.near.post_send(pair.sends(4, WrOpcode.RDMA_WRITE, wr_id=np.arange(40, 44)))
    assert pair.completions(4).wr_id.tolist() == [40, 41, 42, 43]
    pair.far.post_recv(pair.receives(4))
    with pytest.raises(QueueFullError):
        pair.far.post_recv(pair.receives(1))


def test_a_completion_frees_the_unsignaled_requests_before_it(device: Device) -> None:
    pair = Pair(device, QpOptions(max_send_wr=4)).connect()
    for _ in range(5):
        flags = [0, 0, 0, SendFlags.SIGNALED]
        pair.near.post_send(pair.sends(4, WrOpcode.RDMA_WRITE, send_flags=flags))
        assert pair.completions(1).wr_id.tolist() == [3]


def test_a_receive_frees_its_slot(device: Device) -> None:
    pair = Pair(device, QpOptions(max_recv_wr=1)).connect()
    for number in range(3):
        pair.far.post_recv(pair.receives(wr_id=number))
        with pytest.raises(QueueFullError):
            pair.far.post_recv(pair.receives())
        pair.near.post_send(pair.sends())
        done = pair.completions(2)
        assert done.wr_id[done.opcode == WcOpcode.RECV].tolist() == [number]


def test_an_empty_batch_is_nothing(pair: Pair) -> None:
    pair.near.post_send(pair.sends(0))
    pair.far.post_recv(pair.receives(0))
    assert pair.cq.poll(new_records(WC, 1)) == 0


# States and ends


def test_nothing_is_sent_before_the_connection(device: Device) -> None:
    pair = Pair(device)
    assert pair.near.state is QpState.INIT
    pair.far.post_recv(pair.receives())
    with pytest.raises(VerbsError):
        pair.near.post_send(pair.sends())
    pair.connect()
    assert pair.near.state is QpState.RTS
    pair.near.post_send(pair.sends())
    assert (pair.completions(2).status == WcStatus.SUCCESS).all()


def test_a_connection_is_made_once(pair: Pair) -> None:
    with pytest.raises(VerbsError):
        pair.near.connect(pair.far.endpoint)


def test_an_error_ends_the_queue_pair_and_flushes_what_follows(pair: Pair) -> None:
    batch = pair.sends(3, WrOpcode.RDMA_WRITE, wr_id=[10, 11, 12])
    batch.rkey[0] ^= 0x5A00
    pair.near.post_send(batch)
    done = pair.completions(3)
    flushed = WcStatus.WR_FLUSH_ERR
    assert done.status.tolist() == [WcStatus.REM_ACCESS_ERR, flushed, flushed]
    assert done.wr_id.tolist() == [10, 11, 12]
    assert pair.near.state is QpState.ERR


def test_a_peer_that_is_gone_is_given_up(device: Device) -> None:
    pair = Pair(device, QUICK_FAILURE).connect()
    pair.far.close()
    pair.near.post_send(pair.sends(wr_id=9))
    (done,) = pair.completions(1)
    assert (done.status, done.wr_id) == (WcStatus.RETRY_EXC_ERR, 9)


def test_a_closed_queue_pair_takes_nothing_and_touches_no_other(device: Device) -> None:
    cq = device.create_cq(16)
    closed = device.create_qp(cq, QpOptions())
    endpoint = closed.endpoint
    closed.close()
    successor = device.create_qp(cq, QpOptions())
    for use in (
        lambda: closed.connect(endpoint),
        lambda: closed.post_send(new_records(SEND_WR, 1)),
        lambda: closed.post_recv(new_records(RECV_WR, 1)),
    ):
        with pytest.raises(VerbsError, match="closed"):
            use()
    closed.close()
    assert closed.state == QpState.RESET
    assert successor.state == QpState.INIT


def test_completions_of_a_closed_queue_pair_are_gone(device: Device) -> None:
    pair, other = Pair(device).connect(), Pair(device).connect()
    pair.far.post_recv(pair.receives())
    pair.near.post_send(pair.sends())
    first = pair.completions(1)  # the other one is there, or comes
    for end in (pair.near, pair.far):
        end.close()
    assert len(first) == 1
    other.near.post_send(other.sends(opcode=WrOpcode.RDMA_WRITE))
    other.completions(1)
    assert pair.cq.poll(new_records(WC, 4)) == 0


def test_a_closed_completion_queue_cannot_be_polled(device: Device) -> None:
    cq = device.create_cq(16)
    cq.close()
    cq.close()
    with pytest.raises(VerbsError, match="closed"):
        cq.poll(new_records(WC, 1))


def test_closing_the_device_closes_what_is_open(device: Device) -> None:
    Pair(device).connect()
    device.close()
    device.close()
    device.wait(HOUR_MS)


# Sleeping


def test_what_came_before_the_sleep_ends_it(pair: Pair) -> None:
    """The wake-up that is easily lost: all is done between the last poll and the sleep."""
    for _ in range(20):
        assert pair.cq.poll(new_records(WC, 1)) == 0
        pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, length=1))
        give_up = time.monotonic() + PATIENCE_S
        polled = 0
        while not polled:
            assert time.monotonic() < give_up
            if not pair.device.progress():
                pair.device.wait(HOUR_MS)
            polled = pair.cq.poll(new_records(WC, 1))


def test_a_sleeper_is_woken_by_its_descriptor(device: Device) -> None:
    wake = os.eventfd(0)
    try:
        with ThreadPoolExecutor() as pool:
            sleeper = pool.submit(device.wait, HOUR_MS, wake)
            os.eventfd_write(wake, 1)
            sleeper.result(PATIENCE_S)
    finally:
        os.close(wake)


def test_time_runs_out(device: Device) -> None:
    device.create_cq(1)
    device.wait(0.5)
    device.wait(0.0)
    assert not device.progress()


def test_every_sleeper_is_woken_when_the_device_closes(device: Device) -> None:
    device.create_cq(16)
    with ThreadPoolExecutor() as pool:
        sleepers = [pool.submit(device.wait, HOUR_MS) for _ in range(3)]
        device.close()
        for sleeper in sleepers:
            sleeper.result(PATIENCE_S)


def test_a_sleeper_hears_of_work_that_another_thread_posts(pair: Pair) -> None:
    def take_one() -> int:
        return int(pair.completions(1).wr_id[0])

    with ThreadPoolExecutor() as pool:
        for number in range(20):
            taker = pool.submit(take_one)
            pair.near.post_send(pair.sends(opcode=WrOpcode.RDMA_WRITE, wr_id=number, length=1))
            assert taker.result(PATIENCE_S) == number


def test_threads_may_post_and_poll_at_once(device: Device) -> None:
    pair, rounds = Pair(device, QpOptions(max_send_wr=64)).connect(), 50
    seen: list[int] = []

    def post(first: int) -> None:
        for number in range(first, first + rounds):
            request = pair.sends(opcode=WrOpcode.RDMA_WRITE, wr_id=number, length=1)
            while True:
                try:
                    pair.near.post_send(request)
                    break
                except QueueFullError:
                    device.wait(1.0)

    threads = [threading.Thread(target=post, args=(first,)) for first in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    seen.extend(pair.completions(3 * rounds).wr_id.tolist())
    for thread in threads:
        thread.join(PATIENCE_S)
    expected = [number for first in (0, 1000, 2000) for number in range(first, first + rounds)]
    assert sorted(seen) == expected
    for first in (0, 1000, 2000):
        own = [number for number in seen if first <= number < first + rounds]
        assert own == sorted(own)


def test_counters_are_numbers_by_name(device: Device) -> None:
    assert all(type(value) is int for value in device.counters().values())
    assert device.name
    assert device.max_message_bytes >= 1 << 20


# The verbs by address


def drive(device: Device, cq: CompletionQueue, count: int) -> RecordArray:
    """Exactly ``count`` completions, by ``device.calls`` alone."""
    out, rounds = new_records(WC, count), 100_000
    with device.hold():
        came = call_kernels.drive(device.calls, cq.handle, out.ctypes.data, count, rounds)
    assert came == count, device.take_fault()
    return out


def post(pair: Pair, receive: bool, requests: RecordArray) -> int:
    """Post by address; what that answers."""
    qp = pair.far if receive else pair.near
    with pair.device.hold():
        return call_kernels.post(
            pair.device.calls, qp.handle, receive, requests.ctypes.data, len(requests)
        )


def test_kernels_post_and_poll_by_address(pair: Pair) -> None:
    pair.near_bytes[:] = 5
    assert post(pair, True, pair.receives(1, wr_id=77)) == PostResult.POSTED
    requests = pair.sends(2)
    requests.opcode[0] = WrOpcode.RDMA_WRITE
    assert post(pair, False, requests) == PostResult.POSTED
    came = drive(pair.device, pair.cq, 3)
    assert sorted(came.wr_id.tolist()) == [0, 1, 77]
    assert not came.status.any()
    assert (pair.far_bytes == 5).all()
    assert pair.device.take_fault() is None


def test_a_full_queue_answers_so_and_takes_none(device: Device) -> None:
    pair = Pair(device, QpOptions(max_send_wr=4)).connect()
    requests = pair.sends(5, opcode=WrOpcode.RDMA_WRITE)
    assert post(pair, False, requests) == PostResult.QUEUE_FULL
    assert post(pair, False, requests[:4]) == PostResult.POSTED
    assert drive(device, pair.cq, 4).wr_id.tolist() == [0, 1, 2, 3]
    assert device.take_fault() is None


def test_what_a_call_cannot_do_is_kept_as_its_fault(pair: Pair) -> None:
    pair.near.close()
    assert post(pair, False, pair.sends()) == FAULT
    assert isinstance(pair.device.take_fault(), VerbsError)
    assert pair.device.take_fault() is None


@pytest.mark.parametrize("timeout_ns", [0, -1, -(1 << 40)])
def test_a_sleep_whose_time_is_over_ends_at_once(device: Device, timeout_ns: int) -> None:
    device.create_cq(1)
    with device.hold():
        assert call_kernels.sleep_for(device.calls, timeout_ns, False) == 0
    assert device.take_fault() is None


def test_who_wants_a_held_device_is_heard(pair: Pair) -> None:
    """The holder learns of him, or nobody need wait because the device is not locked at all."""
    device = pair.device
    with ThreadPoolExecutor() as pool, device.hold():
        other = pool.submit(lambda: pair.near.state)
        give_up = time.monotonic() + PATIENCE_S
        while not call_kernels.is_wanted(device.calls) and not other.done():
            assert time.monotonic() < give_up
    assert other.result(PATIENCE_S) is QpState.RTS


def test_a_holder_who_sleeps_is_woken_by_who_wants_the_device(device: Device) -> None:
    device.create_cq(1)
    asleep = threading.Event()

    def hold_and_sleep() -> int:
        with device.hold():
            asleep.set()
            return call_kernels.sleep_for(device.calls, int(HOUR_MS * 1e6), False)

    with ThreadPoolExecutor() as pool:
        holder = pool.submit(hold_and_sleep)
        asleep.wait(PATIENCE_S)
        device.close()
        assert holder.result(PATIENCE_S) == 0
