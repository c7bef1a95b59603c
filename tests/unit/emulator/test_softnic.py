"""The software NIC between threads: nobody sleeps through what concerns him, nothing is lost."""

from __future__ import annotations

import gc
import itertools
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from emulator.link.faults import FaultLink, FaultPlan
from emulator.link.frames import Burst, Link
from emulator.link.memory import memory_link_pair
from emulator.link.udp import UdpLink
from emulator.link.wrapper import LinkWrapper
from emulator.nic.softnic import SoftNic
from emulator.roce.attributes import REQUIRED, AddressHandle, QpAttributes, QpCaps, QpMask
from emulator.roce.engine import RoceEngine
from kvlane.verbs.calls import FAULT
from kvlane.verbs.enums import AccessFlags, Mtu, QpState, QpType, SendFlags, WcStatus, WrOpcode
from kvlane.verbs.records import SEND_WR, WC, new_records
from tests.support.call_kernels import call_through

GIVE_UP_S = 60.0
ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ
NBYTES = 100_000


class Host:
    """A NIC with one queue pair and one region."""

    def __init__(self, link: Link, seed: int, kind: QpType = QpType.RC) -> None:
        self.kind = kind
        engine = RoceEngine(
            gid=link.gid,
            source_port=link.source_port,
            window_bytes=link.receive_window_bytes,
            rng=random.Random(seed),
        )
        self.nic = SoftNic(engine, link, time.monotonic_ns)
        self.memory = np.zeros(NBYTES, np.uint8)
        self.addr = int(self.memory.ctypes.data)
        with self.nic.engine() as opened:
            self.cq = opened.cqs.create(64)
            self.key = opened.regions.register(self.addr, NBYTES, ACCESS, 1, self.memory)
            self.qp = opened.qps.create(
                kind, pd=1, send_cq=self.cq, recv_cq=self.cq, caps=QpCaps(max_send_wr=8)
            )
            self.number = opened.qps.number(self.qp)

    def connect(self, peer: Host, path_mtu: Mtu = Mtu.MTU_1024) -> None:
        attributes = QpAttributes(
            qp_access_flags=int(ACCESS),
            ah=AddressHandle(dgid=peer.nic.link.gid, udp_port=peer.nic.link.udp_port),
            path_mtu=int(path_mtu),
            dest_qp_num=peer.number,
            max_rd_atomic=4,
            max_dest_rd_atomic=4,
            min_rnr_timer=1,
            timeout=12,
            retry_cnt=7,
            rnr_retry=7,
        )
        states = [QpState.RESET, QpState.INIT, QpState.RTR, QpState.RTS]
        with self.nic.engine() as engine:
            for before, after in itertools.pairwise(states):
                attributes.qp_state = after
                mask = QpMask.STATE | REQUIRED[before, after][self.kind]
                engine.qps.modify(self.qp, attributes, mask)

    def write(self, peer: Host, *, lkey: int | None = None) -> None:
        """Post a WRITE of everything."""
        request = new_records(SEND_WR, 1)
        request.opcode = int(WrOpcode.RDMA_WRITE)
        request.send_flags = int(SendFlags.SIGNALED)
        request.local_addr, request.length = self.addr, NBYTES
        request.lkey = self.key if lkey is None else lkey
        request.remote_addr, request.rkey = peer.addr, peer.key
        with self.nic.engine() as engine:
            engine.qps.post_send(self.qp, request)

    def poll(self) -> list[int]:
        out = new_records(WC, 16)
        return [int(wc.status) for wc in out[: self.nic.poll_cq(self.cq, out)]]


class Sleeper(threading.Thread):
    """Waits once on a NIC, for so long that a test would notice."""

    def __init__(self, nic: SoftNic, timeout_ms: float = 1e3 * GIVE_UP_S) -> None:
        super().__init__(daemon=True)
        self._nic = nic
        self._timeout_ms = timeout_ms
        self.start()
        give_up = time.monotonic() + GIVE_UP_S
        while nic.sleepers == 0 and time.monotonic() < give_up:
            time.sleep(0.001)

    def run(self) -> None:
        self._nic.wait(self._timeout_ms, -1)

    def woke(self) -> bool:
        self.join(GIVE_UP_S / 2)
        return not self.is_alive()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    left, right = memory_link_pair()
    a, b = Host(left, 1), Host(right, 2)
    a.connect(b)
    b.connect(a)
    yield a, b
    a.nic.close()
    b.nic.close()


def drive(*hosts: Host) -> None:
    """Both NICs until the first has a completion."""
    give_up = time.monotonic() + GIVE_UP_S
    while hosts[0].nic._engine.cqs.fill(hosts[0].cq) == 0:
        assert time.monotonic() < give_up
        for host in hosts:
            host.nic.progress()


def test_a_transfer_runs_between_two_nics(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    a.memory[:] = np.random.default_rng(1).integers(0, 256, NBYTES, dtype=np.uint8)
    a.write(b)
    drive(a, b)
    assert a.poll() == [WcStatus.SUCCESS]
    assert (a.memory == b.memory).all()


def test_an_arriving_frame_wakes_a_sleeper(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    sleeper = Sleeper(b.nic)
    a.write(b)
    assert sleeper.woke()


def test_a_completion_made_by_another_thread_wakes_a_sleeper(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    sleeper = Sleeper(a.nic)
    a.write(b, lkey=a.key ^ 1)  # fails at once, without a frame
    assert sleeper.woke()
    assert a.poll() == [WcStatus.LOC_PROT_ERR]


def test_a_timer_armed_by_another_thread_wakes_a_sleeper(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    sleepers = [Sleeper(a.nic), Sleeper(a.nic)]
    a.write(b)  # nobody answers: the acknowledgement timer, 17 ms, is all there is
    assert all(sleeper.woke() for sleeper in sleepers)


def test_a_readable_wake_descriptor_ends_the_sleep(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    wake = os.eventfd(1)
    a.nic.wait(1e3 * GIVE_UP_S, wake)
    os.close(wake)


def test_closing_wakes_sleepers_and_ends_everything(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    sleeper = Sleeper(a.nic)
    a.nic.close()
    assert sleeper.woke()
    assert not a.nic.progress()
    a.nic.wait(1e3 * GIVE_UP_S, -1)
    a.nic.close()


class Narrow:
    """A link that takes one frame at a time, and none every other time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._calls = 0
        self._one = Burst(1, 8192)

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)

    def send(self, burst: Burst) -> int:
        self._calls += 1
        if self._calls % 2 or not burst.count:
            return 0
        self._one.clear()
        self._one.append(burst.payload(0), burst.frames[0])
        return self._link.send(self._one)


def test_frames_that_the_link_did_not_take_follow_in_order() -> None:
    left, right = memory_link_pair()
    a, b = Host(Narrow(left), 1), Host(right, 2)  # type: ignore[arg-type]
    a.connect(b)
    b.connect(a)
    a.memory[:] = 7
    a.write(b)
    drive(a, b)
    assert a.poll() == [WcStatus.SUCCESS]
    assert (b.memory == 7).all()
    assert b.nic.counters()["out_of_sequence"] == 0
    a.nic.close()
    b.nic.close()


def test_a_frame_held_back_by_the_link_is_not_slept_over() -> None:
    """The descriptor of the link below says nothing of it; its time of release does."""
    left, right = memory_link_pair()
    slow = FaultLink(left, FaultPlan(delay_ms=5), random.Random(1))
    a, b = Host(slow, 1), Host(right, 2)
    a.connect(b)
    b.connect(a)
    a.write(b)
    give_up = time.monotonic() + GIVE_UP_S
    while not a.poll():
        assert time.monotonic() < give_up
        a.nic.wait(1e3 * GIVE_UP_S, -1)
        a.nic.progress()
        b.nic.progress()
    a.nic.close()
    b.nic.close()


class Silent(LinkWrapper):
    """A link that counts what it gets, and on which nothing ever arrives."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.frames = 0

    def send(self, burst: Burst) -> int:
        self.frames += burst.count
        return burst.count


SMALL_MTU = Mtu.MTU_256
LONG_PACKETS = -(-NBYTES // SMALL_MTU.nbytes)
"""Of one WRITE; more than a NIC sends before it looks at what it has received."""


@pytest.fixture
def unanswered() -> Iterator[tuple[Host, Host, Silent]]:
    """A requester that needs no answer, its peer, and its link: nothing from outside wakes it."""
    left, right = memory_link_pair()
    link = Silent(left)
    a, b = Host(link, 1, QpType.UC), Host(right, 2, QpType.UC)
    a.connect(b, SMALL_MTU)
    yield a, b, link
    a.nic.close()
    b.nic.close()


def test_requests_left_unsent_wake_a_sleeper(unanswered: tuple[Host, Host, Silent]) -> None:
    a, b, link = unanswered
    sleeper = Sleeper(a.nic)
    a.write(b)
    assert 0 < link.frames < LONG_PACKETS
    assert sleeper.woke()


def test_nobody_sleeps_over_requests_left_unsent(unanswered: tuple[Host, Host, Silent]) -> None:
    a, b, link = unanswered
    a.write(b)
    while link.frames < LONG_PACKETS:
        waits = threading.Thread(target=a.nic.wait, args=(1e3 * GIVE_UP_S, -1), daemon=True)
        waits.start()
        waits.join(GIVE_UP_S / 2)
        assert not waits.is_alive()
        assert a.nic.progress()
    assert a.poll() == [WcStatus.SUCCESS]
    assert link.frames == LONG_PACKETS
    assert not a.nic.progress()


class Failing(LinkWrapper):
    """A link with a fault of its own, in one of its methods."""

    def __init__(self, link: Link, method: str) -> None:
        super().__init__(link)
        self.method = method

    def _fail_in(self, method: str) -> None:
        if self.method == method:
            raise RuntimeError(f"{method} is broken")

    def send(self, burst: Burst) -> int:
        self._fail_in("send")
        return super().send(burst)

    def receive(self, burst: Burst, now: int) -> int:
        self._fail_in("receive")
        return super().receive(burst, now)

    def next_release(self, now: int) -> int | None:
        self._fail_in("next_release")
        return super().next_release(now)


@pytest.mark.parametrize("method", ["send", "receive"])
def test_what_a_link_raises_comes_out_and_the_nic_goes_on(method: str) -> None:
    left, right = memory_link_pair()
    link = Failing(left, "")
    a, b = Host(link, 1), Host(right, 2)
    a.connect(b)
    b.connect(a)
    a.memory[:] = 9
    link.method = method
    step = {"send": lambda: a.write(b), "receive": a.nic.progress}[method]
    with pytest.raises(RuntimeError, match=f"{method} is broken"):
        step()
    link.method = ""
    if method == "receive":
        a.write(b)
    drive(a, b)
    assert (b.memory == 9).all()
    a.nic.close()
    b.nic.close()


def by_address(nic: SoftNic, function: int, first: int = 0, second: int = 0, third: int = 0) -> int:
    """What one of the NIC's verbs by address answers."""
    return call_through(function, nic.calls.context, first, second, third)


def test_what_a_link_raises_is_the_fault_of_a_verb_by_address() -> None:
    left, right = memory_link_pair()
    link = Failing(left, "")
    a, b = Host(link, 1), Host(right, 2)
    a.connect(b)
    link.method = "receive"
    with a.nic.lock:
        assert by_address(a.nic, a.nic.calls.progress) == FAULT
    fault = a.nic.take_fault()
    assert isinstance(fault, RuntimeError)
    assert a.nic.take_fault() is None
    a.nic.close()
    b.nic.close()


def test_a_number_of_a_closed_queue_names_no_later_one(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    out = new_records(WC, 1)
    with a.nic.engine() as engine:
        first = engine.cqs.create(4)
        number = engine.cqs.number(first)
        engine.cqs.destroy(first)
        assert engine.cqs.create(4) == first
        poll = a.nic.calls.poll_cq
        assert by_address(a.nic, poll, engine.cqs.number(first), out.ctypes.data, 1) == 0
        for handle in (number, 0, -1, 1 << 40, number + 1):
            assert by_address(a.nic, poll, handle, out.ctypes.data, 1) == FAULT
            assert "completion queue is closed" in str(a.nic.take_fault())


def test_an_overrun_and_a_queue_that_is_not_connected_are_told_by_address() -> None:
    left, right = memory_link_pair()
    a = Host(left, 1)
    out, request = new_records(WC, 1), new_records(SEND_WR, 1)
    with a.nic.engine() as engine:
        calls = a.nic.calls
        assert by_address(a.nic, calls.post_send, a.number, request.ctypes.data, 1) == FAULT
        assert "not connected" in str(a.nic.take_fault())
        engine.cqs.table[a.cq].overflowed = 1
        assert (
            by_address(a.nic, calls.poll_cq, engine.cqs.number(a.cq), out.ctypes.data, 1) == FAULT
        )
        assert "overrun" in str(a.nic.take_fault())
    a.nic.close()
    right.close()


def test_events_do_not_pile_up_where_verbs_are_used_by_address(hosts: tuple[Host, Host]) -> None:
    a, _ = hosts
    with a.nic.lock:
        a.nic._engine.qps.fail(a.qp)
        by_address(a.nic, a.nic.calls.progress)
        assert a.nic._engine.take_events() == []


def test_a_nic_that_nobody_has_any_more_is_gone_at_once() -> None:
    """With its descriptors: the collector may come after the process has run out of them."""
    link = UdpLink("127.0.0.1")
    host = Host(link, 1)
    remembered = weakref.ref(host.nic), weakref.ref(link)
    descriptor = link.fileno()
    gc.disable()
    try:
        del host, link
        assert [reference() for reference in remembered] == [None, None]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    finally:
        gc.enable()
