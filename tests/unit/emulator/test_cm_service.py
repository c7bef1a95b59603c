"""Connection management over queue pair 1 of real NICs, with its thread and its timers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from emulator.cm.events import (
    ConnectRequest,
    ConnectResponse,
    Disconnected,
    Established,
    Rejected,
    ServiceRequest,
    ServiceResponse,
    Unreachable,
)
from emulator.cm.gsi import GsiQueuePair, sender_gid
from emulator.cm.manager import CmOptions, OutgoingMad
from emulator.cm.service import service_of
from emulator.cm.states import CmState
from emulator.wire.cm import RejectReason, Rtu, emit_cm
from tests.support.cm_pair import SERVICE, reply, request
from tests.support.cm_ports import PATIENCE_S, Listening, ports
from tests.support.roce_pair import mapped_gid

QUICK = CmOptions(response_timeout_code=15, service_timeout_code=15)
"""134 ms, sixteen times: for links that lose messages."""
CALM = CmOptions(response_timeout_code=17, service_timeout_code=17)
"""Half a second, sixteen times: a busy machine must not look like a peer that is gone."""


@pytest.fixture
def two() -> Iterator[tuple[Listening, Listening]]:
    with ports(2) as (first, second):
        yield Listening(first, CALM), Listening(second, CALM)


def connect(a: Listening, b: Listening, qpn: int = 0x101) -> int:
    with a.service.manager() as manager:
        comm_id = manager.connect(request(a.gid, b.gid, qpn), a.service.now())
        a.service.consumers[comm_id] = a.sink
    return comm_id


def accept(b: Listening) -> int:
    """Accept the next request; return the id on that side."""
    event = b.expect(ConnectRequest)
    b.service.consumers[event.comm_id] = b.sink
    with b.service.manager() as manager:
        manager.accept(event.comm_id, reply(), b.service.now())
    return event.comm_id


def establish(a: Listening) -> None:
    event = a.expect(ConnectResponse)
    with a.service.manager() as manager:
        manager.establish(event.comm_id, a.service.now())


def test_connect_and_disconnect(two: tuple[Listening, Listening]) -> None:
    a, b = two
    b.listen(SERVICE)
    comm_id = connect(a, b)
    accept(b)
    establish(a)
    b.expect(Established)
    with a.service.manager() as manager:
        manager.disconnect(comm_id, a.service.now())
    a.expect(Disconnected)
    b.expect(Disconnected)


def test_a_port_can_connect_to_itself() -> None:
    with ports(1) as (port,):
        both = Listening(port, CALM)
        both.listen(SERVICE)
        connect(both, both)
        accept(both)
        establish(both)
        both.expect(Established)


def test_the_peer_is_who_sent_the_packet(two: tuple[Listening, Listening]) -> None:
    a, b = two
    b.listen(SERVICE)
    with a.service.manager() as manager:
        manager.connect(request(mapped_gid(9), b.gid), a.service.now())
    assert b.expect(ConnectRequest).gid == a.gid


def test_a_datagram_service(two: tuple[Listening, Listening]) -> None:
    a, b = two
    b.listen(SERVICE)
    with a.service.manager() as manager:
        comm_id = manager.resolve_service(b.gid, SERVICE, b"", a.service.now())
        a.service.consumers[comm_id] = a.sink
    question = b.expect(ServiceRequest)
    with b.service.manager() as manager:
        manager.answer_service(question.comm_id, 0x77, 5, b"", b.service.now())
    assert a.expect(ServiceResponse).rep.qpn == 0x77


def test_nobody_listens(two: tuple[Listening, Listening]) -> None:
    a, b = two
    connect(a, b)
    assert a.expect(Rejected).reason == RejectReason.INVALID_SERVICE_ID


def test_the_thread_wakes_for_timers() -> None:
    with ports(1) as (port,):
        alone = Listening(port, CmOptions(response_timeout_code=8, max_retries=2))
        with alone.service.manager() as manager:
            # A GID of the same kind at whose port nobody is.
            nowhere = alone.gid[:8] + (1).to_bytes(2, "big") + alone.gid[10:]
            comm_id = manager.connect(request(alone.gid, nowhere), alone.service.now())
            alone.service.consumers[comm_id] = alone.sink
        alone.expect(Unreachable)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_connect_arrives_over_a_bad_link(seed: int) -> None:
    # Both ends lose as much: half of the round trips fail, and sixteen in a row never do.
    with ports(2, faults="drop=0.1,dup=0.2,reorder=0.2,corrupt=0.05", seed=seed) as both:
        a, b = (Listening(port, QUICK) for port in both)
        b.listen(SERVICE)
        for index in range(10):
            connect(a, b, 0x200 + index)
            accept(b)
            establish(a)
            b.expect(Established)


def test_noise_at_queue_pair_1_is_counted_and_does_no_harm() -> None:
    with ports(2) as (first, second):
        b = Listening(second, CALM)
        gsi = GsiQueuePair(first.nic, first.new_pd())
        stray = emit_cm(Rtu(1, 2), 3)
        gsi.send([OutgoingMad(b.gid, bytes(256)), OutgoingMad(b.gid, stray)])
        # The RTU of nobody is refused, and what came before it has been taken by then.
        arrived = threading.Event()
        first.channels[gsi.cq] = _Telling(arrived)  # type: ignore[assignment]
        gsi.arm()
        answers = gsi.receive()
        if not answers:
            assert arrived.wait(PATIENCE_S)
            answers = gsi.receive()
        assert [gid for gid, _ in answers] == [b.gid]
        with b.service.manager() as manager:
            assert manager.malformed == 1
            assert len(manager) == 0


class _Telling:
    """What a completion queue's readiness sets."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def put(self, _: int) -> None:
        self._event.set()


def test_more_mads_than_a_queue_holds_are_lost_without_an_error() -> None:
    with ports(2) as (first, second):
        gsi = GsiQueuePair(first.nic, first.new_pd())
        gsi.send([OutgoingMad(second.gids[0], bytes(256))] * 1000)
        gsi.send([OutgoingMad(second.gids[0], bytes(256))])


def test_communications_leave_nothing_behind(two: tuple[Listening, Listening]) -> None:
    a, b = two
    b.listen(SERVICE)
    for index in range(50):
        comm_id = connect(a, b, 0x300 + index)
        other = accept(b)
        establish(a)
        b.expect(Established)
        with a.service.manager() as manager:
            manager.abandon(comm_id, a.service.now())
        b.expect(Disconnected)
        with b.service.manager() as manager:
            manager.abandon(other, b.service.now())
    gone = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        with a.service.manager() as mine, b.service.manager() as theirs:
            if len(mine) == len(theirs) == 0:
                break
        gone.wait(0.05)
    else:
        raise AssertionError("communications are kept for ever")


def test_the_end_waits_for_an_unanswered_dreq(two: tuple[Listening, Listening]) -> None:
    a, b = two
    b.listen(SERVICE)
    comm_id = connect(a, b)
    accept(b)
    establish(a)
    b.expect(Established)
    with a.service.manager() as manager:
        manager.disconnect(comm_id, a.service.now())
    a.service.finish()
    with a.service.manager() as manager:
        assert manager.state(comm_id) != CmState.DREQ_SENT


def test_one_service_for_a_port() -> None:
    with ports(2) as (first, second):
        one = service_of(first)
        assert service_of(first) is one
        assert service_of(second) is not one
    with ports(1) as (reopened,):
        assert service_of(reopened) is not one


@pytest.mark.parametrize(
    ("header", "gid"),
    [
        (bytes(20) + b"\x45" + bytes(11) + b"\x0a\0\0\x01" + bytes(4), mapped_gid(1)),
        (b"\x60" + bytes(7) + bytes(range(16)) + bytes(16), bytes(range(16))),
    ],
    ids=["IPv4", "IPv6"],
)
def test_who_sent_a_datagram(header: bytes, gid: bytes) -> None:
    assert sender_gid(header) == gid
