from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack

import numpy as np
import pytest

from emulator.bench import _blast_kernels as kernels
from emulator.bench import blast as blast_module
from emulator.bench._blast_kernels import BLAST_END, DONE, TIMED_OUT, TOO_LONG
from emulator.bench.blast import Blast
from emulator.driving._sleep_kernels import watch
from kvlane.errors import KvlaneError
from kvlane.jit import JIT_ENABLED
from kvlane.verbs.records import new_records

WHOLE = 1 << 20 if JIT_ENABLED else 1 << 18
LIMIT_NS = 30_000_000_000


class End:
    """One end of a blast, with the socket of a test."""

    def __init__(self, sock: socket.socket, memory: np.ndarray[tuple[int], np.dtype[np.uint8]]):
        self.memory = memory
        self.record = new_records(BLAST_END, 1)
        self.record.fd = sock.fileno()
        self.record.memory, self.record.memory_bytes = memory.ctypes.data, memory.nbytes
        self.address = int(self.record.ctypes.data)
        self.descriptors = np.zeros(1, np.int64)
        watch(self.descriptors, 0, sock.fileno())

    def receive(self, total: int, limit_ns: int = LIMIT_NS) -> int:
        return kernels.receive_blast(self.address, self.descriptors, total, 1, limit_ns)

    def send(self, total: int, limit_ns: int = LIMIT_NS) -> int:
        return kernels.send_blast(self.address, self.descriptors, total, 1 << 17, limit_ns)


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    return socket.socketpair(socket.AF_UNIX, kind)


def _random(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(7).integers(0, 256, nbytes, dtype=np.uint8)


def test_turns_of_one_blast_move_all_that_they_say() -> None:
    with ExitStack() as undo:
        blast = Blast(WHOLE, WHOLE // 4, undo)
        # Not a whole number of calls, and then more than both memories.
        for total in (WHOLE // 3, 2 * WHOLE + 5):
            assert blast.gigabytes_per_second(total) > 0


def test_the_receiver_reads_what_was_sent_and_tells_how_far_it_is(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    with here, there:
        end = End(there, np.zeros(1 << 17, np.uint8))
        parts = [bytes(_random(5000)), bytes(_random(700))]
        for part in parts:
            here.send(part)
        assert end.receive(5700) == DONE
        assert bytes(end.memory[:5700]) == b"".join(parts)
        told = [int.from_bytes(here.recv(8), "little") for _ in parts]
        assert told == [5000, 5700]


def test_the_receiver_goes_around_before_a_read_could_leave_its_memory(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    with here, there:
        end = End(there, np.zeros(kernels.LONGEST_READ_BYTES + 999, np.uint8))
        for byte in range(1, 4):
            here.send(bytes([byte]) * 1000)
        assert end.receive(3000) == DONE
        assert set(end.memory[:1000]) == {3}


def test_the_sender_sends_its_memory_in_order_and_goes_around(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    with here, there:
        end = End(here, _random(kernels.CALL_BYTES + 100))
        there.send((kernels.CALL_BYTES + 200).to_bytes(8, "little"))  # it may believe this at once
        assert end.send(kernels.CALL_BYTES + 200) == DONE
        came = b"".join(there.recv(1 << 16) for _ in range(3))
        assert came == bytes(end.memory) + bytes(end.memory[:100])


def test_the_sender_keeps_to_the_window_and_gives_up_without_credits(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    with here, there:
        end = End(here, _random(1 << 18))
        assert end.send(1 << 20, limit_ns=1_000_000) == TIMED_OUT
        assert end.record.moved[0] <= 1 << 17
        assert end.record.confirmed[0] == 0


def test_a_receiver_that_nothing_comes_to_gives_up(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    with here, there:
        assert End(there, np.zeros(1 << 17, np.uint8)).receive(1, limit_ns=1_000_000) == TIMED_OUT


def test_a_datagram_that_no_blast_sends_ends_the_turn(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    with here, there:
        here.send(bytes(kernels.LONGEST_READ_BYTES + 1))
        assert End(there, np.zeros(1 << 17, np.uint8)).receive(1) == TOO_LONG


def test_a_receiver_that_is_killed_ends_the_blast(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as undo:
        blast = Blast(WHOLE, WHOLE // 4, undo)
        blast._receiver.kill()
        blast._receiver.join()
        monkeypatch.setattr(blast_module, "TURN_TIMEOUT_S", 0.01)
        with pytest.raises(KvlaneError, match="has ended"):
            blast.gigabytes_per_second(WHOLE)


def test_a_receiver_that_stands_still_does_not_hold_the_blast_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as undo:
        blast = Blast(WHOLE, WHOLE // 4, undo)
        pid = blast._receiver.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        undo.callback(blast._receiver.kill)
        monkeypatch.setattr(blast_module, "TURN_TIMEOUT_S", 0.01)
        with pytest.raises(KvlaneError, match="does not answer"):
            blast.gigabytes_per_second(WHOLE)
