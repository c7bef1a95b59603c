"""Held: jobs keep their order whatever is withdrawn, and compiled code stays as long as told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_driver import _queue_kernels as kernels
from host_driver.commands import ExistOperation, Request
from host_driver.jobs import NO_MOVES, Batch, Job, Moves, full_spans
from host_driver.queue_records import JOB, QUEUE, Left
from kvlane.capsule import KEY_RESULT, CommandFlags, KeyStatus, Opcode
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from kvlane.rawmem import bytes_at
from kvlane.verbs.enums import WrOpcode
from kvlane.verbs.records import new_records
from tests.support.scripted_agent import Received, Rig

FOR_EVER_NS = 1 << 62
HOUR_NS = 3_600_000_000_000


def job(count: int = 1) -> Job:
    keys = np.zeros((count, 32), np.uint8)
    return Job(Opcode.EXIST, Batch(keys, full_spans(count), np.zeros(count, np.uint8)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.just(-1), st.integers(0, 30)), max_size=40))
def test_the_waiting_keep_their_order_whatever_is_withdrawn(steps: list[int]) -> None:
    """-1 appends a job, another number withdraws one that waits, or that does not any more."""
    queue = new_records(QUEUE, 1)
    address = int(queue.ctypes.data)
    made: list[Job] = []
    waiting: list[Job] = []
    for step in steps:
        if step < 0:
            made.append(job())
            waiting.append(made[-1])
            kernels.enqueue(address, made[-1].address)
            kernels.enqueue(address, made[-1].address)  # again does nothing
        elif made:
            gone = made[step % len(made)]
            kernels.withdraw(address, gone.address)
            waiting = [item for item in waiting if item is not gone]
        left: list[Job] = []
        by_address = {item.address: item for item in made}
        for item in waiting:
            first = by_address[int(queue.waiting_head[0])]
            assert first is item
            kernels.withdraw(address, first.address)
            left.append(first)
        assert queue.waiting_head[0] == queue.waiting_tail[0] == 0
        made = [item for item in made if item not in left]
        waiting = [job() for _ in left]
        made += waiting
        for item in waiting:
            kernels.enqueue(address, item.address)


@pytest.mark.parametrize(
    ("count", "spans"),
    [
        (1, [(0, 1)]),
        (MAX_KEYS_PER_CAPSULE, [(0, MAX_KEYS_PER_CAPSULE)]),
        (
            MAX_KEYS_PER_CAPSULE + 1,
            [(0, MAX_KEYS_PER_CAPSULE), (MAX_KEYS_PER_CAPSULE, MAX_KEYS_PER_CAPSULE + 1)],
        ),
    ],
)
def test_spans_are_as_few_as_fit(count: int, spans: list[tuple[int, int]]) -> None:
    assert [tuple(span) for span in full_spans(count).tolist()] == spans


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=20),
    st.lists(st.booleans(), max_size=200),
    st.randoms(use_true_random=False),
)
def test_every_answer_goes_to_its_own_keys(
    sizes: list[int], late: list[bool], order: object
) -> None:
    """Answers in any order, SENDs that complete before or after them."""
    rig = Rig(depth=3)
    operations = []
    for number, size in enumerate(sizes):
        keys = np.zeros((size, 32), np.uint8)
        keys[:, 0], keys[:, 1] = number, np.arange(size)
        operations.append(ExistOperation(Request(keys, FOR_EVER_NS)))
        rig.queue.submit(operations[-1])
    unanswered: list[Received] = []
    while not all(operation.ended for operation in operations):
        rig.completions.hold_sends = bool(late and late.pop())
        rig.pump()
        unanswered += rig.agent.commands()
        assert rig.queue.in_flight <= 3
        order.shuffle(unanswered)  # type: ignore[attr-defined]
        if unanswered:
            item = unanswered.pop()
            stored = (item.command.keys[:, 0] + item.command.keys[:, 1]) % 2
            statuses = np.where(stored, KeyStatus.OK, KeyStatus.NOT_FOUND).astype(np.uint8)
            rig.agent.answer(item, results=statuses)
    rig.completions.hold_sends = False
    rig.pump()
    for number, operation in enumerate(operations):
        wanted = [(number + i) % 2 == 1 for i in range(sizes[number])]
        assert operation.result().tolist() == wanted
    assert rig.queue.idle


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.device.close()


def run(rig: Rig, *, may_sleep: bool = True, limit_ns: int = HOUR_NS) -> Left:
    return rig.queue.run(0, limit_ns, may_sleep=may_sleep, wake_fd=-1)


def test_it_comes_back_when_a_job_has_finished(rig: Rig) -> None:
    operation = ExistOperation(Request(np.zeros((1, 32), np.uint8), FOR_EVER_NS))
    rig.queue.submit(operation)
    assert run(rig, may_sleep=False) is Left.IDLE
    rig.agent.answer(rig.agent.commands()[0])
    assert run(rig) is Left.DONE
    assert not operation.ended  # that is for ``settle``
    assert rig.queue.settle(0)
    assert operation.result().all()


def test_it_comes_back_when_it_is_interrupted_or_time_is_up(rig: Rig) -> None:
    rig.queue.interrupt()
    assert run(rig) is Left.ASKED
    rig.queue.clear_interrupt()
    assert run(rig, limit_ns=1) is Left.ASKED

    def interrupt() -> None:
        rig.queue.interrupt()
        rig.device.notify()

    sleeper = threading.Timer(0.01, interrupt)
    sleeper.start()
    assert run(rig) is Left.ASKED
    sleeper.join()


def test_a_broken_connection_is_told_by_settling(rig: Rig) -> None:
    operation = ExistOperation(Request(np.zeros((1, 32), np.uint8), FOR_EVER_NS))
    rig.queue.submit(operation)
    rig.fabric.hold(WrOpcode.SEND)
    assert run(rig, may_sleep=False) is Left.IDLE
    rig.qp.break_down()
    assert run(rig) is Left.FAILED
    rig.queue.settle(0)
    assert "WR_FLUSH_ERR" in str(operation.error)
    assert rig.queue.failure is not None


def test_more_than_a_burst_leaves_in_one_turn_and_in_order() -> None:
    """Credits, not the length of what is posted together, say how much is under way."""
    rig = Rig(depth=4)
    for number in range(5):
        keys = np.full((MAX_KEYS_PER_CAPSULE, 32), number, np.uint8)
        rig.queue.submit(ExistOperation(Request(keys, FOR_EVER_NS)))
    rig.pump()
    received = rig.agent.commands()
    assert [int(item.command.keys[-1, -1]) for item in received] == [0, 1, 2, 3]
    rig.agent.answer(received[2])
    rig.pump()
    (last,) = rig.agent.commands()
    assert int(last.command.keys[0, 0]) == 4


def test_a_job_says_what_it_was_made_of() -> None:
    count = 3
    keys = np.zeros((count, 32), np.uint8)
    addrs, rkeys, lengths = (np.arange(n, n + count, dtype=np.int64) for n in (10, 20, 30))
    batch = Batch(keys, full_spans(count), np.zeros(count, KEY_RESULT))
    without = Moves(addrs, rkeys, lengths)
    summed = without._replace(checksums=np.zeros(count, np.uint32))
    for moves in (NO_MOVES, without, summed):
        made = Job(Opcode.STORE, batch, moves, CommandFlags.CHECKSUM)
        record = bytes_at(made.address, JOB.itemsize).view(JOB).view(np.recarray)[0]
        assert (record.opcode, record.command_flags) == (Opcode.STORE, CommandFlags.CHECKSUM)
        assert (record.keys, record.results) == (keys.ctypes.data, batch.results.ctypes.data)
        named = (record.addrs, record.rkeys, record.lengths, record.checksums)
        assert list(named) == [part.ctypes.data if len(part) else 0 for part in moves]
        assert record.spans == batch.spans.ctypes.data
        assert (record.span_count, record.open_spans) == (1, 1)
        assert (record.next_span, record.refusal, record.linked, record.next_job) == (0,) * 4
        assert made.in_flight == made.refusal == 0
