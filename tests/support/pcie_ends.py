"""Ends of the pcie link that a test drives, in processes of their own."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.pcie.device import PcieDevice
from emulator.pcie.queues import PcieQp
from emulator.pcie.reach import why_not_reached
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records
from tests.support.verbs_backends import ALL_ACCESS, PATIENCE_S, completions

_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_PTRACE = 19
_PROT_NONE = 0
SUM_SEED = 0x5EED
_libc = ctypes.CDLL(None, use_errno=True)


class Place(NamedTuple):
    """Registered memory, as the other end must know it."""

    addr: int
    length: int
    key: int


class Done(NamedTuple):
    """A completion."""

    wr_id: int
    status: int
    byte_len: int


class End:
    """A device with queue pairs, which have numbers, and memory, which has names."""

    def __init__(self, device: PcieDevice) -> None:
        self.device = device
        self._warnings = _Warnings()
        self._cq = device.create_cq(4096)
        self._qps: list[PcieQp] = []
        self._memory: dict[str, NDArray[np.uint8]] = {}
        self._regions: dict[str, Any] = {}
        self._sums = np.zeros(0, np.uint32)

    def open_qp(self, **options: int) -> QpEndpoint:
        """The next queue pair."""
        self._qps.append(self.device.create_qp(self._cq, QpOptions(**options)))
        return self._qps[-1].endpoint

    def connect(self, qp: int, remote: QpEndpoint) -> None:
        self._qps[qp].connect(remote)

    def close_qp(self, qp: int) -> None:
        self._qps[qp].close()

    def state(self, qp: int) -> int:
        return int(self._qps[qp].state)

    def alloc(self, name: str, nbytes: int, access: AccessFlags = ALL_ACCESS) -> Place:
        """Shared memory."""
        self._memory[name] = self.device.alloc(nbytes)
        return self._register(name, access)

    def borrow(
        self, name: str, nbytes: int, offset: int = 0, access: AccessFlags = ALL_ACCESS
    ) -> Place:
        """Memory that the device did not allocate, so many bytes off its alignment."""
        self._memory[name] = np.zeros(nbytes + offset, np.uint8)[offset:]
        return self._register(name, access)

    def borrow_with_hole(self, name: str, npages: int, hole: int) -> Place:
        """Pages of which one can be neither read nor written."""
        pages = mmap.mmap(-1, npages * mmap.PAGESIZE)
        self._memory[name] = np.frombuffer(pages, np.uint8)
        place = self._register(name, ALL_ACCESS)
        at = ctypes.c_void_p(place.addr + hole * mmap.PAGESIZE)
        assert _libc.mprotect(at, ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE) == 0
        return place

    def _register(self, name: str, access: AccessFlags) -> Place:
        region = self.device.register(self._memory[name], access)
        self._regions[name] = region
        return Place(region.addr, region.length, region.rkey)

    def deregister(self, name: str) -> None:
        self._regions.pop(name).close()

    def fill(self, name: str, content: bytes) -> None:
        self._memory[name][:] = np.frombuffer(content, np.uint8)

    def content(self, name: str) -> bytes:
        return self._memory[name].tobytes()

    def memory(self, name: str) -> NDArray[np.uint8]:
        """The array itself, in the process that has it."""
        return self._memory[name]

    def channel(self, qp: int) -> NDArray[np.int64]:
        """The words that the peer of a queue pair writes to, and this end reads."""
        return self._qps[qp].channel.mapping.words()

    def receive(self, qp: int, place: Place, count: int = 1) -> None:
        requests = np.zeros(count, RECV_WR)
        requests["wr_id"] = np.arange(count)
        requests["local_addr"], requests["length"], requests["lkey"] = place
        self._qps[qp].post_recv(requests)

    def request(
        self, qp: int, opcode: WrOpcode, local: Place, remote: Place, count: int = 1
    ) -> None:
        """As long as ``local``."""
        requests = np.zeros(count, SEND_WR)
        requests["wr_id"] = np.arange(count)
        requests["opcode"], requests["send_flags"] = opcode, SendFlags.SIGNALED
        requests["local_addr"], requests["length"], requests["lkey"] = local
        requests["remote_addr"], _, requests["rkey"] = remote
        if opcode is WrOpcode.RDMA_READ:
            self._sums = np.full(count, SUM_SEED, np.uint32)
            requests["sum_addr"] = self._sums.ctypes.data + self._sums.itemsize * np.arange(count)
        self._qps[qp].post_send(requests)

    def sums(self) -> list[int]:
        """Of the READs of the last ``request``, each continued from ``SUM_SEED``."""
        return [int(value) for value in self._sums]

    def completions(self, count: int) -> list[Done]:
        """Exactly so many, waited for."""
        out = completions(self.device, self._cq, count)
        return [Done(int(wc.wr_id), int(wc.status), int(wc.byte_len)) for wc in out]

    def poll(self) -> int:
        """How many completions came, whatever they say."""
        return self._cq.poll(new_records(WC, 64))

    def forget(self, name: str) -> None:
        """Deregister memory and let go of it."""
        self.deregister(name)
        del self._memory[name]

    def copy_for_ever(self, qp: int, local: Place, remote: Place) -> None:
        """Write one piece of memory to another until this process is killed."""
        while True:
            self.request(qp, WrOpcode.RDMA_WRITE, local, remote)
            self.completions(1)

    def counters(self) -> dict[str, int]:
        return self.device.counters()

    def reaches(self, pid: int, board_address: int) -> bool:
        """Whether this process is permitted to reach into another."""
        return why_not_reached(pid, board_address) == 0

    def board(self) -> tuple[int, int]:
        """What ``reaches`` of another end takes."""
        return os.getpid(), int(self.device.state.context.board)

    def lose_reach(self) -> None:
        """The kernel changes its mind: neither may this process reach others, nor they it."""
        cannot_reach()
        cannot_be_reached()

    def warnings(self) -> list[str]:
        """What the link has warned of since the last call."""
        texts, self._warnings.texts = self._warnings.texts, []
        return texts

    def close(self) -> None:
        self.device.close()
        logging.getLogger("emulator.pcie").removeHandler(self._warnings)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        logging.getLogger("emulator.pcie").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def cannot_reach() -> None:
    """From now on, this process may not trace others."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    assert _libc.capget(header, data) == 0
    data[0] &= ~(1 << _CAP_SYS_PTRACE)
    data[1] &= ~(1 << _CAP_SYS_PTRACE)
    assert _libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def cannot_be_reached() -> None:
    """From now on, nobody without CAP_SYS_PTRACE may trace this process."""
    assert _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0


class EndProcess:
    """A process that has an ``End`` and drives it, until it is told something else."""

    def __init__(self, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, prepare), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def start(self, method: str, *args: Any, **options: Any) -> None:
        """Call a method of the ``End`` there; ``result`` gives what it answers."""
        self._link.send((method, args, options))

    def result(self) -> Any:
        assert self._link.poll(PATIENCE_S), "the other process does not answer"
        answer = self._link.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """What the method answers."""
        self.start(method, *args, **options)
        return self.result()

    def stop(self) -> None:
        """Stop the process, wherever it is; it is stopped when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def renew(self) -> None:
        """Another ``End`` in place of the present one."""
        self.call("renew")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._link.close()


def joined(near: EndProcess, far: EndProcess, **options: int) -> None:
    """Connect the next queue pair of each."""
    here, there = near.call("open_qp", **options), far.call("open_qp", **options)
    near.call("connect", -1, there)
    far.call("connect", -1, here)


def _serve(link: Connection, prepare: Callable[[], None] | None) -> None:
    if prepare is not None:
        prepare()
    end = End(PcieDevice())
    while True:
        if not link.poll(0):
            if not end.device.progress():
                end.device.wait(1000.0, link.fileno())
            continue
        try:
            method, args, options = link.recv()
        except EOFError:
            return
        if method == "renew":
            end.close()
            end = End(PcieDevice())
            link.send(None)
            continue
        try:
            link.send(getattr(end, method)(*args, **options))
        except Exception as error:  # it is the test's, which asked for it
            link.send(error)


def not_permitted(_pid: int, _board_address: int) -> int:
    """Stands in for ``why_not_reached`` where the kernel forbids it."""
    return errno.EPERM
