"""The raw link over a real Ethernet interface: what it sends, whom it finds, what it refuses."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address
from typing import Any

import numpy as np
import pytest

from emulator.link._peer_kernels import DOUBT_NS
from emulator.link.frames import FRAME, Burst
from emulator.link.gid import gid_halves, gid_ip, ip_gid
from emulator.link.netlink import Netlink
from emulator.link.raw import MAX_WAIT_NS, RawLink
from emulator.wire.ip import emit_packet, parse_packet
from kvlane.errors import ConfigError
from tests.support.link_bursts import PATIENCE_MS
from tests.support.network_namespaces import Host, cable

Hosts = tuple[Host, Host]
Pair = tuple[RawLink, RawLink]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with cable() as both:
        yield both


def opened(host: Host, **options: Any) -> closing[RawLink]:
    """A link on the interface of a host."""
    with host.entered():
        return closing(RawLink(host.INTERFACE, **options))


@pytest.fixture
def pair(hosts: Hosts) -> Iterator[Pair]:
    with opened(hosts[0]) as one, opened(hosts[1]) as two:
        yield one, two


def frame_between(source: str, destination: str, **fields: int) -> Any:
    frame = np.zeros(1, FRAME).view(np.recarray)[0]
    frame.src_hi, frame.src_lo = gid_halves(ip_gid(ip_address(source)))
    frame.dst_hi, frame.dst_lo = gid_halves(ip_gid(ip_address(destination)))
    frame.dst_port = 4791
    if ip_address(source).version == 4:
        frame.ip_frag = 0x4000
    for name, value in fields.items():
        frame[name] = value
    return frame


def burst_of(descriptors: list[Any], payload_bytes: int = 100) -> Burst:
    """A frame for each descriptor, with contents of its own."""
    burst = Burst(len(descriptors), payload_bytes * len(descriptors))
    for index, descriptor in enumerate(descriptors):
        assert burst.append(index.to_bytes(4, "big") * (payload_bytes // 4), descriptor)
    return burst


def received(link: RawLink, count: int, others: tuple[RawLink, ...] = ()) -> list[Any]:
    """The next frames, each as descriptor and payload; ``others`` go on with their work."""
    frames: list[Any] = []
    burst, idle = Burst(64, 1 << 18), Burst(64, 1 << 18)
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while len(frames) < count:
        assert time.monotonic() < give_up, f"{count} frames do not arrive, but {len(frames)}"
        burst.clear()
        for index in range(link.receive(burst, time.monotonic_ns())):
            frames.append((burst.frames[index].copy(), burst.payload(index)))
        for other in others:
            idle.clear()
            assert other.receive(idle, time.monotonic_ns()) == 0
    return frames


def kinds(host: Host) -> dict[str, str]:
    return {"ipv4": host.ipv4, "link-local": host.link_local, "ipv6": host.ipv6}


@pytest.mark.parametrize("kind", ["ipv4", "link-local", "ipv6"])
def test_frames_arrive_in_order_with_all_their_fields(hosts: Hosts, kind: str) -> None:
    """Also the first ones, which have to wait until the peer's MAC is known."""
    addresses = [kinds(host)[kind] for host in hosts]
    fields = {"ip_id": 77} if kind == "ipv4" else {"flow_label": 0xABCDE}
    for host in hosts:
        host.ip("neigh", "flush", "dev", host.INTERFACE)
    with opened(hosts[0]) as near, opened(hosts[1]) as far:
        frames = [
            frame_between(*addresses, src_port=0xC000 + n, tos=n % 256, **fields)
            for n in range(300)
        ]
        for start in range(0, 300, 50):
            burst = burst_of(frames[start : start + 50])
            assert near.send(burst) == 50
        arrived = received(far, 300, (near,))
        for index, (frame, payload) in enumerate(arrived):
            expected = frames[index].copy()
            expected.offset, expected.length = frame.offset, 100
            assert frame == expected
            assert payload == (index % 50).to_bytes(4, "big") * 25
        assert sum(near.counters().values()) == sum(far.counters().values()) == 0


def test_gids_are_the_addresses_ipv4_first(hosts: Hosts, pair: Pair) -> None:
    link, host = pair[0], hosts[0]
    assert [str(gid_ip(gid)) for gid in link.gids] == [host.ipv4, host.link_local, host.ipv6]
    assert link.gid == link.gids[0]
    assert (link.udp_port, link.source_port) == (4791, 0)


def test_the_wire_has_the_headers_that_descriptors_say(hosts: Hosts, pair: Pair) -> None:
    """What somebody else on the cable sees, by another parser."""
    one, two = hosts
    with two.entered(), closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as wire:
        wire.bind((two.INTERFACE, 0x0003))
        wire.settimeout(PATIENCE_MS / 1000)
        for source, destination in zip(kinds(one).values(), kinds(two).values(), strict=True):
            frame = frame_between(source, destination, src_port=0xC123, tos=0x6A)
            pair[0].send(burst_of([frame]))
            received(pair[1], 1, (pair[0],))
            seen = wire.recv(9000)
            while b"\xc1\x23\x12\xb7" not in seen[34:58]:
                seen = wire.recv(9000)
            assert seen[:6] == pair[1].interface.mac
            assert seen[6:12] == pair[0].interface.mac
            found, payload = parse_packet(seen[14:])
            frame.length = 100
            assert (found, payload) == (frame, bytes(100))


def test_a_peer_that_has_sent_is_found_by_the_kernel_alone(hosts: Hosts, pair: Pair) -> None:
    """The MAC on its frame may be anybody's."""
    one, two = hosts
    pair[0].send(burst_of([frame_between(one.ipv4, two.ipv4)]))
    received(pair[1], 1, (pair[0],))
    two.ip("neigh", "flush", "dev", two.INTERFACE)
    pair[1].send(burst_of([frame_between(two.ipv4, one.ipv4)]))
    assert pair[1].next_release(0) is not None
    received(pair[0], 1, (pair[1],))


class Sleeper:
    """A clock that jumps, and goes on between."""

    def __init__(self) -> None:
        self.slept_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.slept_ns


@contextmanager
def acquainted(hosts: Hosts) -> Iterator[tuple[RawLink, RawLink, Sleeper, socket.socket]]:
    """Two links that know each other, the second by that clock; and the cable at the first."""
    one, two = hosts
    clock = Sleeper()
    with opened(one) as near, opened(two, clock=clock) as far:
        near.send(burst_of([frame_between(one.ipv4, two.ipv4)]))
        received(far, 1, (near,))
        far.send(burst_of([frame_between(two.ipv4, one.ipv4)]))
        received(near, 1, (far,))
        with one.entered(), closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as wire:
            wire.bind((one.INTERFACE, 0x0003))
            wire.settimeout(PATIENCE_MS / 1000)
            yield near, far, clock, wire


def send_from(mac: str, hosts: Hosts, far: RawLink, wire: socket.socket, now: int) -> None:
    """Let a frame arrive that claims to be of the first host; it has neither BTH nor ICRC."""
    frame = frame_between(hosts[0].ipv4, hosts[1].ipv4, src_port=0xC000)
    packet = emit_packet(frame, b"what anybody may send" * 2)
    wire.send(far.interface.mac + bytes.fromhex(mac) + b"\x08\x00" + packet)
    burst = Burst(8, 1 << 16)
    select.select([far], [], [], PATIENCE_MS / 1000)
    assert far.receive(burst, now) == 1


@pytest.mark.parametrize("mac", ["02badbadbad0", "01005e000001"], ids=["a host's", "a group's"])
def test_a_forged_frame_does_not_turn_aside_what_is_sent(hosts: Hosts, mac: str) -> None:
    one, two = hosts
    with acquainted(hosts) as (near, far, clock, wire):
        clock.slept_ns += 2_000_000_000
        send_from(mac, hosts, far, wire, clock())
        for _ in range(3):
            far.send(burst_of([frame_between(two.ipv4, one.ipv4)]))
        received(near, 3, (far,))


def test_a_peer_that_sends_from_another_mac_is_sought_where_the_kernel_says(hosts: Hosts) -> None:
    one, two = hosts
    known = ("neigh", "replace", one.ipv4, "lladdr", "02:00:00:00:aa:aa", "dev", two.INTERFACE)
    with acquainted(hosts) as (_, far, clock, wire):
        two.ip(*known, "nud", "permanent")
        try:
            clock.slept_ns += 2_000_000_000
            send_from("02000000aaaa", hosts, far, wire, clock())
            for port in (0xC00A, 0xC00B):  # with the first it is asked for
                far.send(burst_of([frame_between(two.ipv4, one.ipv4, src_port=port)]))
            while (seen := wire.recv(9000))[34:38] != b"\xc0\x0b\x12\xb7":
                pass
            assert seen[:6].hex() == "02000000aaaa"
        finally:
            two.ip("neigh", "del", one.ipv4, "dev", two.INTERFACE)


def test_what_the_kernel_has_known_for_long_it_is_made_to_look_at(hosts: Hosts) -> None:
    """It sees none of our frames, so of itself it would believe an old entry for ever."""
    one, two = hosts
    with acquainted(hosts) as (near, far, clock, _), two.entered(), closing(Netlink()) as kernel:
        mac = near.interface.mac.hex(":")
        known = ("neigh", "replace", one.ipv4, "lladdr", mac, "dev", two.INTERFACE)
        two.ip(*known, "nud", "stale")
        clock.slept_ns += DOUBT_NS + 1
        far.send(burst_of([frame_between(two.ipv4, one.ipv4)]))
        received(near, 1, (far,))
        entry = kernel.neighbour(ip_address(one.ipv4), far.interface.index)
        assert entry is not None
        assert not entry.is_stale


def test_a_peer_that_nobody_is_lost_after_a_while(hosts: Hosts) -> None:
    now = 1_000_000_000
    with opened(hosts[0], clock=lambda: now) as link:
        burst = burst_of([frame_between(hosts[0].ipv4, "10.77.0.99")] * 3)
        assert link.send(burst) == 3
        assert link.next_release(now) is not None
        assert link.counters()["link_lost_unresolved"] == 0
        now += MAX_WAIT_NS
        assert link.receive(Burst(8, 1 << 16), now) == 0
        assert link.counters()["link_lost_unresolved"] == 3
        assert link.next_release(now) is None


def test_frames_that_wait_are_bounded(hosts: Hosts) -> None:
    with opened(hosts[0], clock=lambda: 1) as link:
        burst = burst_of([frame_between(hosts[0].ipv4, "10.77.0.98")] * 500)
        assert [link.send(burst) for _ in range(3)] == [500] * 3
        assert link.counters()["link_lost_unresolved"] == 1500 - 1024


@pytest.mark.parametrize(
    ("source", "destination", "counter"),
    [
        ("fd77::1", "2001:db8::9", "link_lost_unresolved"),
        ("10.77.0.1", "fd77::2", "link_lost_sending"),
        ("fd77::1", "10.77.0.2", "link_lost_sending"),
    ],
    ids=["no route", "from IPv4 to IPv6", "from IPv6 to IPv4"],
)
def test_what_cannot_be_sent_is_counted(
    pair: Pair, source: str, destination: str, counter: str
) -> None:
    assert pair[0].send(burst_of([frame_between(source, destination)] * 2)) == 2
    assert pair[0].counters()[counter] == 2
    assert pair[0].next_release(0) is None


def test_beyond_a_gateway_the_gateways_mac_is_taken(hosts: Hosts, pair: Pair) -> None:
    one, two = hosts
    one.ip("route", "add", "198.51.100.0/24", "via", two.ipv4)
    two.ip("address", "add", "198.51.100.7/32", "dev", "lo")
    try:
        pair[0].send(burst_of([frame_between(one.ipv4, "198.51.100.7")]))
        with two.entered(), closing(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)) as wire:
            wire.bind((two.INTERFACE, 0x0800))
            give_up = time.monotonic() + PATIENCE_MS / 1000
            while not select.select([wire], [], [], 0.001)[0]:
                assert time.monotonic() < give_up
                pair[0].receive(Burst(8, 1 << 16), 0)
        assert pair[0].counters()["link_lost_unresolved"] == 0
    finally:
        one.ip("route", "del", "198.51.100.0/24")
        two.ip("address", "del", "198.51.100.7/32", "dev", "lo")


def test_frames_that_are_too_long_are_lost_and_told_once(
    pair: Pair, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    frame = frame_between(hosts[0].ipv4, hosts[1].ipv4)
    pair[0].send(burst_of([frame]))
    received(pair[1], 1, (pair[0],))
    assert pair[0].send(burst_of([frame] * 3, payload_bytes=5000)) == 3
    assert pair[0].counters()["link_lost_sending"] == 3
    assert [record.getMessage() for record in caplog.records] == [
        "a frame cannot be sent over wire and is lost: it is longer than the interface's MTU"
    ]


def test_frames_to_oneself_come_back_and_never_leave(hosts: Hosts, pair: Pair) -> None:
    one = hosts[0]
    sent = [frame_between(one.ipv6, one.link_local, src_port=n) for n in range(5)]
    assert pair[0].send(burst_of(sent)) == 5
    assert pair[0].next_release(7) == 7
    assert [frame.src_port for frame, _ in received(pair[0], 5)] == [0, 1, 2, 3, 4]
    assert pair[0].next_release(7) is None
    assert pair[1].receive(Burst(8, 1 << 16), 0) == 0


def test_a_frame_to_oneself_that_no_burst_holds_is_counted(hosts: Hosts, pair: Pair) -> None:
    frame = frame_between(hosts[0].ipv4, hosts[0].ipv4)
    pair[0].send(burst_of([frame], payload_bytes=400))
    pair[0].send(burst_of([frame]))
    burst = Burst(8, 256)
    while not burst.count:
        assert pair[0].next_release(7) == 7
        pair[0].receive(burst, 0)
    assert burst.payload(0) == bytes(100)
    assert pair[0].counters()["link_lost_receiving"] == 1


def test_a_full_loop_takes_no_more(hosts: Hosts, pair: Pair) -> None:
    burst = burst_of([frame_between(hosts[0].ipv4, hosts[0].ipv4)] * 1000)
    assert [pair[0].send(burst) for _ in range(6)] == [1000, 1000, 1000, 1000, 96, 0]
    assert len(received(pair[0], 4096)) == 4096


def test_other_traffic_does_not_wake_it(hosts: Hosts, pair: Pair) -> None:
    one, two = hosts
    with ExitStack() as stack:
        with two.entered():
            other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            other.bind((two.ipv4, 5000))
        with one.entered():
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sender.sendto(b"not RoCE", (two.ipv4, 5000))
        assert select.select([other], [], [], PATIENCE_MS / 1000)[0]
        assert not select.select([pair[1]], [], [], 0)[0]
        pair[0].send(burst_of([frame_between(one.ipv4, two.ipv4)]))
        received(pair[1], 1, (pair[0],))
        pair[0].send(burst_of([frame_between(one.ipv4, two.ipv4)]))
        assert select.select([pair[1]], [], [], PATIENCE_MS / 1000)[0]


def test_the_kernel_does_not_answer_for_us(hosts: Hosts, pair: Pair) -> None:
    """Without the claim on port 4791 it would say "port unreachable"."""
    one, two = hosts
    with (
        one.entered(),
        closing(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)) as icmp,
    ):
        pair[0].send(burst_of([frame_between(one.ipv4, two.ipv4, ip_frag=0x4000)] * 5))
        received(pair[1], 5, (pair[0],))
        assert not select.select([icmp], [], [], 0)[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"", (two.ipv4, 5001))  # a control: nobody listens there
        assert select.select([icmp], [], [], PATIENCE_MS / 1000)[0]


def test_a_closed_link_is_silent(hosts: Hosts) -> None:
    with opened(hosts[0]) as link:
        link.close()
        assert link.fileno() == -1
        assert link.receive(Burst(8, 1 << 16), 0) == 0
    with opened(hosts[0]):
        pass


@contextmanager
def changed(host: Host, change: tuple[str, ...], back: tuple[str, ...]) -> Iterator[None]:
    host.ip(*change)
    try:
        yield
    finally:
        host.ip(*back)


def refusal(host: Host, interface: str = Host.INTERFACE) -> str:
    """What opening a link says."""
    with host.entered(), pytest.raises(ConfigError) as raised:
        RawLink(interface)
    return str(raised.value)


def test_interfaces_that_will_not_do(hosts: Hosts) -> None:
    host = hosts[0]
    assert "there is no interface 'eth9'; there are lo, wire" in refusal(host, "eth9")
    assert "lo is not Ethernet" in refusal(host, "lo")
    host.ip("link", "add", "spare", "type", "veth", "peer", "name", "spare2")
    try:
        assert "spare is down; ip link set spare up" in refusal(host, "spare")
        host.ip("link", "set", "spare", "addrgenmode", "none")
        host.ip("link", "set", "spare", "up")
        assert "spare has no address" in refusal(host, "spare")
    finally:
        host.ip("link", "del", "spare")


def test_one_nic_an_interface(hosts: Hosts, pair: Pair) -> None:
    assert "another NIC, emulated or soft-RoCE, has it" in refusal(hosts[0])


def test_without_the_privilege(hosts: Hosts) -> None:
    with hosts[0].entered():
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match="CAP_NET_RAW"):
                RawLink(Host.INTERFACE)
        finally:
            os.seteuid(0)
