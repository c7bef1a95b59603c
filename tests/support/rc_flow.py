"""One direction of one connection: its work requests, and what must come of each of them.

Every operation has its own slot of memory, so the expected bytes do not depend on how
operations overlap; atomics share a few words, and their results tell in which order and
how often they took effect.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kvlane.verbs.enums import AccessFlags, MwType, SendFlags, WcFlags, WcOpcode, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Port, Region
from tests.support.roce_work import Element, part, towards, work

SLOT = 3000
WORDS = 4
PEER_WINDOWS = 2
"""Opened to the peer before anything else; the peer closes each by a SEND_WITH_INV."""
_SIGNALED_EVERY = 6
_INLINE_MOST = 512
_TOP = (1 << 64) - 1
_BINDABLE = ALL_ACCESS | AccessFlags.MW_BIND
_OPENS = int(AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE)
SENDS = (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM, WrOpcode.SEND_WITH_INV)
_WRITES = (WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM)
_ATOMICS = (WrOpcode.ATOMIC_CMP_AND_SWP, WrOpcode.ATOMIC_FETCH_AND_ADD)
_OPCODES = (*SENDS, *_WRITES, WrOpcode.RDMA_READ, WrOpcode.RDMA_READ, *_ATOMICS, WrOpcode.BIND_MW)
_TAKES_RECEIVE = (*SENDS, WrOpcode.RDMA_WRITE_WITH_IMM)
_WC_OPCODES = {
    **dict.fromkeys(SENDS, WcOpcode.SEND),
    **dict.fromkeys(_WRITES, WcOpcode.RDMA_WRITE),
    WrOpcode.RDMA_READ: WcOpcode.RDMA_READ,
    WrOpcode.ATOMIC_CMP_AND_SWP: WcOpcode.COMP_SWAP,
    WrOpcode.ATOMIC_FETCH_AND_ADD: WcOpcode.FETCH_ADD,
    WrOpcode.BIND_MW: WcOpcode.BIND_MW,
    WrOpcode.LOCAL_INV: WcOpcode.LOCAL_INV,
}


@dataclass(frozen=True)
class Arrival:
    """What the receiver of an operation is to be told."""

    opcode: WrOpcode
    data: Any
    imm: int
    wc_flags: int


@dataclass
class Window:
    """A type 2 window that alternates between bound and invalidated."""

    key: int
    is_open: bool = False


@dataclass
class Flow:
    """Work from ``port`` to ``peer``; position ``i`` of its send queue has ``wr_id`` i."""

    port: Port
    qp: int
    peer: Port
    peer_qp: int
    operations: int
    rng: random.Random
    windows: list[Window] = field(default_factory=list)
    """Of the peer's memory, open to this flow."""
    opcodes: list[WrOpcode] = field(default_factory=list)
    """What has been built so far."""
    posted: int = 0
    """How much of it the queue pair has been given."""
    signaled: list[int] = field(default_factory=list)
    """Positions that must complete, in order."""
    lengths: dict[int, int] = field(default_factory=dict)
    originals: dict[int, int] = field(default_factory=dict)
    """What each atomic must have found."""
    taking: list[Arrival] = field(default_factory=list)
    """Operations that take a receive, in order."""
    completed: int = 0
    """Signaled positions whose completion has been seen."""

    def __post_init__(self) -> None:
        size = self.operations * SLOT
        self.local = self.port.region(size, _BINDABLE)
        self.remote = self.peer.region(size, _BINDABLE)
        self.results = self.port.region(8 * self.operations)
        self.words = self.peer.region(8 * WORDS)
        self.word_values = [0] * WORDS
        self.own_window = Window(self.port.engine.regions.alloc_window(1, MwType.TYPE_2))
        fill = np.random.default_rng(self.rng.getrandbits(32))
        for region in (self.local, self.remote):
            region.data[:] = fill.integers(0, 256, size, dtype=np.uint8)
        self.local_want, self.remote_want = self.local.data.copy(), self.remote.data.copy()

    # Building

    def open_windows(self, reverse: Flow) -> list[Any]:
        """Binds that let ``reverse``, the other direction, at its remote memory."""
        binds = []
        for _ in range(PEER_WINDOWS):
            window = Window(self.port.engine.regions.alloc_window(1, MwType.TYPE_2))
            binds.append(self._bind(window, reverse.remote))
            reverse.windows.append(window)
        return binds

    def operation(self) -> Any:
        """The next operation, of any kind."""
        opcode = self.rng.choice(_OPCODES)
        if opcode in _ATOMICS:
            return self._atomic(opcode)
        if opcode == WrOpcode.BIND_MW:
            return self._turn_own_window()
        return self._transfer(opcode)

    def _next(self, opcode: WrOpcode) -> int:
        """Take the next position for an operation."""
        self.opcodes.append(opcode)
        return len(self.opcodes) - 1

    def _transfer(self, opcode: WrOpcode) -> Any:
        window = self._an_open_window()
        if opcode == WrOpcode.SEND_WITH_INV and window is None:
            opcode = WrOpcode.SEND
        number = self._next(opcode)
        length = self.rng.choice((0, 1, self.rng.randrange(SLOT), SLOT))
        imm = number
        target = towards(self.remote, number * SLOT)
        if window is not None and (opcode == WrOpcode.SEND_WITH_INV or self.rng.random() < 0.5):
            target["rkey"] = window.key
        if opcode == WrOpcode.SEND_WITH_INV and window is not None:
            window.is_open = False
            imm = window.key
        self._expect_transfer(opcode, number, length, imm)
        flags = self._flags(opcode, length)
        elements = self.split(self.local, number * SLOT, length)
        if flags & SendFlags.INLINE:
            shift = self.local.host_addr - self.local.addr
            elements = [(addr + shift, nbytes, 0) for addr, nbytes, _ in elements]
        return work(opcode, elements, flags, wr_id=number, imm=imm, **target)

    def _an_open_window(self) -> Window | None:
        """The oldest, so that the others are still open after it has been closed."""
        return next((window for window in self.windows if window.is_open), None)

    def _expect_transfer(self, opcode: WrOpcode, number: int, length: int, imm: int) -> None:
        place = slice(number * SLOT, number * SLOT + length)
        data = self.local_want[place].copy()
        self.lengths[number] = length
        if opcode == WrOpcode.RDMA_READ:
            self.local_want[place] = self.remote_want[place]
        elif opcode in _WRITES:
            self.remote_want[place] = data
        if opcode in _TAKES_RECEIVE:
            told, wc_flags = imm, WcFlags.WITH_IMM
            if opcode == WrOpcode.SEND_WITH_INV:
                wc_flags = WcFlags.WITH_INV
            elif opcode == WrOpcode.SEND:
                told, wc_flags = 0, WcFlags(0)
            self.taking.append(Arrival(opcode, data, told, int(wc_flags)))

    def _atomic(self, opcode: WrOpcode) -> Any:
        number = self._next(opcode)
        which = self.rng.randrange(WORDS)
        before = self.word_values[which]
        self.originals[number] = before
        operand, swap = self.rng.getrandbits(64), self.rng.getrandbits(64)
        if opcode == WrOpcode.ATOMIC_FETCH_AND_ADD:
            self.word_values[which] = (before + operand) & _TOP
        else:
            operand = self.rng.choice((before, operand))
            self.word_values[which] = swap if operand == before else before
        return work(
            opcode,
            [part(self.results, 8 * number, 8)],
            self._flags(opcode, 8),
            wr_id=number,
            compare_add=_as_signed(operand),
            swap=_as_signed(swap),
            **towards(self.words, 8 * which),
        )

    def _turn_own_window(self) -> Any:
        """Bind it, or invalidate it when it is bound: the other order would be refused."""
        window = self.own_window
        if not window.is_open:
            return self._bind(window, self.local)
        window.is_open = False
        number = self._next(WrOpcode.LOCAL_INV)
        flags = self._flags(WrOpcode.LOCAL_INV, 0)
        return work(WrOpcode.LOCAL_INV, (), flags, wr_id=number, imm=window.key)

    def _bind(self, window: Window, region: Region) -> Any:
        number = self._next(WrOpcode.BIND_MW)
        before, window.key = window.key, (window.key & ~0xFF) | self.rng.randrange(256)
        window.is_open = True
        return work(
            WrOpcode.BIND_MW,
            (),
            self._flags(WrOpcode.BIND_MW, 0),
            wr_id=number,
            mw_key=before,
            mw_new_key=window.key & 0xFF,
            mw_lkey=region.key,
            mw_addr=region.addr,
            mw_length=len(region.data),
            mw_access=_OPENS,
        )

    def _flags(self, opcode: WrOpcode, length: int) -> SendFlags:
        """Any that the newest position may have. Of so many in a row one is signaled, or a
        full queue would stay full; and the last of all is."""
        number = len(self.opcodes) - 1
        flags = SendFlags(0)
        distance = number - (self.signaled[-1] if self.signaled else -1)
        is_last = number == self.operations - 1
        if distance == _SIGNALED_EVERY or is_last or self.rng.random() < 0.3:
            flags |= SendFlags.SIGNALED
            self.signaled.append(number)
        # What a READ still needs must not be closed before it has been answered.
        if opcode == WrOpcode.SEND_WITH_INV or self.rng.random() < 0.1:
            flags |= SendFlags.FENCE
        may_be_inline = opcode in (*SENDS, *_WRITES) and length <= _INLINE_MOST
        if may_be_inline and self.rng.random() < 0.3:
            flags |= SendFlags.INLINE
        return flags

    def split(self, region: Region, offset: int, length: int) -> list[Element]:
        """One to four elements, some perhaps empty, over a part of a region."""
        cuts = sorted(self.rng.randrange(length + 1) for _ in range(self.rng.randrange(4)))
        edges = [0, *cuts, length]
        return [part(region, offset + start, end - start) for start, end in pairwise(edges)]

    # Checking

    @property
    def free_before(self) -> int:
        """Every position below is known to be done: a completion speaks for those before it."""
        return self.signaled[self.completed - 1] + 1 if self.completed else 0

    def check_completion(self, wc: Any) -> None:
        """It is the next that is due, and all up to it have had their effect by now."""
        number = self.signaled[self.completed]
        opcode = self.opcodes[number]
        assert int(wc.wr_id) == number
        assert wc.opcode == _WC_OPCODES[opcode]
        if opcode == WrOpcode.RDMA_READ:
            assert wc.byte_len == self.lengths[number]
        done_before = self.free_before
        self.completed += 1
        place = slice(done_before * SLOT, (number + 1) * SLOT)
        assert (self.local.data[place] == self.local_want[place]).all()
        assert (self.remote.data[place] == self.remote_want[place]).all()
        results = _words(self.results)
        for position in range(done_before, number + 1):
            if position in self.originals:
                assert results[position] == self.originals[position]

    def check_end(self) -> None:
        """Everything has completed once, and memory and windows are as they must be."""
        assert self.completed == len(self.signaled)
        assert (self.local.data == self.local_want).all()
        assert (self.remote.data == self.remote_want).all()
        assert _words(self.words) == self.word_values
        results = _words(self.results)
        assert {number: results[number] for number in self.originals} == self.originals
        for region in (self.local, self.remote, self.results, self.words):
            assert region.guards_hold()
        _check_window(self.port, self.own_window)
        for window in self.windows:
            _check_window(self.peer, window)


def _check_window(port: Port, window: Window) -> None:
    record = port.engine.regions.table[window.key >> 8]
    assert record.key == window.key
    assert (record.access != 0) == window.is_open


def _as_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _words(region: Region) -> list[int]:
    return [int(value) for value in region.data.view(np.uint64)]
