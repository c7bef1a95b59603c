"""Held: every command ends exactly once, credits are kept, and no answer goes to another command.

The queue runs over NICs in memory against an agent that answers what a test says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from host_driver.commands import (
    DeleteOperation,
    ExistOperation,
    Operation,
    Request,
)
from host_driver.matching import MatchOperation
from kvlane.capsule import CommandStatus, KeyArray, KeyStatus, Opcode
from kvlane.errors import (
    CreditError,
    DeadlineError,
    DrainingError,
    KvlaneError,
    ProtocolError,
    SessionNotFoundError,
    TransferError,
)
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from kvlane.verbs.enums import QpState
from tests.support.scripted_agent import Forgery, Received, Rig

TIMEOUT_MS = 1000


def keys_of(count: int, first: int = 0) -> KeyArray:
    keys = np.zeros((count, 32), np.uint8)
    keys[:, :4] = np.arange(first, first + count, dtype="<u4").view(np.uint8).reshape(count, 4)
    return keys


class Probe:
    """An operation under test, and how often it said that it ended."""

    def __init__(
        self,
        rig: Rig,
        kind: type[Operation[Any]],
        keys: KeyArray,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        deadline_ns = rig.now_ns + timeout_ms * 1_000_000
        self.operation = kind(Request(keys, deadline_ns))
        self.ends = 0
        self.operation.when_ended(self._count)
        rig.queue.submit(self.operation)

    def _count(self) -> None:
        self.ends += 1

    @property
    def error(self) -> KvlaneError | None:
        """What it failed with; it must have ended, once."""
        assert self.ends == 1
        return self.operation.error

    @property
    def result(self) -> Any:
        """What it returned; it must have ended well, once."""
        assert self.error is None
        return self.operation.result()


@pytest.fixture
def rig() -> Rig:
    return Rig(depth=4)


def exist(rig: Rig, first: int = 0, count: int = 1, timeout_ms: int = TIMEOUT_MS) -> Probe:
    return Probe(rig, ExistOperation, keys_of(count, first), timeout_ms)


def first_keys(received: list[Received]) -> list[int]:
    return [int(item.command.keys[0, :4].view("<u4")[0]) for item in received]


def test_a_command_is_sent_and_its_answer_comes_back(rig: Rig) -> None:
    probe = Probe(rig, DeleteOperation, keys_of(3))
    rig.pump()
    (received,) = rig.agent.commands()
    assert received.command.opcode is Opcode.DELETE
    assert np.array_equal(received.command.keys, keys_of(3))
    assert probe.ends == 0
    rig.agent.answer(received, results=np.array([0, 2, 0], np.uint8))
    rig.pump()
    assert probe.result.tolist() == [KeyStatus.OK, KeyStatus.NOT_FOUND, KeyStatus.OK]
    assert rig.queue.idle


def test_never_more_commands_than_credits_and_first_come_first_sent() -> None:
    rig = Rig(depth=8, granted=3)
    probes = [exist(rig, first) for first in range(7)]
    rig.pump()
    in_flight = rig.agent.commands()
    assert first_keys(in_flight) == [0, 1, 2]
    assert rig.queue.in_flight == 3
    order = [0, 1, 2]
    while in_flight:
        rig.agent.answer(in_flight.pop(0))
        rig.pump()
        came = rig.agent.commands()
        order += first_keys(came)
        in_flight += came
        assert rig.queue.in_flight == len(in_flight) <= 3
    assert order == list(range(7))
    assert all(probe.result.all() for probe in probes)


def test_answers_may_come_in_any_order(rig: Rig) -> None:
    probes = [exist(rig, first) for first in range(3)]
    rig.pump()
    received = rig.agent.commands()
    for index in (2, 0, 1):
        status = KeyStatus.OK if index == 1 else KeyStatus.NOT_FOUND
        rig.agent.answer(received[index], key_status=status)
    rig.pump()
    assert [bool(probe.result[0]) for probe in probes] == [False, True, False]


def test_many_rounds_reuse_every_buffer(rig: Rig) -> None:
    for round_number in range(50):
        probes = [exist(rig, 10 * round_number + i) for i in range(4)]
        rig.pump()
        for received in rig.agent.commands():
            stored = int(received.command.keys[0, 0]) % 2
            status = KeyStatus.OK if stored else KeyStatus.NOT_FOUND
            rig.agent.answer(received, key_status=status)
        rig.pump()
        wanted = [bool((10 * round_number + i) % 256 % 2) for i in range(4)]
        assert [bool(probe.result[0]) for probe in probes] == wanted


def test_long_key_lists_are_split_and_their_results_merged(rig: Rig) -> None:
    count = 2 * MAX_KEYS_PER_CAPSULE + 5
    probe = exist(rig, count=count)
    rig.pump()
    received = rig.agent.commands()
    sizes = [len(item.command.keys) for item in received]
    assert sizes == [MAX_KEYS_PER_CAPSULE, MAX_KEYS_PER_CAPSULE, 5]
    for item, status in zip(received[::-1], (0, 2, 0), strict=True):
        assert probe.ends == 0
        rig.agent.answer(item, key_status=KeyStatus(status))
        rig.pump()
    wanted = np.ones(count, bool)
    wanted[MAX_KEYS_PER_CAPSULE : 2 * MAX_KEYS_PER_CAPSULE] = False
    assert np.array_equal(probe.result, wanted)


def test_a_match_goes_on_only_while_everything_matched(rig: Rig) -> None:
    probe = Probe(rig, MatchOperation, keys_of(3 * MAX_KEYS_PER_CAPSULE))
    for result, expected in ((MAX_KEYS_PER_CAPSULE, 0), (7, MAX_KEYS_PER_CAPSULE)):
        rig.pump()
        (received,) = rig.agent.commands()
        assert first_keys([received]) == [expected]
        assert probe.ends == 0
        rig.agent.answer(received, result=result)
    rig.pump()
    assert probe.result == MAX_KEYS_PER_CAPSULE + 7
    assert rig.agent.commands() == []


def test_a_match_of_everything_ends_with_the_last_key(rig: Rig) -> None:
    probe = Probe(rig, MatchOperation, keys_of(MAX_KEYS_PER_CAPSULE + 1))
    for result in (MAX_KEYS_PER_CAPSULE, 1):
        rig.pump()
        rig.agent.answer(rig.agent.commands()[0], result=result)
    rig.pump()
    assert probe.result == MAX_KEYS_PER_CAPSULE + 1


@pytest.mark.parametrize("kind", [ExistOperation, DeleteOperation, MatchOperation])
def test_without_keys_nothing_is_sent(rig: Rig, kind: type[Operation[Any]]) -> None:
    probe = Probe(rig, kind, keys_of(0))
    rig.pump()
    assert np.size(probe.result) == 0 or probe.result == 0
    assert rig.agent.commands() == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (CommandStatus.BAD_SESSION, SessionNotFoundError),
        (CommandStatus.TOO_MANY_IN_FLIGHT, CreditError),
        (CommandStatus.DRAINING, DrainingError),
        (CommandStatus.INTERNAL, TransferError),
        (CommandStatus.BAD_COUNT, ProtocolError),
    ],
)
def test_a_refused_command_fails_alone(
    rig: Rig, status: CommandStatus, kind: type[KvlaneError]
) -> None:
    refused, other = exist(rig, 0), exist(rig, 1)
    rig.pump()
    received = rig.agent.commands()
    rig.agent.answer(received[0], status=status)
    rig.agent.answer(received[1])
    rig.pump()
    assert type(refused.error) is kind
    assert status.name in str(refused.error)
    assert other.result.all()


def test_one_refused_part_fails_the_operation_after_all_parts_ended(rig: Rig) -> None:
    probe = exist(rig, count=MAX_KEYS_PER_CAPSULE + 1)
    rig.pump()
    received = rig.agent.commands()
    rig.agent.answer(received[0], status=CommandStatus.INTERNAL)
    rig.pump()
    assert probe.ends == 0  # the other part may still touch the caller's memory
    rig.agent.answer(received[1])
    rig.pump()
    assert isinstance(probe.error, TransferError)
    assert rig.queue.failure is None


WRONG_ANSWERS: dict[str, Callable[[Rig, Received], None]] = {
    "unknown id": lambda rig, r: rig.agent.answer(r, forged=Forgery(command_id=99)),
    "other boot": lambda rig, r: rig.agent.answer(r, forged=Forgery(boot_id=b"\xff" * 16)),
    "other session": lambda rig, r: rig.agent.answer(r, forged=Forgery(session=6)),
    "other opcode": lambda rig, r: rig.agent.answer(r, forged=Forgery(opcode=Opcode.DELETE)),
    "too few results": lambda rig, r: rig.agent.answer(r, results=np.zeros(1, np.uint8)),
    "unknown key status": lambda rig, r: rig.agent.answer(r, results=np.full(2, 77, np.uint8)),
    "garbage": lambda rig, r: rig.agent.garble(),
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_an_answer_that_cannot_be_right_ends_the_connection(
    rig: Rig, answer: Callable[[Rig, Received], None]
) -> None:
    probes = [exist(rig, first, count=2) for first in range(6)]
    rig.pump()
    answer(rig, rig.agent.commands()[1])
    rig.pump()
    assert all(isinstance(probe.error, ProtocolError) for probe in probes)
    assert isinstance(rig.queue.failure, ProtocolError)
    assert rig.qp.state is QpState.RESET


def test_a_second_answer_to_a_command_is_not_taken_for_another(rig: Rig) -> None:
    done, waiting = exist(rig, 0), exist(rig, 1)
    rig.pump()
    received = rig.agent.commands()
    rig.agent.answer(received[0])
    rig.agent.answer(received[0], key_status=KeyStatus.NOT_FOUND)
    rig.pump()
    assert done.result.all()
    assert isinstance(waiting.error, ProtocolError)


def test_a_match_longer_than_its_keys_is_no_answer(rig: Rig) -> None:
    probe = Probe(rig, MatchOperation, keys_of(3))
    rig.pump()
    rig.agent.answer(rig.agent.commands()[0], result=4)
    rig.pump()
    assert isinstance(probe.error, ProtocolError)


def test_an_overdue_command_costs_the_connection_because_a_late_write_may_come(rig: Rig) -> None:
    overdue = exist(rig, 0)
    rig.pump(later_ms=TIMEOUT_MS // 2)
    others = [exist(rig, first) for first in range(1, 6)]
    rig.pump()
    assert rig.queue.in_flight == 4
    received = rig.agent.commands()
    rig.pump(later_ms=TIMEOUT_MS // 2)
    assert isinstance(overdue.error, DeadlineError)
    assert all(type(other.error) is TransferError for other in others)
    assert rig.qp.state is QpState.RESET
    rig.agent.answer(received[0])  # too late, and nobody hears it
    rig.pump()
    assert overdue.ends == 1


def test_a_command_that_was_never_sent_is_overdue_alone() -> None:
    rig = Rig(depth=2)
    patient = [exist(rig, first, timeout_ms=10 * TIMEOUT_MS) for first in range(2)]
    waiting = exist(rig, 2)
    rig.pump(later_ms=TIMEOUT_MS)
    assert isinstance(waiting.error, DeadlineError)
    assert "not sent" in str(waiting.error)
    for received in rig.agent.commands():
        rig.agent.answer(received)
    rig.pump()
    assert all(probe.result.all() for probe in patient)
    assert rig.agent.commands() == []


def test_a_dead_peer_ends_everything_once(rig: Rig) -> None:
    probes = [exist(rig, first) for first in range(6)]
    rig.fabric.kill(rig.agent.device)
    rig.pump()
    assert all("RETRY_EXC_ERR" in str(probe.error) for probe in probes)
    assert all(type(probe.error) is TransferError for probe in probes)


def test_a_peer_that_breaks_after_taking_the_command_ends_it_too(rig: Rig) -> None:
    probe = exist(rig)
    rig.pump()
    rig.qp.break_down()
    rig.pump()
    assert type(probe.error) is TransferError


def test_news_that_the_session_is_gone_end_everything_once(rig: Rig) -> None:
    probes = [exist(rig, first) for first in range(6)]
    rig.pump()
    for _ in range(2):
        rig.queue.fail(TransferError("the agent closed the session"))
        rig.pump()
    errors = [probe.error for probe in probes]
    assert all("closed the session" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == len(errors)  # each task raises its own


def test_an_interrupted_failure_is_finished_by_the_next(rig: Rig) -> None:
    probes = [exist(rig, first) for first in range(6)]
    rig.pump()
    interrupts = [KeyboardInterrupt()]

    def interrupt_once() -> None:
        if interrupts:
            raise interrupts.pop()

    probes[2].operation.when_ended(interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        rig.queue.fail(TransferError("first"))
    rig.queue.fail(TransferError("second"))
    assert ["first" in str(probe.error) for probe in probes] == [True] * 6


def test_a_callback_that_fails_keeps_no_other_call_waiting(rig: Rig) -> None:
    probes = [exist(rig, first) for first in range(3)]

    def fail() -> None:
        raise RuntimeError("the loop is closed")

    probes[0].operation.when_ended(fail)
    rig.pump()
    rig.queue.fail(TransferError("gone"))
    assert all(type(probe.error) is TransferError for probe in probes)


def test_an_error_tells_what_is_known_of_every_key(rig: Rig) -> None:
    probe = Probe(rig, DeleteOperation, keys_of(2 * MAX_KEYS_PER_CAPSULE + 1))
    rig.pump()
    received = rig.agent.commands()
    rig.agent.answer(received[2])
    rig.agent.answer(received[0], key_status=KeyStatus.NOT_FOUND)
    rig.pump()
    rig.queue.fail(TransferError("gone"))
    with pytest.raises(TransferError) as caught:
        probe.operation.raise_error()
    statuses = caught.value.results
    assert set(statuses[:MAX_KEYS_PER_CAPSULE]) == {KeyStatus.NOT_FOUND}
    assert set(statuses[MAX_KEYS_PER_CAPSULE:-1]) == {KeyStatus.ABORTED}
    assert statuses[-1] == KeyStatus.OK


def test_a_failed_queue_refuses_at_once(rig: Rig) -> None:
    rig.queue.fail(TransferError("gone"))
    probe = exist(rig)
    assert type(probe.error) is TransferError
    rig.pump()
    assert rig.agent.commands() == []


def test_a_credit_is_kept_until_its_send_has_completed() -> None:
    """The answer may overtake the SEND's acknowledgement; the NIC may then read it again."""
    rig = Rig(depth=1)
    rig.completions.hold_sends = True
    answered, next_one = exist(rig, 0), exist(rig, 1)
    rig.pump()
    rig.agent.answer(rig.agent.commands()[0])
    rig.pump()
    assert answered.result.all()
    assert rig.agent.commands() == []
    assert rig.queue.in_flight == 1
    rig.completions.hold_sends = False
    rig.pump()
    rig.agent.answer(rig.agent.commands()[0])
    rig.pump()
    assert next_one.result.all()
    assert rig.queue.idle
