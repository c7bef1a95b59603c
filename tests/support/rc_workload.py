"""A random workload over connections that a bad link disturbs, and what must come of it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvlane.verbs.enums import WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import WC, new_records
from tests.support.bad_link import BadLink, Odds
from tests.support.rc_flow import FLUSHABLE, LARGE_SLOTS, SENDS, SLOT, Flow
from tests.support.roce_pair import Channel, Frame, Pair, Port, Region
from tests.support.roce_work import receive
from tests.support.window_watch import WindowWatch

_ROOM = 12
"""Send work requests that a queue pair holds: more are posted as completions make room."""
_MAX_STEPS = 1_000_000
_MILD, _WILD = 0.02, 0.2
_GUARD_FILL = 0x5A
"""What lies in every receive slot before a message does."""


@dataclass(frozen=True)
class Load:
    """How much is on its way at once."""

    large_bytes: int = 0
    """Length of rare large slots; 0 = there are none."""
    window_packets: int = 0
    """Of the send window and of the READ window; 0 = those that the engine chooses."""


LIGHT = Load()
TIGHT = Load(40_000, window_packets=4)
"""Small windows, and messages that do not fit them."""
HEAVY = Load(300_000)
"""Messages that do not fit the windows that the engine chooses."""


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
    depth: int = 4
    """READs, atomics and the like that may be outstanding at once."""
    load: Load = LIGHT

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
            depth=rng.randint(1, 4),
            load=rng.choice((LIGHT, LIGHT, TIGHT) if endless else (LIGHT, TIGHT, HEAVY)),
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
            max_rd_atomic=plan.depth,
            retry_count=7,
            rnr_retry_count=7,
        )
        self.pair = Pair(plan.mtu, options, plan.first_psn)
        # The same addresses in every process, so that the frames are the same too.
        self.pair.a.next_iova = self.pair.b.next_iova = 1 << 40
        self.pair.to_a = self._link(self.pair.b)
        self.pair.to_b = self._link(self.pair.a)
        self.completions: dict[int, list[Any]] = {}
        """All that have been polled, by ``id`` of the port."""
        self._inboxes: dict[int, Region] = {}
        self._inboxes_want: dict[int, Any] = {}
        self._srqs: dict[int, int] = {}
        room = plan.connections * (plan.operations * SLOT + LARGE_SLOTS * plan.load.large_bytes)
        for port in (self.pair.a, self.pair.b):
            self.completions[id(port)] = []
            inbox = self._inboxes[id(port)] = port.region(room)
            inbox.data[:] = _GUARD_FILL
            self._inboxes_want[id(port)] = inbox.data.copy()
            if plan.shared:
                self._srqs[id(port)] = port.engine.srqs.create(1, plan.total)
        self._polled = new_records(WC, 64)
        self._slots: dict[int, list[int]] = defaultdict(lambda: [0])
        """Where the receive slots of each port begin, and where the last ends."""
        self._unposted_receives: list[tuple[Flow, Any]] = []
        self._unposted_work: dict[int, list[Any]] = {}
        self.flows = [flow for _ in range(plan.connections) for flow in self._connection()]
        self.windows = WindowWatch(self.flows, plan.mtu)

    def _link(self, sender: Port) -> Channel:
        """A bad link from ``sender``, whose windows are looked at whenever it has sent."""
        link = BadLink(self._rng.getrandbits(32), self.plan.odds)
        if self.plan.load == LIGHT:
            return link

        def passes(frames: list[Frame]) -> list[Frame]:
            self.windows.look_at(sender)
            return link(frames)

        return passes

    def _connection(self) -> list[Flow]:
        a, b = self.pair.a, self.pair.b
        a.qp, b.qp = (port.new_qp(self._srqs.get(id(port), -1)) for port in (a, b))
        a.connect(b, self.plan.mtu)
        b.connect(a, self.plan.mtu)
        for port in (a, b):
            qp = port.engine.qps.table[port.qp]
            qp.access = int(FLUSHABLE)
            if self.plan.endless:
                qp.retry_count = qp.retries_left = 1 << 30
            if self.plan.load.window_packets:
                qp.window = qp.read_window = self.plan.load.window_packets
        there, back = (
            Flow(
                port,
                port.qp,
                peer,
                peer.qp,
                self.plan.operations,
                self._rng,
                self.plan.load.large_bytes,
                # A receive of a shared queue takes whichever message comes first.
                sends_may_be_large=not self.plan.shared,
            )
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
        slots = self._slots[id(flow.peer)]
        size = flow.slot_bytes if flow.taking[-1].opcode in SENDS else SLOT
        elements = flow.split(self._inboxes[id(flow.peer)], slots[-1], size)
        self._unposted_receives.append((flow, receive(elements, wr_id=len(slots) - 1)))
        slots.append(slots[-1] + size)
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
        for port, inbox in self._inboxes.items():
            assert (inbox.data == self._inboxes_want[port]).all()
            assert inbox.guards_hold()

    def _check_receives(self, flow: Flow) -> None:
        done = self.completions[id(flow.peer)]
        arrived = [wc for wc in done if not _is_send(wc) and _of(wc, flow.peer, flow.peer_qp)]
        assert len(arrived) == len(flow.taking)
        want, slots = self._inboxes_want[id(flow.peer)], self._slots[id(flow.peer)]
        for wc, arrival in zip(arrived, flow.taking, strict=True):
            assert wc.byte_len == len(arrival.data)
            assert (wc.imm, wc.wc_flags) == (arrival.imm, arrival.wc_flags)
            if arrival.opcode in SENDS:
                start = slots[int(wc.wr_id)]
                want[start : start + len(arrival.data)] = arrival.data


@dataclass(frozen=True)
class Outcome:
    """What a run that was right has seen."""

    kinds: Counter[WrOpcode]
    """Operations that have completed."""
    send_closings: int
    read_closings: int
    """As ``WindowWatch`` counts them."""


def run_plan(plan: Plan) -> Outcome:
    """Build, run and check."""
    workload = RcWorkload(plan)
    workload.build()
    workload.run()
    workload.check()
    windows = workload.windows
    kinds = Counter(opcode for flow in workload.flows for opcode in flow.opcodes)
    return Outcome(kinds, windows.send_closings, windows.read_closings)


def _is_send(wc: Any) -> bool:
    return bool(wc.opcode < WcOpcode.RECV)


def _of(wc: Any, port: Port, qp: int) -> bool:
    return bool(wc.qp_num == port.engine.qps.number(qp))
