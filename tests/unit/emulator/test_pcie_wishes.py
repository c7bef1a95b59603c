"""What a sleeper is woken for: not for news that it has said it can do without."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emulator.pcie.control_socket import ControlSocket
from emulator.pcie.device import PcieDevice
from emulator.pcie.layout import BOARD_SLEEPING, RING_BYTES, SLEEPING_BITS, Sleeping
from kvlane.rawmem import words_at
from kvlane.verbs.enums import WrOpcode
from kvlane.verbs.protocols import QpEndpoint
from tests.support.call_kernels import sleep_for
from tests.support.pcie_ends import End, Place
from tests.support.verbs_backends import PATIENCE_S

HOUR_NS = 3600 * 1_000_000_000
SLOT_BYTES = 64 << 10
FULL = 2 * RING_BYTES // SLOT_BYTES
"""So many messages do not fit the ring."""


class Two:
    """Ends that are connected; the near one has something to send, the far one receives it."""

    def __init__(self) -> None:
        self.near, self.far = End(PcieDevice()), End(PcieDevice())
        near, far = self.near.open_qp(), self.far.open_qp()
        self.near.connect(0, far)
        self.far.connect(0, near)
        self.memory: dict[End, Place] = {
            end: end.alloc("memory", SLOT_BYTES) for end in (self.near, self.far)
        }
        for end in (self.near, self.far):
            end.receive(0, self.memory[end], FULL)
        while self.near.device.progress() or self.far.device.progress():
            pass

    def send(self, end: End, count: int = 1) -> None:
        end.request(0, WrOpcode.SEND, self.memory[end], self.memory[end], count)

    def close(self) -> None:
        self.near.device.close()
        self.far.device.close()


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


@contextmanager
def asleep(end: End, patient: bool) -> Iterator[threading.Thread]:
    """A thread sleeps with the device; it must have been woken at the end."""
    device = end.device

    def sleep() -> None:
        with device.hold():
            sleep_for(device.calls, HOUR_NS, patient)

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    give_up = time.monotonic() + PATIENCE_S
    while not device.state.context.sleepers:
        assert time.monotonic() < give_up
    yield sleeper
    sleeper.join(PATIENCE_S)
    assert not sleeper.is_alive()


def bells(end: End) -> int:
    return end.counters()["bells_rung"]


def progress(end: End) -> None:
    while end.device.progress():
        pass


def test_that_a_message_was_taken_wakes_who_waits_for_it(two: Two) -> None:
    two.send(two.near)
    with asleep(two.near, patient=False):
        progress(two.far)
        assert bells(two.far) == 1
    assert len(two.near.completions(1)) == 1


def test_that_a_message_was_taken_does_not_wake_the_patient(two: Two) -> None:
    two.send(two.near)
    with asleep(two.near, patient=True):
        progress(two.far)
        assert bells(two.far) == 0
        two.send(two.far)
        assert bells(two.far) == 1
    assert len(two.near.completions(2)) == 2


@pytest.mark.parametrize("opcode", [WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ])
def test_nobody_is_patient_with_a_message_that_holds_up_a_transfer(
    two: Two, opcode: WrOpcode
) -> None:
    two.send(two.near)
    two.near.request(0, opcode, two.memory[two.near], two.memory[two.far])
    with asleep(two.near, patient=True):
        progress(two.far)
        assert bells(two.far) == 1
    assert len(two.near.completions(2)) == 2


def test_nobody_is_patient_with_a_ring_that_is_full(two: Two) -> None:
    two.send(two.near, FULL)
    with asleep(two.near, patient=True):
        progress(two.far)
        assert bells(two.far) >= 1
    while two.near.device.progress() or two.far.device.progress():
        pass
    assert len(two.near.completions(FULL)) == FULL


def say_asleep(end: End, number: int) -> None:
    """What a sleeper says that does not come to run, so that nothing of it is timing."""
    word = words_at(end.device.state.context.board + BOARD_SLEEPING, 1)
    word[0] = number << SLEEPING_BITS | Sleeping.FOR_ANYTHING


def test_a_sleep_is_rung_for_once(two: Two) -> None:
    small = two.near.alloc("small", 64)
    for number in (1, 2):
        say_asleep(two.far, number)
        for _ in range(3):
            two.near.request(0, WrOpcode.SEND, small, small)
            progress(two.near)
        assert bells(two.near) == number


def test_messages_that_begin_to_wait_wake_who_sleeps(two: Two) -> None:
    stuck = ControlSocket()
    two.near.open_qp()
    two.near.connect(1, QpEndpoint(stuck.gid, 4791, 4097, 0, 4096))
    numbers = iter(range(1 << 12))
    with asleep(two.near, patient=True):
        while not two.near.device.state.context.backlog_due_ns:
            two.near.alloc(f"told {next(numbers)}", 4096)
    stuck.close()
