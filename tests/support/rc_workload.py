"""A random workload over connections that a bad link disturbs, and what must come of it.

Every operation has its own slot of memory, so the expected bytes do not depend on how
operations overlap; atomics share a few words, and their results tell in which order and
how often they took effect.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kvlane.verbs.enums import SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.bad_link import BadLink, Odds
from tests.support.roce_pair import Pair, Port, Region
from tests.support.roce_work import Element, part, receive, towards, work

SLOT = 3000
WORDS = 4
_INLINE_MOST = 512
_TOP = (1 << 64) - 1
_SENDS = (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM)
_WRITES = (WrOpcode.RDMA_WRITE, WrOpcode.RDMA_WRITE_WITH_IMM)
_ATOMICS = (WrOpcode.ATOMIC_CMP_AND_SWP, WrOpcode.ATOMIC_FETCH_AND_ADD)
_OPCODES = (*_SENDS, *_WRITES, WrOpcode.RDMA_READ, WrOpcode.RDMA_READ, *_ATOMICS)
_TAKES_RECEIVE = (*_SENDS, WrOpcode.RDMA_WRITE_WITH_IMM)


@dataclass(frozen=True)
class Plan:
    """All that a run depends on."""

    seed: int
    odds: Odds
    mtu: int = 1024
    first_psn: int | None = None
    operations: int = 25
    """Of each connection in each direction."""
    connections: int = 1
    shared: bool = False
    """Do receives come from a shared queue?"""
    late: bool = False
    """Are receives posted while messages already wait for them?"""

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        """A plan that the seed alone decides; some mishaps may be absent in it."""
        rng = random.Random(seed)
        odds = [rng.choice((0.0, rng.uniform(0, 0.2))) for _ in range(5)]
        return cls(
            seed,
            Odds(*odds),
            mtu=rng.choice((256, 512, 1024, 2048, 4096)),
            first_psn=rng.choice((0, 0xFFFFF0, 0x7FFFF0, None)),
            connections=rng.choice((1, 2, 3)),
            shared=rng.random() < 0.5,
            late=rng.random() < 0.3,
        )

    @property
    def total(self) -> int:
        """Operations of the whole run."""
        return 2 * self.connections * self.operations


@dataclass
class Flow:
    """One direction of one connection."""

    port: Port
    qp: int
    peer: Port
    peer_qp: int
    local: Region
    remote: Region
    results: Region
    words: Region
    local_want: Any = None
    remote_want: Any = None
    word_values: list[int] = field(default_factory=lambda: [0] * WORDS)
    originals: dict[int, int] = field(default_factory=dict)
    taking: list[tuple[int, WrOpcode, Any]] = field(default_factory=list)
    """Operations that take a receive: number, opcode, bytes."""


class RcWorkload:
    """Builds a plan, runs it, and checks everything that can be told."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._rng = random.Random(plan.seed)
        options = QpOptions(
            ack_timeout_code=6,
            max_send_wr=max(64, plan.operations),
            max_recv_wr=max(64, plan.operations),
            max_rd_atomic=4,
        )
        self.pair = Pair(plan.mtu, options, plan.first_psn)
        # The same addresses in every process, so that the frames are the same too.
        self.pair.a.next_iova = self.pair.b.next_iova = 1 << 40
        self.pair.to_a = BadLink(self._rng.getrandbits(32), plan.odds)
        self.pair.to_b = BadLink(self._rng.getrandbits(32), plan.odds)
        self._inboxes: dict[int, Region] = {}
        self._srqs: dict[int, int] = {}
        room = 2 * plan.connections * plan.operations * SLOT
        for port in (self.pair.a, self.pair.b):
            self._inboxes[id(port)] = port.region(room)
            if plan.shared:
                self._srqs[id(port)] = port.engine.srqs.create(1, plan.total)
        self._next_slot: dict[int, int] = defaultdict(int)
        self._unposted: list[tuple[Flow, Any]] = []
        self.flows = [flow for _ in range(plan.connections) for flow in self._connection()]

    def _connection(self) -> list[Flow]:
        a, b = self.pair.a, self.pair.b
        a.qp, b.qp = (port.new_qp(self._srqs.get(id(port), -1)) for port in (a, b))
        a.connect(b, self.plan.mtu)
        b.connect(a, self.plan.mtu)
        for port in (a, b):
            # Long runs of bad luck are part of the exercise; a dead connection is not.
            qp = port.engine.qps.table[port.qp]
            qp.retry_count = qp.retries_left = 1 << 30
        return [self._flow(a, b), self._flow(b, a)]

    def _flow(self, port: Port, peer: Port) -> Flow:
        size = self.plan.operations * SLOT
        flow = Flow(
            port,
            port.qp,
            peer,
            peer.qp,
            port.region(size),
            peer.region(size),
            port.region(8 * self.plan.operations),
            peer.region(8 * WORDS),
        )
        fill = np.random.default_rng(self._rng.getrandbits(32))
        for region in (flow.local, flow.remote):
            region.data[:] = fill.integers(0, 256, size, dtype=np.uint8)
        flow.local_want, flow.remote_want = flow.local.data.copy(), flow.remote.data.copy()
        return flow

    # Building

    def build(self) -> None:
        """Post everything."""
        for flow in self.flows:
            works = [self._operation(flow, i) for i in range(self.plan.operations)]
            flow.port.engine.qps.post_work(flow.qp, np.concatenate(works).view(np.recarray))

    def _operation(self, flow: Flow, number: int) -> Any:
        opcode = self._rng.choice(_OPCODES)
        if opcode in _ATOMICS:
            return self._atomic(flow, number, opcode)
        length = self._rng.choice((0, 1, self._rng.randrange(SLOT), SLOT))
        place = slice(number * SLOT, number * SLOT + length)
        data = flow.local_want[place].copy()
        if opcode == WrOpcode.RDMA_READ:
            flow.local_want[place] = flow.remote_want[place]
        elif opcode in _WRITES:
            flow.remote_want[place] = data
        if opcode in _TAKES_RECEIVE:
            flow.taking.append((number, opcode, data))
            self._give_receive(flow)
        flags = self._flags(opcode, length)
        elements = self._split(flow.local, number * SLOT, length)
        if flags & SendFlags.INLINE:
            shift = flow.local.host_addr - flow.local.addr
            elements = [(addr + shift, nbytes, 0) for addr, nbytes, _ in elements]
        return work(
            opcode,
            elements,
            flags,
            wr_id=number,
            imm=number,
            **towards(flow.remote, number * SLOT),
        )

    def _atomic(self, flow: Flow, number: int, opcode: WrOpcode) -> Any:
        which = self._rng.randrange(WORDS)
        before = flow.word_values[which]
        flow.originals[number] = before
        operand, swap = self._rng.getrandbits(64), self._rng.getrandbits(64)
        if opcode == WrOpcode.ATOMIC_FETCH_AND_ADD:
            flow.word_values[which] = (before + operand) & _TOP
        else:
            operand = self._rng.choice((before, operand))
            flow.word_values[which] = swap if operand == before else before
        return work(
            opcode,
            [part(flow.results, 8 * number, 8)],
            wr_id=number,
            compare_add=_signed(operand),
            swap=_signed(swap),
            **towards(flow.words, 8 * which),
        )

    def _flags(self, opcode: WrOpcode, length: int) -> SendFlags:
        flags = SendFlags.SIGNALED
        if self._rng.random() < 0.1:
            flags |= SendFlags.FENCE
        if opcode != WrOpcode.RDMA_READ and length <= _INLINE_MOST and self._rng.random() < 0.3:
            flags |= SendFlags.INLINE
        return flags

    def _split(self, region: Region, offset: int, length: int) -> list[Element]:
        cuts = sorted(self._rng.randrange(length + 1) for _ in range(self._rng.randrange(4)))
        edges = [0, *cuts, length]
        return [part(region, offset + start, end - start) for start, end in pairwise(edges)]

    def _give_receive(self, flow: Flow) -> None:
        slot = self._next_slot[id(flow.peer)]
        self._next_slot[id(flow.peer)] += 1
        elements = self._split(self._inboxes[id(flow.peer)], slot * SLOT, SLOT)
        self._unposted.append((flow, receive(elements, wr_id=slot)))
        if not self.plan.late:
            self._post_receive()

    def _post_receive(self) -> None:
        flow, entry = self._unposted.pop(0)
        if self.plan.shared:
            flow.peer.engine.srqs.post(self._srqs[id(flow.peer)], entry)
        else:
            flow.peer.engine.qps.post_receives(flow.peer_qp, entry)

    def run(self) -> None:
        """Until both ends are quiet."""
        while self._unposted:
            for _ in range(self._rng.randrange(5)):
                self.pair.step()
            self._post_receive()
        self.pair.run(max_steps=1_000_000)

    # Checking

    def check(self) -> None:
        """``AssertionError`` when anything is missing, doubled, out of order or wrong."""
        done = {id(port): port.poll() for port in (self.pair.a, self.pair.b)}
        assert all(wc.status == WcStatus.SUCCESS for wcs in done.values() for wc in wcs)
        for flow in self.flows:
            mine = [wc for wc in done[id(flow.port)] if _of(wc, flow.port, flow.qp)]
            sent = [int(wc.wr_id) for wc in mine if _is_send(wc)]
            assert sent == list(range(self.plan.operations))
            self._check_receives(flow, done[id(flow.peer)])
            assert (flow.local.data == flow.local_want).all()
            assert (flow.remote.data == flow.remote_want).all()
            assert _words(flow.words) == flow.word_values
            results = _words(flow.results)
            assert {number: results[number] for number in flow.originals} == flow.originals
            for region in (flow.local, flow.remote, flow.results, flow.words):
                assert region.guards_hold()
        assert all(inbox.guards_hold() for inbox in self._inboxes.values())

    def _check_receives(self, flow: Flow, done: list[Any]) -> None:
        arrived = [wc for wc in done if not _is_send(wc) and _of(wc, flow.peer, flow.peer_qp)]
        assert len(arrived) == len(flow.taking)
        inbox = self._inboxes[id(flow.peer)]
        for wc, (number, opcode, data) in zip(arrived, flow.taking, strict=True):
            assert wc.byte_len == len(data)
            assert wc.imm == (number if opcode != WrOpcode.SEND else 0)
            if opcode in _SENDS:
                start = int(wc.wr_id) * SLOT
                assert (inbox.data[start : start + len(data)] == data).all()


def run_plan(plan: Plan) -> None:
    """Build, run and check."""
    workload = RcWorkload(plan)
    workload.build()
    workload.run()
    workload.check()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _words(region: Region) -> list[int]:
    return [int(value) for value in region.data.view(np.uint64)]


def _is_send(wc: Any) -> bool:
    return bool(wc.opcode < WcOpcode.RECV)


def _of(wc: Any, port: Port, qp: int) -> bool:
    return bool(wc.qp_num == port.engine.qps.number(qp))
