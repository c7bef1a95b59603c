"""Messages that cannot be delivered or taken: nobody else waits, and whoever sent them hears."""

from __future__ import annotations

import itertools
import os
import resource
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.pcie import backlog as subject
from emulator.pcie.backlog import MAX_DELAY_NS, Backlogs, Parcel
from emulator.pcie.connections import Connections
from emulator.pcie.control_socket import ControlSocket
from emulator.pcie.device import PcieDevice
from emulator.pcie.layout import CHANNEL_ACTIVE, MAX_OFFERS
from emulator.pcie.messages import Kind, Message
from emulator.pcie.peers import Introduction, Peer
from emulator.pcie.reach import advice, why_not_reached
from kvlane.errors import CapacityError, VerbsError
from kvlane.verbs.enums import QpState, WcStatus
from kvlane.verbs.protocols import QpEndpoint
from tests.support.pcie_ends import End

_PATIENCE_S = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    made = End(PcieDevice()), End(PcieDevice())
    yield made
    for end in made:
        end.close()


def settle(*all_ends: End) -> None:
    """Until nobody has anything to do, at once rather than when it would be looked for."""
    worked = True
    while worked:
        worked = False
        for end in all_ends:
            end.device.state.context.attend_due = 1
            worked |= end.device.progress()


def introduced(ends: tuple[End, End]) -> tuple[End, End]:
    """The second end has introduced itself to the first, which has not attended to that yet."""
    here, there = ends
    wanted = here.open_qp()
    there.open_qp()
    there.connect(0, wanted)
    return ends


def test_who_does_not_read_holds_up_nobody_else() -> None:
    sender, stuck, well = ControlSocket(), ControlSocket(), ControlSocket()
    try:
        while not sender.waiting(stuck.gid):
            sender.send(stuck.gid, Message(Kind.UNMAP, 1))
        sender.send(well.gid, Message(Kind.UNMAP, 2))
        assert [received.message.first for received in well.receive(8)] == [2]
    finally:
        for each in (sender, stuck, well):
            each.close()


def test_however_many_do_not_read_they_hold_up_nobody_else() -> None:
    sender, well = ControlSocket(), ControlSocket()
    stuck = [ControlSocket() for _ in range(60)]
    try:
        for each in stuck:
            while not sender.waiting(each.gid):
                sender.send(each.gid, Message(Kind.UNMAP, 1))
        sender.send(well.gid, Message(Kind.UNMAP, 2))
        assert [received.gid for received in well.receive(8)] == [sender.gid]
        assert sender.waiting(well.gid) == 0
    finally:
        for each in (sender, well, *stuck):
            each.close()


def test_a_message_needs_no_descriptor() -> None:
    sender, receiver = ControlSocket(), ControlSocket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        sender.send(receiver.gid, Message(Kind.UNMAP, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [received.message.first for received in receiver.receive(8)] == [1]
    sender.close()
    receiver.close()


def test_what_waits_for_one_device_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_WAITING_MESSAGES", 5)
    backlogs = Backlogs(lambda gid, parcel: False)
    for _ in range(5):
        backlogs.append(b"stuck", Parcel(b""), 0)
    with pytest.raises(CapacityError, match="does not read"):
        backlogs.append(b"stuck", Parcel(b""), 0)
    backlogs.append(b"other", Parcel(b""), 0)


def test_a_full_socket_is_tried_ever_less_often() -> None:
    tries: list[bytes] = []

    def refuse(gid: bytes, _parcel: Parcel) -> bool:
        tries.append(gid)
        return False

    backlogs = Backlogs(refuse)
    backlogs.append(b"stuck", Parcel(b""), 0)
    now, delays = 0, []
    for _ in range(12):
        delays.append(backlogs.due_ns - now)
        now = backlogs.due_ns
        backlogs.flush(now - 1)
        backlogs.flush(now)
    assert len(tries) == 12
    assert all(b == min(2 * a, MAX_DELAY_NS) for a, b in itertools.pairwise(delays))
    assert delays[-1] == MAX_DELAY_NS


@given(rooms=st.lists(st.integers(0, 3), max_size=30), count=st.integers(1, 20))
def test_what_waits_keeps_its_order_and_is_sent_once(rooms: list[int], count: int) -> None:
    sent: list[bytes] = []
    room = [0]

    def try_send(_gid: bytes, parcel: Parcel) -> bool:
        if room[0] == 0:
            return False
        room[0] -= 1
        sent.append(parcel.data)
        return True

    backlogs = Backlogs(try_send)
    messages = [bytes([number]) for number in range(count)]
    for message in messages:
        backlogs.append(b"peer", Parcel(message), 0)
    for room[0] in [*rooms, count]:
        backlogs.flush(backlogs.due_ns)
        assert sent == messages[: len(sent)]
    assert sent == messages
    assert backlogs.due_ns == 0


def test_a_file_that_was_closed_takes_its_message_with_it() -> None:
    class Closed:
        fd = -1

    sent: list[bytes] = []

    def send(_gid: bytes, parcel: Parcel) -> bool:
        sent.append(parcel.data)
        return True

    backlogs = Backlogs(send)
    backlogs.append(b"peer", Parcel(b"old", (Closed(),)), 0)
    backlogs.append(b"peer", Parcel(b"new"), 0)
    backlogs.flush(backlogs.due_ns)
    assert sent == [b"new"]


def test_too_much_for_one_peer_ends_its_queue_pairs_and_no_others(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_WAITING_MESSAGES", 3)
    here, well = ends
    stuck = ControlSocket()
    numbers = here.open_qp(), here.open_qp(), well.open_qp()
    here.connect(1, numbers[2])
    well.connect(0, numbers[1])
    here.connect(0, QpEndpoint(stuck.gid, 4791, 4097, 0, 4096))
    for number in range(40):
        here.alloc(str(number), 4096)
        settle(here, well)
    assert (here.state(0), here.state(1)) == (QpState.ERR, QpState.RTS)
    assert here.device.state.context.backlog_due_ns == 0
    assert "does not read its messages" in " ".join(here.warnings())
    stuck.close()


def test_the_offer_that_is_one_too_many_is_refused_visibly(ends: tuple[End, End]) -> None:
    here, there = ends
    wanted = here.open_qp()
    for number in range(MAX_OFFERS + 1):
        there.open_qp()
        there.connect(number, wanted)
    inbox = there.alloc("inbox", 64)
    there.receive(MAX_OFFERS, inbox)
    settle(here, there)
    assert there.completions(1)[0].status == WcStatus.WR_FLUSH_ERR
    states = [there.state(number) for number in range(MAX_OFFERS + 1)]
    assert states == [QpState.RTS] * MAX_OFFERS + [QpState.ERR]
    assert here.counters()["offers_refused"] == there.counters()["connects_refused"] == 1
    assert any("too many peers" in text for text in here.warnings())


def test_a_closed_queue_pair_refuses(ends: tuple[End, End]) -> None:
    here, there = ends
    wanted = here.open_qp()
    there.open_qp()
    here.close_qp(0)
    there.connect(0, wanted)
    settle(here, there)
    assert there.state(0) == QpState.ERR
    assert there.counters()["connects_refused"] == 1


def test_lost_descriptors_are_an_answer(ends: tuple[End, End]) -> None:
    here, there = introduced(ends)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        settle(here)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    settle(there)
    assert there.state(0) == QpState.ERR
    assert any("ulimit -n" in text for text in there.warnings())
    assert here.counters()["offers_refused"] == 1


def test_nothing_of_an_introduction_stays_when_it_fails_half_way(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = introduced(ends)

    class Full:
        def __init__(self, real: object) -> None:
            self.poll = getattr(real, "poll")  # noqa: B009 (of an untyped object)

        def register(self, *_: int) -> None:
            raise OSError(28, "no watch is left")

    connections: Connections = here.device._connections
    real = connections._epoll
    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(connections, "_epoll", Full(real))
    settle(here)
    monkeypatch.undo()
    assert sorted(os.listdir("/proc/self/fd")) == before
    settle(here, there)
    assert there.state(0) == QpState.ERR


def test_what_is_wrong_with_us_is_raised_where_the_device_is_driven(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = introduced(ends)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(here.device._connections, "_take_introduction", fail)
    with pytest.raises(ZeroDivisionError):
        settle(here)
    settle(here)


def test_others_use_the_device_while_memory_is_deregistered(ends: tuple[End, End]) -> None:
    here, there = ends
    ours, theirs = here.open_qp(), there.open_qp()
    here.connect(0, theirs)
    there.connect(0, ours)
    here.alloc("memory", 4096)
    settle(here, there)
    words = here.channel(0)
    words[CHANNEL_ACTIVE // 8] += 1  # the peer copies
    thread = threading.Thread(target=here.deregister, args=("memory",))
    thread.start()
    give_up = time.monotonic() + _PATIENCE_S
    while not here.device._connections.is_in_use:
        assert time.monotonic() < give_up
    assert thread.is_alive()
    with here.device.hold():
        words[CHANNEL_ACTIVE // 8] += 1
    thread.join(_PATIENCE_S)
    assert here.state(0) == QpState.RTS


def test_a_process_that_is_not_seen_is_not_reached_into() -> None:
    assert why_not_reached(0, 4096) != 0
    assert "PID namespace" in advice(0, 3)


def test_a_process_that_is_not_seen_is_known_by_its_descriptor(ends: tuple[End, End]) -> None:
    here, _ = ends
    pidfd = os.pidfd_open(os.getpid())
    board = type("Board", (), {"close": lambda self: None})()
    try:
        peer = Peer(Introduction(here.device.gid, 0, 0, pidfd), 0, board)
        assert not peer.is_dead()
        peer.close()
        with pytest.raises(OSError, match="Invalid"):
            Peer(Introduction(here.device.gid, 0, 0), 0, board)
    finally:
        os.close(pidfd)


def test_a_gid_of_nobody_is_an_error_at_once(ends: tuple[End, End]) -> None:
    gone = ControlSocket()
    gone.close()
    ends[0].open_qp()
    with pytest.raises(VerbsError, match="no pcie device"):
        ends[0].connect(0, QpEndpoint(gone.gid, 4791, 4097, 0, 4096))
