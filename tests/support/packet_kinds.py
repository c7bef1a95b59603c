"""Every kind of packet that the engine sends, made by real transfers between two engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from emulator.wire.aeth import NakCode
from emulator.wire.feth import Feth, Placement, Selectivity
from kvlane.verbs.enums import AccessFlags, MwType, QpType, SendFlags, WrOpcode
from kvlane.verbs.protocols import QpOptions
from tests.support.roce_pair import ALL_ACCESS, Frame, Pair
from tests.support.roce_work import (
    part,
    pattern,
    post,
    post_receive,
    receive,
    to_port,
    towards,
    work,
)

MTU = 256
SHORT, LONG = 30, 3 * MTU + 30
"""Both need pad."""
_OPTIONS = QpOptions(ack_timeout_code=8, max_send_wr=64, max_recv_wr=64, min_rnr_timer_code=5)
_CONGESTION_EXPERIENCED = 3

GidMaker = Callable[[int], bytes]


def every_kind(gid: GidMaker) -> list[Frame]:
    """Frames in the order in which they were sent; all opcodes and all kinds of answer."""
    frames: list[Frame] = []
    for exchange in _EXCHANGES:
        exchange(gid, frames)
    return frames


ANSWERED_CODES = {
    NakCode.PSN_SEQUENCE_ERROR,
    NakCode.INVALID_REQUEST,
    NakCode.REMOTE_ACCESS_ERROR,
    NakCode.REMOTE_OPERATIONAL_ERROR,
}
"""The NAKs among them. The fifth is of reliable datagrams, which are not spoken."""


def recorded(pair: Pair, frames: list[Frame]) -> Pair:
    """A pair whose frames are kept as they leave."""

    def keep(passing: list[Frame]) -> list[Frame]:
        frames.extend(passing)
        return passing

    pair.to_a = pair.to_b = keep
    return pair


def _data(kind: QpType) -> Callable[[GidMaker, list[Frame]], None]:
    """SENDs and WRITEs of all lengths, with and without an immediate."""

    def exchange(gid: GidMaker, frames: list[Frame]) -> None:
        pair = recorded(Pair(MTU, _OPTIONS, kind=kind, gid=gid), frames)
        local, remote = pair.a.region(LONG), pair.b.region(LONG)
        local.data[:] = pattern(LONG)
        for length in (0, SHORT, MTU, LONG):
            elements = [part(local, 0, length)]
            post_receive(pair.b, *[receive([part(remote)])] * 3)
            post(
                pair.a,
                work(WrOpcode.SEND, elements),
                work(WrOpcode.SEND_WITH_IMM, elements, imm=0xC0FFEE01),
                work(WrOpcode.RDMA_WRITE, elements, **towards(remote)),
                work(WrOpcode.RDMA_WRITE_WITH_IMM, elements, imm=0xC0FFEE02, **towards(remote)),
            )
            pair.run()
        post_receive(pair.b, receive([part(remote)]))
        flags = SendFlags.SIGNALED | SendFlags.SOLICITED
        post(pair.a, work(WrOpcode.SEND, [part(local, 0, SHORT)], flags))
        pair.run()

    return exchange


def _reads_and_atomics(gid: GidMaker, frames: list[Frame]) -> None:
    pair = recorded(Pair(MTU, _OPTIONS, gid=gid), frames)
    local, remote = pair.a.region(LONG), pair.b.region(LONG + 8)
    place = towards(remote, -remote.addr % 8)
    word = [part(local, 0, 8)]
    for length in (0, SHORT, 2 * MTU, LONG):
        post(pair.a, work(WrOpcode.RDMA_READ, [part(local, 0, length)], **place))
    value, swap = 0x0102030405, 0x1122334455667788
    post(
        pair.a,
        work(WrOpcode.ATOMIC_FETCH_AND_ADD, word, compare_add=value, **place),
        work(WrOpcode.ATOMIC_CMP_AND_SWP, word, compare_add=value, swap=swap, **place),
    )
    pair.run()


def _placements(gid: GidMaker, frames: list[Frame]) -> None:
    """ATOMIC WRITE and FLUSH."""
    pair = recorded(Pair(MTU, _OPTIONS, gid=gid), frames)
    flushes = int(ALL_ACCESS | AccessFlags.FLUSH_GLOBAL)
    pair.b.engine.qps.table[pair.b.qp].access = flushes
    local, remote = pair.a.region(8), pair.b.region(LONG, AccessFlags(flushes))
    local.data[:] = pattern(8)
    feths = (Feth(Placement.GLOBAL), Feth(Placement.GLOBAL, Selectivity.REGION))
    place = towards(remote, -remote.addr % 8)
    post(
        pair.a,
        work(WrOpcode.ATOMIC_WRITE, [part(local)], **place),
        *(work(WrOpcode.FLUSH, feth=feth.word, flush_length=LONG, **place) for feth in feths),
    )
    pair.run()


def _invalidations(gid: GidMaker, frames: list[Frame]) -> None:
    pair = recorded(Pair(MTU, _OPTIONS, gid=gid), frames)
    local, remote = pair.a.region(LONG), pair.b.region(LONG, ALL_ACCESS | AccessFlags.MW_BIND)
    for length in (SHORT, LONG):
        window = pair.b.engine.regions.alloc_window(1, MwType.TYPE_2)
        bind = work(
            WrOpcode.BIND_MW,
            mw_key=window,
            mw_new_key=window + 1,
            mw_lkey=remote.key,
            mw_addr=remote.addr,
            mw_length=LONG,
            mw_access=int(AccessFlags.REMOTE_WRITE),
        )
        post(pair.b, bind)
        pair.run()
        post_receive(pair.b, receive([part(remote)]))
        key = pair.b.engine.regions.current_key(window)
        post(pair.a, work(WrOpcode.SEND_WITH_INV, [part(local, 0, length)], imm=key))
        pair.run()


def _datagrams(gid: GidMaker, frames: list[Frame]) -> None:
    pair = recorded(Pair(MTU, _OPTIONS, kind=QpType.UD, gid=gid), frames)
    local, remote = pair.a.region(SHORT), pair.b.region(LONG + 40)
    for opcode in (WrOpcode.SEND, WrOpcode.SEND_WITH_IMM):
        post_receive(pair.b, receive([part(remote)]))
        post(pair.a, work(opcode, [part(local)], imm=0xC0FFEE03, **to_port(pair.b)))
    pair.run()


def _lost_packet(gid: GidMaker, frames: list[Frame]) -> None:
    """Loses the second packet; ends with a NAK for it and its retransmission."""
    pair = recorded(Pair(MTU, _OPTIONS, gid=gid), frames)
    keep, lost = pair.to_b, []

    def lose_one(passing: list[Frame]) -> list[Frame]:
        passing = keep(passing)
        if not lost and len(passing) > 1:
            lost.append(passing.pop(1))
        return passing

    pair.to_b = lose_one
    local, remote = pair.a.region(LONG), pair.b.region(LONG)
    pair.a.send(WrOpcode.RDMA_WRITE, local, LONG, remote=remote)
    pair.run()


def _refusals(gid: GidMaker, frames: list[Frame]) -> None:
    """Requests that the peer must refuse: a wrong key, too short a receive, one it cannot write."""
    pair = recorded(Pair(MTU, _OPTIONS, gid=gid), frames)
    local, remote = pair.a.region(LONG), pair.b.region(LONG)
    pair.a.send(WrOpcode.RDMA_WRITE, local, LONG, remote=remote, rkey=remote.key ^ 1)
    pair.run()
    for region_bytes, access in ((SHORT, ALL_ACCESS), (LONG, AccessFlags.REMOTE_READ)):
        pair = recorded(Pair(MTU, _OPTIONS, gid=gid), frames)
        post_receive(pair.b, receive([part(pair.b.region(region_bytes, access))]))
        pair.a.send(WrOpcode.SEND, pair.a.region(LONG), LONG)
        pair.run()


def _not_ready(gid: GidMaker, frames: list[Frame]) -> None:
    pair = recorded(Pair(MTU, replace(_OPTIONS, rnr_retry_count=1), gid=gid), frames)
    pair.a.send(WrOpcode.SEND, pair.a.region(SHORT), SHORT)
    pair.run()


def _congestion(gid: GidMaker, frames: list[Frame]) -> None:
    """A switch on the way marks packets; the receiver notifies the sender."""
    pair = Pair(MTU, _OPTIONS, gid=gid)
    for port in (pair.a, pair.b):
        port.engine.enable_congestion_control(10**10)
    recorded(pair, frames)
    keep = pair.to_b

    def mark(passing: list[Frame]) -> list[Frame]:
        for _, descriptor in keep(passing):
            descriptor.tos |= _CONGESTION_EXPERIENCED
        return passing

    pair.to_b = mark
    pair.a.send(WrOpcode.RDMA_WRITE, pair.a.region(SHORT), SHORT, remote=pair.b.region(SHORT))
    # A notification waits for its interval since the start of the clock.
    pair.now = 1_000_000
    pair.run()


_EXCHANGES = (
    _data(QpType.RC),
    _data(QpType.UC),
    _reads_and_atomics,
    _placements,
    _invalidations,
    _datagrams,
    _lost_packet,
    _refusals,
    _not_ready,
    _congestion,
)
