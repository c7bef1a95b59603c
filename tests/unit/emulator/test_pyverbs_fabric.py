"""Emulated devices of a process: one port for all contexts, its thread, events, forking."""

from __future__ import annotations

import gc
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from emulator.link.faults import FaultLink
from emulator.pyverbs import devices, fabric
from emulator.pyverbs.base import PyverbsCM
from emulator.pyverbs.device import Context
from emulator.pyverbs.fabric import EventQueue, Port, RdmaDevice
from emulator.roce.engine import AsyncEvent
from kvlane.errors import ConfigError
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.enums import EventType, Mtu


@pytest.fixture
def device() -> Iterator[RdmaDevice]:
    with devices(1) as found:
        yield found[0]


def in_child(action: Callable[[], bool]) -> bool:
    """What ``action`` finds in a forked child, which ends right after it."""
    pid = os.fork()
    if pid == 0:
        holds = False
        try:
            holds = action()
        finally:
            os._exit(0 if holds else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


PATIENCE_S = 30.0


def nic_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rdma ")]


# Queues of events


def test_a_queue_is_readable_as_long_as_it_holds_something() -> None:
    queue: EventQueue[str] = EventQueue()
    poller = select.poll()
    poller.register(queue.fd, select.POLLIN)
    assert not poller.poll(0)
    queue.put("first")
    queue.put("second")
    assert poller.poll(0)
    assert queue.get() == "first"
    assert poller.poll(0)
    assert queue.get() == "second"
    assert not poller.poll(0)
    queue.close()


def test_a_non_blocking_queue_says_that_it_is_empty() -> None:
    queue: EventQueue[str] = EventQueue()
    os.set_blocking(queue.fd, False)
    with pytest.raises(BlockingIOError):
        queue.get()
    queue.close()


def test_a_closed_queue_leaves_the_next_owner_of_its_descriptor_alone() -> None:
    queue: EventQueue[str] = EventQueue()
    queue.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)  # the lowest free number, which was the queue's
    queue.put("late")
    queue.close()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    os.close(other)


class Overtaken(EventQueue[str]):
    """What a getter has been woken for is gone when it looks."""

    def _await(self) -> None:
        super()._await()
        if "stale" in self._items:
            self.discard(lambda item: item == "stale")
            self.put("fresh")


def test_a_getter_whose_item_is_discarded_goes_on_waiting() -> None:
    queue = Overtaken()
    got: list[str] = []
    getter = threading.Thread(target=lambda: got.append(queue.get()), daemon=True)
    getter.start()
    queue.put("stale")
    getter.join(PATIENCE_S)
    assert got in (["fresh"], ["stale"])  # the latter when put was faster than get
    assert not select.select([queue.fd], [], [], 0)[0]
    queue.close()


def test_discarding_waits_for_nobody() -> None:
    """As if a getter were between reading the count and taking the item."""
    queue: EventQueue[str] = EventQueue()
    queue.put("stale")
    os.eventfd_read(queue.fd)
    discarder = threading.Thread(target=queue.discard, args=(lambda _: True,), daemon=True)
    discarder.start()
    discarder.join(PATIENCE_S)
    assert not discarder.is_alive()
    queue.put("fresh")
    assert queue.get() == "fresh"
    queue.close()


def test_getters_and_discarders_at_once_lose_nothing_else() -> None:
    queue: EventQueue[int] = EventQueue()
    got: list[int] = []

    def get_all() -> None:
        while (item := queue.get()) >= 0:
            got.append(item)

    getters = [threading.Thread(target=get_all, daemon=True) for _ in range(3)]
    for getter in getters:
        getter.start()
    for item in range(2000):
        queue.put(item)
        if item % 2:
            queue.discard(lambda each, stale=item: each == stale)  # type: ignore[misc]
    for _ in getters:
        queue.put(-1)
    for getter in getters:
        getter.join(PATIENCE_S)
    assert not any(getter.is_alive() for getter in getters)
    assert sorted(item for item in got if item % 2 == 0) == list(range(0, 2000, 2))
    assert not select.select([queue.fd], [], [], 0)[0]
    queue.close()


# Devices and ports


def test_devices_are_numbered_and_have_guids_of_their_own() -> None:
    with devices(3) as found:
        assert [device.name for device in found] == ["kvlane0", "kvlane1", "kvlane2"]
        assert len({device.guid for device in found}) == 3


def test_all_contexts_of_a_device_share_its_port(device: RdmaDevice) -> None:
    first, second = Context(name=device.name), Context(name=device.name)
    assert first.port is second.port
    assert nic_threads() == [f"rdma {device.name}"]


def test_a_device_keeps_its_gid_when_nobody_has_it_open(device: RdmaDevice) -> None:
    with Context(name=device.name) as context:
        gid = context.query_gid(1, 0).gid
    with Context(name=device.name) as context:
        assert context.query_gid(1, 0).gid == gid


def test_leaving_the_block_ends_threads_and_frees_sockets() -> None:
    with devices(2) as found:
        ports = [each.open() for each in found]
        assert len(nic_threads()) == 2
        assert all(port.is_open for port in ports)
    assert nic_threads() == []
    assert not any(port.is_open for port in ports)


def test_a_block_within_a_block_has_devices_of_its_own() -> None:
    with devices(1, name="outer") as outer:
        port = outer[0].open()
        with devices(2, name="inner"):
            assert [each.name for each in fabric.devices()] == ["inner0", "inner1"]
        assert fabric.devices() == outer
        assert port.is_open


def test_contexts_that_outlive_the_devices_can_be_closed() -> None:
    with devices(1) as found:
        context = Context(name=found[0].name)
    context.close()


def test_a_fixed_port_counts_up_with_the_devices() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    with devices(1, listen=f"127.0.0.1:{number}") as found:
        gid = found[0].open().gids[0]
        assert gid[8:10] == number.to_bytes(2, "big")


def test_an_address_that_is_taken_is_refused_when_the_device_is_opened() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        number = holder.getsockname()[1]
        with (
            devices(1, listen=f"127.0.0.1:{number}") as found,
            pytest.raises(ConfigError, match="another process has it"),
        ):
            found[0].open()


def test_ipv4_addressing_names_itself_by_its_real_port() -> None:
    with devices(1, addressing="ipv4") as found:
        port = found[0].open()
        assert port.gids[0][:12] == bytes(10) + b"\xff\xff"
        assert port.udp_port_of(port.gids[0]) == port.nic.link.udp_port
        other = port.gids[0][:12] + bytes([192, 0, 2, 1])
        assert port.udp_port_of(other) == ROCE_V2_UDP_PORT


def test_virtual_addressing_reaches_everybody_by_the_port_of_rocev2(device: RdmaDevice) -> None:
    port = device.open()
    assert port.udp_port_of(port.gids[0]) == ROCE_V2_UDP_PORT


def test_the_mtu_is_what_the_interface_holds_unless_it_is_configured() -> None:
    with devices(1) as found:
        assert found[0].open().mtu == Mtu.MTU_4096  # loopback
    with devices(1, mtu_bytes=512) as found:
        port = found[0].open()
        assert port.mtu == Mtu.MTU_512
        with port.nic.engine() as engine:
            assert engine.port_mtu == port.mtu


def test_faults_are_injected_when_they_are_configured() -> None:
    with devices(1, faults="drop=0.5") as found:
        assert isinstance(found[0].open().nic.link, FaultLink)


def test_every_device_records_to_a_file_of_its_own(tmp_path: Path) -> None:
    with devices(2, pcap=str(tmp_path / "packets.pcapng")) as found:
        for each in found:
            each.open()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "packets-kvlane0.pcapng",
        "packets-kvlane1.pcapng",
    ]


# Delivery of events


def test_events_go_to_whom_the_object_belongs(device: RdmaDevice) -> None:
    port = device.open()
    queues: list[EventQueue[AsyncEvent]] = [EventQueue() for _ in range(3)]
    port.qp_events[7], port.cq_events[7], port.srq_events[7] = queues
    expected = [EventType.QP_FATAL, EventType.CQ_ERR, EventType.SRQ_LIMIT_REACHED]
    for event in expected:
        port.nic.on_event(AsyncEvent(event, 7))
    assert [queue.get().event for queue in queues] == expected
    port.nic.on_event(AsyncEvent(EventType.QP_FATAL, 8))  # nobody's
    for queue in queues:
        queue.close()


def test_a_ready_queue_is_told_to_its_channel(device: RdmaDevice) -> None:
    port = device.open()
    channel: EventQueue[int] = EventQueue()
    port.channels[3] = channel
    port.nic.on_cq_ready(4)
    port.nic.on_cq_ready(3)
    assert channel.get() == 3
    channel.close()


# Command descriptors


def test_a_duplicate_of_the_command_descriptor_names_the_port(device: RdmaDevice) -> None:
    port = device.open()
    duplicate = os.dup(port.cmd_fd)
    assert fabric.port_of_cmd_fd(duplicate) is port
    os.close(duplicate)
    assert fabric.port_of_cmd_fd(duplicate) is None


def test_any_other_descriptor_names_no_port(device: RdmaDevice) -> None:
    device.open()
    assert fabric.port_of_cmd_fd(0) is None


# Objects that nobody refers to any more


class Closed(PyverbsCM):
    """Notes who closes it; needs the engine, as the real ones do."""

    def __init__(self, port: Port, closed_in: list[int]) -> None:
        super().__init__()
        self._port: Port | None = port
        self._closed_in = closed_in

    def close(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            with port.nic.engine():
                self._closed_in.append(threading.get_ident())


def test_an_object_is_closed_with_its_last_reference(device: RdmaDevice) -> None:
    closed_in: list[int] = []
    Closed(device.open(), closed_in)
    assert closed_in == [threading.get_ident()]


def test_an_object_collected_inside_the_engine_is_closed_outside_of_it(
    device: RdmaDevice,
) -> None:
    """The collector may run anywhere; closing there would enter the engine a second time."""
    port = device.open()
    closed_in: list[int] = []
    cycle = Closed(port, closed_in)
    cycle.me = cycle  # type: ignore[attr-defined]
    del cycle
    with port.nic.engine():
        gc.collect()
        assert closed_in == []
    Closed(port, closed_in)
    assert len(closed_in) == 2


# Forking


def test_a_child_opens_a_port_of_its_own(device: RdmaDevice) -> None:
    parent_gid = device.open().gids[0]
    assert in_child(lambda: device.open().gids[0] != parent_gid)
    assert device.open().gids[0] == parent_gid
    assert device.open().is_open


def test_a_child_holds_nothing_of_its_parents_port(device: RdmaDevice) -> None:
    """Its copy of a socket would keep the address when the parent has closed it."""
    port = device.open()
    held = {os.readlink(f"/proc/self/fd/{fd}") for fd in (port.nic.link.fileno(), port.nic._kick)}

    def has_let_go() -> bool:
        mine = set()
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                mine.add(os.readlink(f"/proc/self/fd/{name}"))
        return port.nic.link.fileno() == -1 and not any("socket" in one for one in mine & held)

    assert in_child(has_let_go)
    assert port.nic.link.fileno() >= 0
    assert not port.nic.progress()
    assert port.is_open


def test_a_child_can_close_what_it_has_inherited(device: RdmaDevice) -> None:
    context = Context(name=device.name)

    def close() -> bool:
        context.close()
        return not context.port.is_open

    assert in_child(close)
    assert context.query_port(1).state


def test_forking_while_the_device_works_hangs_nobody(device: RdmaDevice) -> None:
    port = device.open()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with port.nic.engine():
                pass

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert all(in_child(lambda: device.open().is_open) for _ in range(5))
    finally:
        stop.set()
        worker.join()


def test_a_child_records_to_a_file_of_its_own(tmp_path: Path) -> None:
    with devices(1, trace=str(tmp_path / "trace.jsonl")) as found:
        found[0].open()
        assert in_child(lambda: found[0].open().is_open)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[1:] == ["trace.jsonl"]
    assert names[0].startswith("trace-kvlane0-")
