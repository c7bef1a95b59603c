"""The limit of the UDP link: a windowed blast of datagrams between two processes.

No protocol, no checksum, no copy beyond the sockets' own, both loops compiled. Sender and receiver
go around as much memory as a benchmark moves blocks out of and into; segments of a full RoCEv2
frame, which are payload from end to end, travel by UDP_SEGMENT and UDP_GRO. Credits keep what is
under way below the window, so the socket buffer loses nothing.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from emulator.bench import _blast_kernels as kernels
from emulator.bench._blast_kernels import BLAST_END, DONE, SEGMENT_BYTES, TIMED_OUT
from emulator.bench.workload import random_bytes
from emulator.driving._sleep_kernels import watch
from emulator.link._udp_kernels import IPPROTO_UDP, UDP_GRO, UDP_SEGMENT
from emulator.link.socket_buffer import DEFAULT_BUFFER_BYTES, enlarge_buffers
from kvlane.errors import KvlaneError
from kvlane.verbs.records import new_records

WINDOW_BYTES = 1 << 20
"""The best: 512 KiB were 2 to 6 % slower, 2 MiB about the same."""
CREDITS_PER_WINDOW = 4
START_TIMEOUT_S = 120.0
"""Its first start on a machine compiles the loops."""
TURN_TIMEOUT_S = 20.0
_ENDED = "the receiving process of the blast has ended"


class _End:
    """A socket and the memory that its kernel goes around."""

    def __init__(self, memory_bytes: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(("127.0.0.1", 0))
        enlarge_buffers(self.socket, DEFAULT_BUFFER_BYTES)
        self._memory = random_bytes(max(memory_bytes, kernels.LONGEST_READ_BYTES))
        self._record = new_records(BLAST_END, 1)
        self._address = int(self._record.ctypes.data)
        self._record.fd = self.socket.fileno()
        self._record.memory = self._memory.ctypes.data
        self._record.memory_bytes = self._memory.nbytes
        self._descriptors = np.zeros(1, np.int64)
        watch(self._descriptors, 0, self.socket.fileno())

    @property
    def port(self) -> int:
        """Where it receives."""
        port: int = self.socket.getsockname()[1]
        return port

    @property
    def moved(self) -> int:
        """Bytes of the turn that was last."""
        return int(self._record.moved[0])

    def meet(self, port: int) -> None:
        """Speak to that port of this host, and hear no other."""
        self.socket.connect(("127.0.0.1", port))

    def send(self, total: int) -> int:
        """Send so many bytes; how it went."""
        limit_ns = int(TURN_TIMEOUT_S * 1e9)
        return kernels.send_blast(self._address, self._descriptors, total, WINDOW_BYTES, limit_ns)

    def receive(self, total: int) -> int:
        """Receive so many bytes; how it went."""
        limit_ns = int(TURN_TIMEOUT_S * 1e9)
        every = WINDOW_BYTES // CREDITS_PER_WINDOW
        return kernels.receive_blast(self._address, self._descriptors, total, every, limit_ns)


def _serve(pipe: Connection, memory_bytes: int) -> None:
    """The receiving process: a turn for each number of bytes that comes, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the pipe
    end = _End(memory_bytes)
    with end.socket:
        end.socket.setsockopt(IPPROTO_UDP, UDP_GRO, 1)
        pipe.send(end.port)
        end.meet(pipe.recv())
        pipe.send(end.receive(0))  # compiled
        while True:
            try:
                total = pipe.recv()
            except EOFError:
                return
            pipe.send((end.receive(total), end.moved))


class Blast:
    """A sender here and a receiver in a process of its own, for as many turns as wanted."""

    def __init__(self, source_bytes: int, target_bytes: int, undo: ExitStack) -> None:
        """They go around ``source_bytes`` here and ``target_bytes`` there."""
        self._end = _End(source_bytes)
        undo.enter_context(self._end.socket)
        self._end.socket.setsockopt(IPPROTO_UDP, UDP_SEGMENT, SEGMENT_BYTES)
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._receiver = context.Process(target=_serve, args=(there, target_bytes), daemon=True)
        self._receiver.start()
        there.close()
        undo.callback(self._receiver.join, TURN_TIMEOUT_S)
        undo.callback(self._pipe.close)
        self._end.meet(self._hear(START_TIMEOUT_S))
        self._tell(self._end.port)
        self._hear(START_TIMEOUT_S)
        self._end.send(0)

    def gigabytes_per_second(self, total: int) -> float:
        """10^9 bytes a second of one turn of ``total`` bytes; every one of them has arrived."""
        self._tell(total)
        start = time.perf_counter()
        sent = self._end.send(total)
        seconds = time.perf_counter() - start
        received, came = self._hear(2 * TURN_TIMEOUT_S)
        if sent != DONE or received != DONE:
            what = "lost or held up datagrams" if received == TIMED_OUT else "was disturbed"
            raise KvlaneError(
                f"the blast {what}: of {total} bytes {self._end.moved} were sent and {came} came; "
                f"run it on a machine that does nothing else"
            )
        return total / seconds / 1e9

    def _tell(self, number: int) -> None:
        try:
            self._pipe.send(number)
        except BrokenPipeError as error:
            raise KvlaneError(_ENDED) from error

    def _hear(self, timeout_s: float) -> Any:
        """What the receiving process says next."""
        if not self._pipe.poll(timeout_s):
            raise KvlaneError("the receiving process of the blast does not answer")
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise KvlaneError(_ENDED) from error
