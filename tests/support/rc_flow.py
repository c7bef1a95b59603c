"""One direction of one connection: its work requests, and what must come of each of them.

Every operation has its own slot of memory, so the expected bytes do not depend on how
operations overlap; some share a few words, and what they find there tells in which order and
how often they took effect.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from emulator.wire.feth import Feth, Placement, Selectivity
from kvlane.verbs.enums import AccessFlags, MwType, SendFlags, WcFlags, WcOpcode, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Port, Region
from tests.support.roce_work import Element, part, towards, work

SLOT = 3000
LARGE_SLOTS = 2
"""How many slots of a flow may be of the large size."""
_LARGE_ODDS = 0.15
WORDS = 4
PEER_WINDOWS = 2
"""Opened to the peer before anything else; the peer closes each by a SEND_WITH_INV."""
_SIGNALED_EVERY = 6
_WORD_ODDS = 0.3
"""Of operations that may be on a slot of their own or on shared words, how many are on words."""
_INLINE_MOST = 512
_WORD_BYTES = 8
_TOP = (1 << 64) - 1
FLUSHABLE = ALL_ACCESS | AccessFlags.FLUSH_GLOBAL
_BINDABLE = FLUSHABLE | AccessFlags.MW_BIND
_OPENS = int(AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.FLUSH_GLOBAL)
SENDS = (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM, WrOpcode.SEND_WITH_INV)
_WRITES = (WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM, WrOpcode.ATOMIC_WRITE)
_ATOMICS = (WrOpcode.ATOMIC_CMP_AND_SWP, WrOpcode.ATOMIC_FETCH_AND_ADD)
_ON_WORDS = (*_ATOMICS, WrOpcode.ATOMIC_WRITE, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ)
_OPCODES = (
    *SENDS,
    *_WRITES,
    WrOpcode.RDMA_READ,
    WrOpcode.RDMA_READ,
    *_ATOMICS,
    WrOpcode.FLUSH,
    WrOpcode.BIND_MW,
)
RESPONDED = (WrOpcode.RDMA_READ, *_ATOMICS, WrOpcode.ATOMIC_WRITE, WrOpcode.FLUSH)
"""Completed by a response of their own: the READ window is theirs, the send window is not."""
_TAKES_RECEIVE = (*SENDS, WrOpcode.RDMA_WRITE_WITH_IMM)
_WC_OPCODES = {
    **dict.fromkeys(SENDS, WcOpcode.SEND),
    **dict.fromkeys(_WRITES, WcOpcode.RDMA_WRITE),
    WrOpcode.ATOMIC_WRITE: WcOpcode.ATOMIC_WRITE,
    WrOpcode.FLUSH: WcOpcode.FLUSH,
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
    large_bytes: int = 0
    """Length of the rare large slots, a multiple of 8; 0 = there are none."""
    sends_may_be_large: bool = True
    windows: list[Window] = field(default_factory=list)
    """Of the peer's memory, open to this flow."""
    opcodes: list[WrOpcode] = field(default_factory=list)
    """What has been built so far."""
    posted: int = 0
    """How much of it the queue pair has been given."""
    signaled: list[int] = field(default_factory=list)
    """Positions that must complete, in order."""
    lengths: dict[int, int] = field(default_factory=dict)
    results_want: dict[int, int] = field(default_factory=dict)
    """What the local word of an operation on shared words must hold once it is done."""
    edges: list[int] = field(default_factory=lambda: [0])
    """Where the slot of each position begins, and where the last ends."""
    slot_bytes: int = SLOT
    """Of the newest position."""
    taking: list[Arrival] = field(default_factory=list)
    """Operations that take a receive, in order."""
    completed: int = 0
    """Signaled positions whose completion has been seen."""

    def __post_init__(self) -> None:
        self._large_left = LARGE_SLOTS if self.large_bytes else 0
        self._being_read: set[int] = set()
        size = self.operations * SLOT + self._large_left * self.large_bytes
        self.local = self.port.region(size, _BINDABLE)
        self.remote = self.peer.region(size, _BINDABLE)
        self.results = self.port.region(8 * self.operations)
        self.sums = np.arange(self.operations, dtype=np.uint32)
        """Each READ continues the sum of its position, which begins as that."""
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
        if opcode == WrOpcode.FLUSH:
            return self._flush()
        if opcode == WrOpcode.BIND_MW:
            return self._turn_own_window()
        if opcode in _ATOMICS or (opcode in _ON_WORDS and self.rng.random() < _WORD_ODDS):
            return self._on_words(opcode)
        return self._transfer(opcode)

    def _next(self, opcode: WrOpcode, slot_bytes: int = SLOT) -> int:
        """Take the next position, and a slot, for an operation."""
        self.opcodes.append(opcode)
        self.slot_bytes = slot_bytes
        self.edges.append(self.edges[-1] + slot_bytes)
        return len(self.opcodes) - 1

    def _draw_slot_bytes(self, opcode: WrOpcode) -> int:
        may_be_large = opcode not in SENDS or self.sends_may_be_large
        if not (self._large_left and may_be_large) or self.rng.random() >= _LARGE_ODDS:
            return SLOT
        self._large_left -= 1
        return self.large_bytes

    def _draw_length(self, opcode: WrOpcode) -> int:
        """Bytes of a transfer through the newest slot."""
        if opcode == WrOpcode.ATOMIC_WRITE:
            return _WORD_BYTES
        most = self.slot_bytes
        if most > SLOT:
            return self.rng.randrange(most // 2, most + 1)
        return self.rng.choice((0, 1, self.rng.randrange(most), most))

    def _transfer(self, opcode: WrOpcode) -> Any:
        window = self._an_open_window()
        if opcode == WrOpcode.SEND_WITH_INV and window is None:
            opcode = WrOpcode.SEND
        size = SLOT if opcode == WrOpcode.ATOMIC_WRITE else self._draw_slot_bytes(opcode)
        number = self._next(opcode, size)
        length = self._draw_length(opcode)
        imm = number
        target = towards(self.remote, self.edges[number])
        if window is not None and (opcode == WrOpcode.SEND_WITH_INV or self.rng.random() < 0.5):
            target["rkey"] = window.key
        if opcode == WrOpcode.SEND_WITH_INV and window is not None:
            window.is_open = False
            imm = window.key
        self._expect_transfer(opcode, number, length, imm)
        flags = self._flags(opcode, length)
        elements = self.split(self.local, self.edges[number], length)
        if flags & SendFlags.INLINE:
            shift = self.local.host_addr - self.local.addr
            elements = [(addr + shift, nbytes, 0) for addr, nbytes, _ in elements]
        target |= self._summed(opcode, number)
        return work(opcode, elements, flags, wr_id=number, imm=imm, **target)

    def _an_open_window(self) -> Window | None:
        """The oldest, so that the others are still open after it has been closed."""
        return next((window for window in self.windows if window.is_open), None)

    def _expect_transfer(self, opcode: WrOpcode, number: int, length: int, imm: int) -> None:
        place = slice(self.edges[number], self.edges[number] + length)
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

    def _flush(self) -> Any:
        """A FLUSH of a part of the peer's memory, or of all of it, by any key to it."""
        number = self._next(WrOpcode.FLUSH)
        window = self._an_open_window()
        start = self.rng.randrange(len(self.remote.data))
        target = towards(self.remote, start)
        if window is not None and self.rng.random() < 0.5:
            target["rkey"] = window.key
        level = self.rng.choice(tuple(Selectivity))
        return work(
            WrOpcode.FLUSH,
            (),
            self._flags(WrOpcode.FLUSH, 0),
            wr_id=number,
            feth=Feth(Placement.GLOBAL, level).word,
            flush_length=self.rng.randrange(len(self.remote.data) - start + 1),
            **target,
        )

    def _on_words(self, opcode: WrOpcode) -> Any:
        """An atomic, or another operation on 8 bytes, at one of the shared words."""
        number = self._next(opcode)
        which = self.rng.randrange(WORDS)
        before = self.word_values[which]
        operand, swap = self.rng.getrandbits(64), self.rng.getrandbits(64)
        if opcode == WrOpcode.ATOMIC_CMP_AND_SWP:
            operand = self.rng.choice((before, operand))
        after = _word_after(opcode, before, operand, swap)
        # A READ that is answered again finds what has been written since.
        must_wait = which in self._being_read and opcode != WrOpcode.RDMA_READ
        flags = self._flags(opcode, _WORD_BYTES, must_wait=must_wait) & ~SendFlags.INLINE
        if opcode == WrOpcode.RDMA_READ:
            self._being_read.add(which)
        self.word_values[which] = after
        self.lengths[number] = _WORD_BYTES
        self.results_want[number] = before
        if opcode in _WRITES:
            self.results_want[number] = after
            self.results.data.view(np.uint64)[number] = after
        return work(
            opcode,
            [part(self.results, _WORD_BYTES * number, _WORD_BYTES)],
            flags,
            wr_id=number,
            compare_add=_as_signed(operand),
            swap=_as_signed(swap),
            **self._summed(opcode, number),
            **towards(self.words, _WORD_BYTES * which),
        )

    def _summed(self, opcode: WrOpcode, number: int) -> dict[str, int]:
        """A READ names the word of its sum."""
        at = int(self.sums.ctypes.data) + self.sums.itemsize * number
        return {"sum_addr": at if opcode == WrOpcode.RDMA_READ else 0}

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

    def _flags(self, opcode: WrOpcode, length: int, *, must_wait: bool = False) -> SendFlags:
        """Any that the newest position may have. Of so many in a row one is signaled, or a
        full queue would stay full; and the last of all is."""
        number = len(self.opcodes) - 1
        flags = SendFlags(0)
        if must_wait:
            flags |= SendFlags.FENCE
        distance = number - (self.signaled[-1] if self.signaled else -1)
        is_last = number == self.operations - 1
        if distance == _SIGNALED_EVERY or is_last or self.rng.random() < 0.3:
            flags |= SendFlags.SIGNALED
            self.signaled.append(number)
        # What a READ still needs must not be closed before it has been answered.
        if opcode == WrOpcode.SEND_WITH_INV or self.rng.random() < 0.1:
            flags |= SendFlags.FENCE
        if flags & SendFlags.FENCE:
            self._being_read.clear()
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
        place = slice(self.edges[done_before], self.edges[number + 1])
        assert (self.local.data[place] == self.local_want[place]).all()
        assert (self.remote.data[place] == self.remote_want[place]).all()
        results = _words(self.results)
        for position in range(done_before, number + 1):
            if position in self.results_want:
                assert results[position] == self.results_want[position]

    def check_end(self) -> None:
        """Everything has completed once, and memory and windows are as they must be."""
        assert self.completed == len(self.signaled)
        assert (self.local.data == self.local_want).all()
        assert (self.remote.data == self.remote_want).all()
        assert _words(self.words) == self.word_values
        results = _words(self.results)
        assert {number: results[number] for number in self.results_want} == self.results_want
        self._check_sums()
        for region in (self.local, self.remote, self.results, self.words):
            assert region.guards_hold()
        _check_window(self.port, self.own_window)
        for window in self.windows:
            _check_window(self.peer, window)

    def _check_sums(self) -> None:
        """Each byte of a READ is summed once, however often its packets came."""
        for number, opcode in enumerate(self.opcodes):
            want = number
            if opcode == WrOpcode.RDMA_READ and number in self.results_want:
                want = zlib.crc32(self.results_want[number].to_bytes(8, "little"), number)
            elif opcode == WrOpcode.RDMA_READ:
                start = self.edges[number]
                data = self.local_want[start : start + self.lengths[number]]
                want = zlib.crc32(data.tobytes(), number)
            assert self.sums[number] == want


def _word_after(opcode: WrOpcode, before: int, operand: int, swap: int) -> int:
    """What a shared word holds once an operation has been carried out on it."""
    if opcode == WrOpcode.ATOMIC_FETCH_AND_ADD:
        return (before + operand) & _TOP
    if opcode == WrOpcode.ATOMIC_CMP_AND_SWP:
        return swap if operand == before else before
    return operand if opcode in _WRITES else before


def _check_window(port: Port, window: Window) -> None:
    record = port.engine.regions.table[window.key >> 8]
    assert record.key == window.key
    assert (record.access != 0) == window.is_open


def _as_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _words(region: Region) -> list[int]:
    return [int(value) for value in region.data.view(np.uint64)]
