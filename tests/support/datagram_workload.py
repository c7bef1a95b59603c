"""UC and UD over a bad link: much may be missing, but nothing that is told of may be wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from kvlane.verbs.enums import QpType, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.bad_link import BadLink
from tests.support.rc_workload import Plan
from tests.support.roce_pair import Pair
from tests.support.roce_work import part, post, receive, to_port, towards, work

SLOT = 3000
GRH = 40


class DatagramWorkload:
    """Messages from a to b, each with its number as immediate data."""

    def __init__(self, plan: Plan, kind: QpType) -> None:
        self.plan = plan
        self.kind = kind
        self._rng = random.Random(plan.seed)
        options = QpOptions(max_send_wr=64, max_recv_wr=256)
        self.pair = Pair(plan.mtu, options, plan.first_psn, kind)
        if plan.shared:
            self._share()
        self.pair.to_b = BadLink(self._rng.getrandbits(32), plan.odds)
        size = plan.operations * SLOT
        self.source, self.target = self.pair.a.region(size), self.pair.b.region(size)
        fill = np.random.default_rng(plan.seed)
        self.source.data[:] = fill.integers(0, 256, size, dtype=np.uint8)
        self.before = fill.integers(0, 256, size, dtype=np.uint8)
        self.target.data[:] = self.before
        # A network may repeat a message; twice as many receives as messages are enough.
        self.inbox = self.pair.b.region(3 * plan.operations * (SLOT + GRH))
        self.sent: dict[int, tuple[WrOpcode, int]] = {}

    def _share(self) -> None:
        b = self.pair.b
        srq = b.engine.srqs.create(1, 256)
        b.qp = b.new_qp(srq)
        b.connect(self.pair.a, self.plan.mtu)
        self.pair.a.engine.qps.table[self.pair.a.qp].remote_qpn = b.number
        self._srq = srq

    def run(self) -> None:
        """Send everything, a few messages at a time."""
        b = self.pair.b
        for slot in range(3 * self.plan.operations):
            entry = receive([part(self.inbox, slot * (SLOT + GRH), SLOT + GRH)], wr_id=slot)
            if self.plan.shared:
                b.engine.srqs.post(self._srq, entry)
            else:
                b.engine.qps.post_receives(b.qp, entry)
        for number in range(self.plan.operations):
            post(self.pair.a, self._message(number))
            for _ in range(self._rng.randrange(3)):
                self.pair.step()
        self.pair.run()

    def _message(self, number: int) -> Any:
        opcode = WrOpcode.SEND_WITH_IMM
        if self.kind == QpType.UC:
            opcode = self._rng.choice((WrOpcode.SEND_WITH_IMM, WrOpcode.RDMA_WRITE_WITH_IMM))
        length = self._rng.choice((0, 1, self._rng.randrange(SLOT), SLOT))
        self.sent[number] = (opcode, length)
        elements = [part(self.source, number * SLOT, length)]
        if self.kind == QpType.UD:
            return work(opcode, elements, imm=number, wr_id=number, **to_port(self.pair.b))
        fields = towards(self.target, number * SLOT)
        return work(opcode, elements, imm=number, wr_id=number, **fields)

    def check(self) -> int:
        """``AssertionError`` on a wrong byte; returns how many messages have arrived."""
        done = self.pair.a.poll()
        assert [int(wc.wr_id) for wc in done] == list(range(self.plan.operations))
        arrived = self.pair.b.poll()
        assert all(wc.status == WcStatus.SUCCESS for wc in (*done, *arrived))
        for wc in arrived:
            self._check_one(wc)
        self._check_target()
        assert self.inbox.guards_hold()
        assert self.target.guards_hold()
        return len({int(wc.imm) for wc in arrived})

    def _check_one(self, wc: Any) -> None:
        number = int(wc.imm)
        opcode, length = self.sent[number]
        expected = self.source.data[number * SLOT : number * SLOT + length]
        if opcode == WrOpcode.RDMA_WRITE_WITH_IMM:
            assert (wc.opcode, wc.byte_len) == (WcOpcode.RECV_RDMA_WITH_IMM, length)
            assert (self.target.data[number * SLOT : number * SLOT + length] == expected).all()
            return
        head = GRH if self.kind == QpType.UD else 0
        assert (wc.opcode, wc.byte_len) == (WcOpcode.RECV, head + length)
        start = int(wc.wr_id) * (SLOT + GRH) + head
        assert (self.inbox.data[start : start + length] == expected).all()

    def _check_target(self) -> None:
        """Every byte is as it was, or is what was written to just that place."""
        written = np.zeros(len(self.target.data), bool)
        for number, (opcode, length) in self.sent.items():
            if opcode == WrOpcode.RDMA_WRITE_WITH_IMM:
                written[number * SLOT : number * SLOT + length] = True
        as_before = self.target.data == self.before
        as_sent = written & (self.target.data == self.source.data)
        assert (as_before | as_sent).all()


def run_datagrams(plan: Plan, kind: QpType) -> int:
    """Build, run and check; how many messages have arrived."""
    workload = DatagramWorkload(plan, kind)
    workload.run()
    return workload.check()
