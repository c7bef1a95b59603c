"""Bursts of the raw link without a socket: the fate of each frame, and what a frame may teach."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import numpy as np

from emulator.link._peer_kernels import ASK_AGAIN_NS, DOUBT_NS, PEER, find_peer, learn_peer
from emulator.link._raw_kernels import (
    FATE_LOOP,
    FATE_LOST,
    FATE_WAIT,
    FATE_WIRE,
    GID,
    HEADER_SLOT_BYTES,
    PORT,
    aim_inbox,
    build_burst,
    read_burst,
)
from emulator.link.frames import Burst
from emulator.link.gid import gid_halves, ip_gid
from emulator.link.packet_socket import Inbox, Outbox
from emulator.wire.ip import emit_packet
from kvlane.rawmem import bytes_at
from kvlane.verbs.records import new_records
from tests.support.frame_strategies import new_frame

OWN = ("192.0.2.1", "2001:db8::1")
PEER_MAC, OTHER_MAC = 0x02_00_00_00_00_02, 0x02_00_00_00_00_99
SLOT_BYTES = 256


def halves(address: str) -> tuple[int, int]:
    return gid_halves(ip_gid(ip_address(address)))


class World:
    """The records of a port with two GIDs and room for two peers, and 16 frames either way."""

    def __init__(self) -> None:
        self.port = new_records(PORT, 1)[0]
        self.port.mac = 0x02_00_00_00_00_01
        self.gids, self.peers = new_records(GID, len(OWN)), new_records(PEER, 4)
        for record, address in zip(self.gids, OWN, strict=True):
            record.hi, record.lo = halves(address)
        self.port.gids, self.port.gid_count = self.gids.ctypes.data, len(OWN)
        self.port.peers, self.port.peer_slots = self.peers.ctypes.data, len(self.peers)
        self.outbox, self.inbox = Outbox(16, self.port), Inbox(16, self.port)

    def build(self, frames: list[Any], loop_room: int = 16, now: int = 0) -> list[int]:
        burst = Burst(16, 4096)
        for frame in frames:
            assert burst.append(b"payload!" * 4, frame)
        through = build_burst(
            self.port, burst.frames_addr, burst.arena_addr, burst.count, loop_room, now
        )
        return self.outbox.fates[:through].tolist()

    def sent_to(self, message: int) -> int:
        """The destination MAC of a message that was built."""
        headers = int(self.port.headers) + message * HEADER_SLOT_BYTES
        return int.from_bytes(bytes_at(headers, 6).tobytes(), "big")

    def read(self, packets: list[bytes], now: int = 0, flags: int = 0) -> Burst:
        burst = Burst(16, 16 * SLOT_BYTES)
        aim_inbox(self.port, burst.arena_addr, 16, SLOT_BYTES)
        for index, packet in enumerate(packets):
            slot = index * SLOT_BYTES
            burst.arena[slot : slot + len(packet)] = np.frombuffer(packet, np.uint8)
            self.inbox.messages.received[index] = len(packet)
            self.inbox.messages.result_flags[index] = flags
        burst.count = read_burst(
            self.port, burst.frames_addr, burst.arena_addr, len(packets), SLOT_BYTES, now
        )
        return burst


def gid_text(address: str) -> str:
    return address if ":" in address else f"::ffff:{address}"


def frame_to(destination: str, source: str = OWN[0], port: int = 4791) -> Any:
    return new_frame(gid_text(source), gid_text(destination), src_port=50000, dst_port=port)


def packet(destination: str, source: str, port: int = 4791, mac: int = PEER_MAC) -> bytes:
    frame = frame_to(destination, source, port)
    ethertype = b"\x86\xdd" if ":" in destination else b"\x08\x00"
    return bytes(6) + mac.to_bytes(6, "big") + ethertype + emit_packet(frame, b"payload!" * 4)


def test_every_frame_has_its_fate() -> None:
    world = World()
    learn_peer(world.port, *halves("192.0.2.2"), PEER_MAC, 0)
    fates = world.build(
        [
            frame_to("192.0.2.3"),
            frame_to("192.0.2.2"),
            frame_to(OWN[0]),
            frame_to(OWN[1], source=OWN[1]),
            frame_to("2001:db8::2"),
            frame_to("192.0.2.2", source=OWN[1]),
            frame_to("192.0.2.2"),
        ]
    )
    assert fates == [
        *(FATE_WAIT, FATE_WIRE, FATE_LOOP, FATE_LOOP, FATE_LOST, FATE_LOST, FATE_WIRE),
    ]
    assert (world.port.wire_count, world.outbox.wire[:2].tolist()) == (2, [1, 6])


def test_it_ends_where_there_is_no_room_for_frames_to_oneself() -> None:
    world = World()
    frames = [frame_to(OWN[0]), frame_to("192.0.2.9"), frame_to(OWN[0]), frame_to("192.0.2.9")]
    assert world.build(frames, loop_room=1) == [FATE_LOOP, FATE_WAIT]


def test_a_peer_not_heard_of_for_long_is_doubtful() -> None:
    world = World()
    for now, address in enumerate(("192.0.2.2", "192.0.2.3")):
        learn_peer(world.port, *halves(address), PEER_MAC, now)
    assert world.build([frame_to("192.0.2.3"), frame_to("192.0.2.2")], now=DOUBT_NS) == [0, 0]
    assert world.port.doubtful_peer == -1
    world.build([frame_to("192.0.2.3"), frame_to("192.0.2.2")], now=DOUBT_NS + 1)
    assert world.port.doubtful_peer == find_peer(world.port, *halves("192.0.2.2"))


def test_only_roce_packets_for_own_addresses_are_taken_in_order() -> None:
    world = World()
    burst = world.read(
        [
            packet("192.0.2.77", "192.0.2.2"),
            packet(OWN[0], "192.0.2.2"),
            packet(OWN[0], "192.0.2.2", port=4790),
            packet(OWN[1], "2001:db8::2"),
        ]
    )
    sources = [(int(frame.src_hi), int(frame.src_lo)) for frame in burst.frames[: burst.count]]
    assert sources == [halves("192.0.2.2"), halves("2001:db8::2")]
    assert [burst.payload(index) for index in range(2)] == [b"payload!" * 4] * 2
    assert world.port.lost == 0


def test_frames_teach_no_peers_and_make_none_forgotten() -> None:
    """The link checks no ICRC: anybody can have made them."""
    world = World()
    learn_peer(world.port, *halves("192.0.2.2"), PEER_MAC, 0)
    forged = [packet(OWN[0], f"192.0.2.{last}") for last in range(50, 60)]
    assert world.read(forged, now=7).count == len(forged)
    assert world.port.peer_count == 1
    assert find_peer(world.port, *halves("192.0.2.2")) >= 0


def test_a_frame_from_another_mac_leaves_a_peer_where_it_is_but_doubtful() -> None:
    world = World()
    learn_peer(world.port, *halves("192.0.2.2"), PEER_MAC, 0)
    now = ASK_AGAIN_NS
    assert world.read([packet(OWN[0], "192.0.2.2", mac=OTHER_MAC)], now=now).count == 1
    assert world.build([frame_to("192.0.2.2")], now=now) == [FATE_WIRE]
    assert world.sent_to(0) == PEER_MAC
    assert world.port.doubtful_peer == find_peer(world.port, *halves("192.0.2.2"))


def test_a_frame_confirms_its_sender() -> None:
    world = World()
    learn_peer(world.port, *halves("192.0.2.2"), PEER_MAC, 0)
    world.read([packet(OWN[0], "192.0.2.2")], now=1)
    world.build([frame_to("192.0.2.2")], now=DOUBT_NS + 1)
    assert world.port.doubtful_peer == -1


def test_what_a_peer_sends_to_others_confirms_nothing() -> None:
    world = World()
    learn_peer(world.port, *halves("192.0.2.2"), PEER_MAC, 0)
    world.read([packet("192.0.2.77", "192.0.2.2")], now=1)
    world.build([frame_to("192.0.2.2")], now=DOUBT_NS + 1)
    assert world.port.doubtful_peer >= 0


def test_a_cut_packet_is_counted() -> None:
    world = World()
    assert world.read([packet(OWN[0], "192.0.2.2")], flags=0x20).count == 0
    assert world.port.lost == 1
