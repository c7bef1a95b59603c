"""A random workload over connections that a bad link disturbs, and what must come of it."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvlane.verbs.enums import WcOpcode, WcStatus
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import WC, new_records
from tests.support.bad_link import BadLink, Odds
from tests.support.rc_flow import SENDS, SLOT, Flow
from tests.support.roce_pair import Pair, Port, Region
from tests.support.roce_work import receive

_ROOM = 12
"""Send work requests that a queue pair holds: more are posted as completions make room."""
_MAX_STEPS = 1_000_000
_MILD, _WILD = 0.02, 0.2


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
    endless: bool = True
    """Do retries never run out? On the worst links bad luck lasts; where it does not, 7 of
    either kind must do."""

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        """A plan that the seed alone decides; some mishaps may be absent in it."""
        rng = random.Random(seed)
        endless = rng.random() < 0.7
        most = _WILD if endless else _MILD
        odds = [rng.choice((0.0, rng.uniform(0, most))) for _ in range(5)]
        return cls(
            seed,
            Odds(*odds),
            mtu=rng.choice((256, 512, 1024, 2048, 4096)),
            first_psn=rng.choice((0, 0xFFFFF0, 0x7FFFF0, None)),
            connections=rng.choice((1, 2, 3)),
            shared=rng.random() < 0.5,
            late=rng.random() < 0.3,
            endless=endless,
        )

    @property
    def total(self) -> int:
        """Operations of the whole run."""
        return 2 * self.connections * self.operations


class RcWorkload:
    """Builds a plan, runs it, and checks everything that can be told."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._rng = random.Random(plan.seed)
        options = QpOptions(
            ack_timeout_code=6,
            max_send_wr=_ROOM,
            max_recv_wr=max(64, plan.operations),
            max_rd_atomic=4,
            retry_count=7,
            rnr_retry_count=7,
        )
        self.pair = Pair(plan.mtu, options, plan.first_psn)
        # The same addresses in every process, so that the frames are the same too.
        self.pair.a.next_iova = self.pair.b.next_iova = 1 << 40
        self.pair.to_a = BadLink(self._rng.getrandbits(32), plan.odds)
        self.pair.to_b = BadLink(self._rng.getrandbits(32), plan.odds)
        self.completions: dict[int, list[Any]] = {}
        """All that have been polled, by ``id`` of the port."""
        self._inboxes: dict[int, Region] = {}
        self._srqs: dict[int, int] = {}
        room = 2 * plan.connections * plan.operations * SLOT
        for port in (self.pair.a, self.pair.b):
            self.completions[id(port)] = []
            self._inboxes[id(port)] = port.region(room)
            if plan.shared:
                self._srqs[id(port)] = port.engine.srqs.create(1, plan.total)
        self._polled = new_records(WC, 64)
        self._next_slot: dict[int, int] = defaultdict(int)
        self._unposted_receives: list[tuple[Flow, Any]] = []
        self._unposted_work: dict[int, list[Any]] = {}
        self.flows = [flow for _ in range(plan.connections) for flow in self._connection()]

    def _connection(self) -> list[Flow]:
        a, b = self.pair.a, self.pair.b
        a.qp, b.qp = (port.new_qp(self._srqs.get(id(port), -1)) for port in (a, b))
        a.connect(b, self.plan.mtu)
        b.connect(a, self.plan.mtu)
        if self.plan.endless:
            for port in (a, b):
                qp = port.engine.qps.table[port.qp]
                qp.retry_count = qp.retries_left = 1 << 30
        there, back = (
            Flow(port, port.qp, peer, peer.qp, self.plan.operations, self._rng)
            for port, peer in ((a, b), (b, a))
        )
        self._unposted_work[id(there)] = there.open_windows(back)
        self._unposted_work[id(back)] = back.open_windows(there)
        return [there, back]

    # Building

    def build(self) -> None:
        """Open the windows, and make all the rest."""
        for flow in self.flows:
            self._post_work(flow)
        # Binds are carried out when they are due to be sent: before the peer knows of them.
        for port in (self.pair.a, self.pair.b):
            assert port.transmit(self.pair.now) == []
        for flow in self.flows:
            while len(flow.opcodes) < self.plan.operations:
                arrivals = len(flow.taking)
                self._unposted_work[id(flow)].append(flow.operation())
                if len(flow.taking) > arrivals:
                    self._give_receive(flow)

    def _give_receive(self, flow: Flow) -> None:
        slot = self._next_slot[id(flow.peer)]
        self._next_slot[id(flow.peer)] += 1
        elements = flow.split(self._inboxes[id(flow.peer)], slot * SLOT, SLOT)
        self._unposted_receives.append((flow, receive(elements, wr_id=slot)))
        if not self.plan.late:
            self._post_receive()

    def _post_receive(self) -> None:
        flow, entry = self._unposted_receives.pop(0)
        if self.plan.shared:
            flow.peer.engine.srqs.post(self._srqs[id(flow.peer)], entry)
        else:
            flow.peer.engine.qps.post_receives(flow.peer_qp, entry)

    def _post_work(self, flow: Flow) -> bool:
        """Post what there is room for; False when that was nothing."""
        works = self._unposted_work[id(flow)]
        posted = flow.posted
        room = _ROOM - (posted - flow.free_before)
        batch, self._unposted_work[id(flow)] = works[:room], works[room:]
        if not batch:
            return False
        flow.posted += len(batch)
        flow.port.engine.qps.post_work(flow.qp, np.concatenate(batch).view(np.recarray))
        return True

    # Running

    def run(self) -> None:
        """Until both ends are quiet."""
        for _ in range(_MAX_STEPS):
            quiet = not self.pair.advance()
            self._take_completions()
            for flow in self.flows:
                quiet = not self._post_work(flow) and quiet
            if self._unposted_receives:
                if self._rng.random() < 0.4:
                    self._post_receive()
            elif quiet:
                return
        raise AssertionError("the exchange does not come to an end")

    def _take_completions(self) -> None:
        for port in (self.pair.a, self.pair.b):
            count = port.engine.cqs.poll(port.cq, self._polled)
            for wc in self._polled[:count].copy():
                self.completions[id(port)].append(wc)
                assert wc.status == WcStatus.SUCCESS
                if _is_send(wc):
                    self._flow_of(port, wc).check_completion(wc)

    def _flow_of(self, port: Port, wc: Any) -> Flow:
        return next(flow for flow in self.flows if flow.port is port and _of(wc, port, flow.qp))

    # Checking

    def check(self) -> None:
        """``AssertionError`` when anything is missing, doubled, out of order or wrong."""
        for flow in self.flows:
            flow.check_end()
            self._check_receives(flow)
        assert all(inbox.guards_hold() for inbox in self._inboxes.values())

    def _check_receives(self, flow: Flow) -> None:
        done = self.completions[id(flow.peer)]
        arrived = [wc for wc in done if not _is_send(wc) and _of(wc, flow.peer, flow.peer_qp)]
        assert len(arrived) == len(flow.taking)
        inbox = self._inboxes[id(flow.peer)]
        for wc, arrival in zip(arrived, flow.taking, strict=True):
            assert wc.byte_len == len(arrival.data)
            assert (wc.imm, wc.wc_flags) == (arrival.imm, arrival.wc_flags)
            if arrival.opcode in SENDS:
                start = int(wc.wr_id) * SLOT
                assert (inbox.data[start : start + len(arrival.data)] == arrival.data).all()


def run_plan(plan: Plan) -> int:
    """Build, run and check; how many operations have completed."""
    workload = RcWorkload(plan)
    workload.build()
    workload.run()
    workload.check()
    return sum(len(flow.opcodes) for flow in workload.flows)


def _is_send(wc: Any) -> bool:
    return bool(wc.opcode < WcOpcode.RECV)


def _of(wc: Any, port: Port, qp: int) -> bool:
    return bool(wc.qp_num == port.engine.qps.number(qp))
