"""Memory of a request that is deregistered while an older one is under way: whose error it is.

More of bug 16 of ``test_roce_known_bugs.py``, an error with another request's number.
"""

from __future__ import annotations

import pytest

from kvlane.verbs.enums import WcStatus, WrOpcode
from tests.support.roce_pair import Pair
from tests.support.roce_work import (
    part,
    post,
    post_receive,
    receive,
    statuses,
    towards,
    work,
    wr_ids,
)

MTU = 256
OLDER = [
    WrOpcode.RDMA_WRITE,
    WrOpcode.SEND,
    WrOpcode.RDMA_READ,
    WrOpcode.ATOMIC_FETCH_AND_ADD,
    WrOpcode.ATOMIC_WRITE,
]
GATHERED = [
    WrOpcode.RDMA_WRITE,
    WrOpcode.RDMA_WRITE_WITH_IMM,
    WrOpcode.SEND,
    WrOpcode.SEND_WITH_IMM,
]


class Pending:
    """Two requests of ``a`` and one behind them; the memory of the second can be taken away."""

    def __init__(self, older: WrOpcode, faulty: WrOpcode, nbytes: int) -> None:
        self.pair = Pair(MTU)
        a, b = self.pair.a, self.pair.b
        self.good, self.bad, remote = a.region(8), a.region(nbytes), b.region(nbytes)
        post_receive(b, *(receive([part(remote)], wr_id=n) for n in range(4)))
        whole = part(self.bad)
        post(
            a,
            work(older, [part(self.good)], wr_id=1, **towards(remote)),
            work(faulty, [whole], wr_id=2, **towards(remote)),
            work(older, [part(self.good)], wr_id=3, **towards(remote)),
        )

    def take_memory_away(self) -> None:
        self.pair.a.engine.regions.deregister(self.bad.key)

    def done(self) -> list[tuple[int, WcStatus]]:
        completions = self.pair.a.poll()
        return list(zip(wr_ids(completions), statuses(completions), strict=True))


OUTCOME = [(1, WcStatus.SUCCESS), (2, WcStatus.LOC_PROT_ERR), (3, WcStatus.WR_FLUSH_ERR)]


@pytest.mark.parametrize("faulty", GATHERED)
@pytest.mark.parametrize("older", OLDER)
def test_bug_16_also_when_memory_goes_in_the_midst_of_its_message(
    older: WrOpcode, faulty: WrOpcode
) -> None:
    """What came before is not at fault, and is waited for."""
    pending = Pending(older, faulty, 100 * MTU)
    a = pending.pair.a
    under_way = a.transmit(0)
    assert len(under_way) < 100
    pending.take_memory_away()
    assert a.transmit(1) == []
    assert pending.done() == []
    assert a.engine.next_deadline() < 1 << 61
    for frame in under_way:
        pending.pair.b.receive(frame, 2)
    pending.pair.run()
    assert pending.done() == OUTCOME


@pytest.mark.parametrize("faulty", [*GATHERED, WrOpcode.ATOMIC_WRITE])
@pytest.mark.parametrize("older", OLDER)
def test_bug_16_also_when_memory_goes_before_a_retransmission(
    older: WrOpcode, faulty: WrOpcode
) -> None:
    """All is lost, and the second cannot be sent again."""
    pending = Pending(older, faulty, 8)
    a = pending.pair.a
    assert len(a.transmit(0)) == 3
    pending.take_memory_away()
    again = a.transmit(a.engine.next_deadline())
    assert len(again) == 1
    assert pending.done() == []
    assert a.engine.counters()["retransmitted_packets"] == 1
    for frame in again:
        pending.pair.b.receive(frame, pending.pair.now)
    pending.pair.run()
    assert pending.done() == OUTCOME


@pytest.mark.parametrize("faulty", GATHERED)
@pytest.mark.parametrize("older", [WrOpcode.RDMA_WRITE, WrOpcode.SEND])
def test_bug_16_also_when_only_the_acknowledgement_was_lost(
    older: WrOpcode, faulty: WrOpcode
) -> None:
    """Both are executed: repeating the first gets both acknowledged, and neither has failed."""
    pending = Pending(older, faulty, 8)
    a, b = pending.pair.a, pending.pair.b
    for frame in a.transmit(0):
        b.receive(frame, 0)
    assert b.transmit(0) != []
    pending.take_memory_away()
    pending.pair.now = a.engine.next_deadline()
    pending.pair.run()
    assert pending.done() == [(n, WcStatus.SUCCESS) for n in (1, 2, 3)]


@pytest.mark.parametrize("faulty", GATHERED)
def test_bug_16_also_when_what_came_before_is_never_answered(faulty: WrOpcode) -> None:
    """The wait ends with the retries, as an error of the one that was waited for."""
    pending = Pending(WrOpcode.RDMA_WRITE, faulty, 8)
    pending.pair.a.transmit(0)
    pending.take_memory_away()
    pending.pair.to_b = lambda _frames: []
    pending.pair.run()
    flushed = WcStatus.WR_FLUSH_ERR
    assert pending.done() == [(1, WcStatus.RETRY_EXC_ERR), (2, flushed), (3, flushed)]
