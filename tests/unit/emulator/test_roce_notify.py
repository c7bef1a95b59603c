"""Completion notification: who has asked is told once, of the next thing he asked for."""

from __future__ import annotations

import pytest

from emulator.roce.state import ARM_NEXT, ARM_SOLICITED
from kvlane.verbs.enums import SendFlags, WrOpcode
from tests.support.roce_pair import Pair, Port, Region
from tests.support.roce_work import part, post, post_receive, receive, towards, work

SOLICITED = SendFlags.SIGNALED | SendFlags.SOLICITED
PLAIN = SendFlags.SIGNALED


class Meeting:
    """A pair with memory; ``send`` makes one receive of b complete."""

    def __init__(self) -> None:
        self.pair = Pair(256)
        self.source: Region = self.pair.a.region(1024)
        self.target: Region = self.pair.b.region(1024)

    def send(
        self,
        flags: SendFlags = PLAIN,
        opcode: WrOpcode = WrOpcode.SEND,
        length: int = 8,
    ) -> None:
        post_receive(self.pair.b, receive([part(self.target)]))
        element = part(self.source, 0, length)
        post(self.pair.a, work(opcode, [element], flags, **towards(self.target)))
        self.pair.run()

    def arm(self, mode: int) -> None:
        self.pair.b.engine.cqs.arm(self.pair.b.cq, mode)

    def woken(self) -> bool:
        return ready(self.pair.b)


def ready(port: Port) -> bool:
    """Has the port's completion queue become ready since the last look?"""
    indexes = port.engine.take_ready_cqs()
    assert indexes in ([], [port.cq])
    return bool(indexes)


def test_who_has_not_asked_is_not_told() -> None:
    meeting = Meeting()
    meeting.send(SOLICITED)
    assert not meeting.woken()


def test_who_asks_for_the_next_is_told_of_it_once() -> None:
    meeting = Meeting()
    meeting.arm(ARM_NEXT)
    assert not meeting.woken()
    meeting.send()
    meeting.send()
    assert meeting.woken()
    meeting.send()
    assert not meeting.woken()
    meeting.arm(ARM_NEXT)
    assert not meeting.woken(), "what came before the asking does not count"
    meeting.send()
    assert meeting.woken()


@pytest.mark.parametrize(
    "opcode", [WrOpcode.SEND, WrOpcode.SEND_WITH_IMM, WrOpcode.RDMA_WRITE_WITH_IMM]
)
@pytest.mark.parametrize("length", [0, 8, 1000])
def test_who_asks_for_solicited_ones_waits_for_one(opcode: WrOpcode, length: int) -> None:
    meeting = Meeting()
    meeting.arm(ARM_SOLICITED)
    meeting.send(PLAIN, opcode, length)
    assert not meeting.woken()
    meeting.send(SOLICITED, opcode, length)
    assert meeting.woken()
    meeting.send(SOLICITED, opcode, length)
    assert not meeting.woken()


def test_an_error_counts_as_solicited() -> None:
    meeting = Meeting()
    meeting.arm(ARM_SOLICITED)
    post_receive(meeting.pair.b, receive([part(meeting.target)]))
    assert not meeting.woken()
    meeting.pair.b.engine.qps.fail(meeting.pair.b.qp)
    assert meeting.woken()


def test_a_flushed_send_counts_as_solicited() -> None:
    meeting = Meeting()
    a = meeting.pair.a
    a.engine.cqs.arm(a.cq, ARM_SOLICITED)
    post(a, work(WrOpcode.RDMA_WRITE, [part(meeting.source)], **towards(meeting.target)))
    a.engine.qps.fail(a.qp)
    assert ready(a)


def test_send_completions_are_not_solicited() -> None:
    meeting = Meeting()
    a = meeting.pair.a
    a.engine.cqs.arm(a.cq, ARM_SOLICITED)
    meeting.send(SOLICITED)
    assert not ready(a)
    a.engine.cqs.arm(a.cq, ARM_NEXT)
    meeting.send()
    assert ready(a)


def test_asking_for_solicited_ones_does_not_take_back_asking_for_any() -> None:
    meeting = Meeting()
    meeting.arm(ARM_NEXT)
    meeting.arm(ARM_SOLICITED)
    meeting.send(PLAIN)
    assert meeting.woken()


def test_asking_for_any_widens_asking_for_solicited_ones() -> None:
    meeting = Meeting()
    meeting.arm(ARM_SOLICITED)
    meeting.arm(ARM_NEXT)
    meeting.send(PLAIN)
    assert meeting.woken()


def test_several_queues_become_ready_each_for_itself() -> None:
    meeting = Meeting()
    engine = meeting.pair.b.engine
    other = engine.cqs.create(8)
    engine.qps.table[meeting.pair.b.qp].send_cq = other
    for index in (meeting.pair.b.cq, other):
        engine.cqs.arm(index, ARM_NEXT)
    meeting.send()
    post(
        meeting.pair.b,
        work(WrOpcode.RDMA_WRITE, [part(meeting.target)], **towards(meeting.source)),
    )
    meeting.pair.run()
    assert sorted(engine.take_ready_cqs()) == sorted([meeting.pair.b.cq, other])
    assert engine.take_ready_cqs() == []


def test_a_destroyed_queue_is_not_told_of() -> None:
    meeting = Meeting()
    engine = meeting.pair.b.engine
    index = engine.cqs.create(8)
    engine.qps.table[meeting.pair.b.qp].recv_cq = index
    engine.cqs.arm(index, ARM_NEXT)
    meeting.send()
    engine.cqs.destroy(index)
    assert engine.take_ready_cqs() == []
    again = engine.cqs.create(8)
    assert again == index
    assert engine.take_ready_cqs() == []


def test_an_overrun_wakes_too() -> None:
    meeting = Meeting()
    engine = meeting.pair.b.engine
    small = engine.cqs.create(1)
    engine.qps.table[meeting.pair.b.qp].recv_cq = small
    meeting.send()
    engine.cqs.arm(small, ARM_NEXT)
    meeting.send()
    assert engine.take_ready_cqs() == [small]
