"""What the engine sends, read by tshark and scapy: they see the same packets as we do.

Real transfers between two engines give every opcode and every kind of answer, over IPv4 and
IPv6, into one capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw, raw

from emulator.link.datagrams import Datagram
from emulator.link.frames import Burst
from emulator.link.memory import memory_link_pair
from emulator.link.pcap import PcapLink, shown_packet
from emulator.wire.aeth import Aeth, SyndromeClass
from emulator.wire.atomic_eth import AtomicAckEth, AtomicEth
from emulator.wire.deth import Deth
from emulator.wire.imm import Ieth, ImmDt
from emulator.wire.opcode import Opcode
from emulator.wire.packet import ICRC_BYTES, RocePacket
from emulator.wire.reth import Reth
from tests.support import tshark
from tests.support.packet_kinds import ANSWERED_CODES, every_kind
from tests.support.roce_pair import Frame, ipv6_gid, mapped_gid

pytestmark = tshark.needs_tshark

Fields = dict[str, Any]

# Name in tshark: (the base it writes numbers in, what we read there). Headers that a packet
# lacks must be missing on both sides.
BTH_FIELDS = {
    "infiniband.bth.opcode": (10, lambda p: p.bth.opcode),
    "infiniband.bth.destqp": (16, lambda p: p.bth.dest_qp),
    "infiniband.bth.psn": (10, lambda p: p.bth.psn),
    "infiniband.bth.padcnt": (10, lambda p: p.bth.pad_count),
    "infiniband.bth.se": (10, lambda p: int(p.bth.solicited)),
    "infiniband.bth.m": (10, lambda p: int(p.bth.migreq)),
    "infiniband.bth.a": (10, lambda p: int(p.bth.ack_request)),
    "infiniband.bth.p_key": (10, lambda p: p.bth.pkey),
    "infiniband.bth.tver": (10, lambda p: 0),
}
HEADER_FIELDS = {
    "infiniband.deth.q_key": (16, Deth, "q_key"),
    "infiniband.deth.srcqp": (16, Deth, "source_qp"),
    "infiniband.reth.dmalen": (10, Reth, "dma_length"),
    "infiniband.atomiceth.swapdt": (10, AtomicEth, "swap_or_add"),
    "infiniband.atomiceth.cmpdt": (10, AtomicEth, "compare"),
    "infiniband.aeth.syndrome": (10, Aeth, "syndrome"),
    "infiniband.aeth.msn": (10, Aeth, "msn"),
    "infiniband.atomicacketh.origremdt": (10, AtomicAckEth, "original_value"),
    "infiniband.immdt": (16, ImmDt, "immediate"),
    "infiniband.ieth": (16, Ieth, "rkey"),
}
PLACE_FIELDS = {
    "infiniband.reth.va": (16, "virtual_address"),
    "infiniband.reth.r_key": (16, "rkey"),
}
"""The same for RETH and AtomicETH."""
NUMBERS = {
    name: base
    for table in (BTH_FIELDS, HEADER_FIELDS, PLACE_FIELDS)
    for name, (base, *_) in table.items()
}
UNREAD = (Opcode.CNP, Opcode.RC_FLUSH, Opcode.RC_ATOMIC_WRITE)
"""Wireshark 4.0 knows neither these nor where they end; of them it reads the BTH."""
ICRC_FIELD = "infiniband.invariant.crc"
PROTOCOLS_FIELD = "frame.protocols"


def bursts_of(frames: Iterable[Frame]) -> Iterator[Burst]:
    for payload, descriptor in frames:
        burst = Burst(1, 8192)
        assert burst.append(payload, descriptor)
        yield burst


def write_capture(path: Path, frames: Iterable[Frame]) -> None:
    """A capture of frames that a link sends."""
    near, far = memory_link_pair()
    link = PcapLink(near, path, clock=lambda: 5)
    for burst in bursts_of(frames):
        assert link.send(burst) == 1
    link.close()
    far.close()


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    return every_kind(mapped_gid) + every_kind(ipv6_gid)


@pytest.fixture(scope="module")
def capture(frames: list[Frame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "all.pcapng"
    write_capture(path, frames)
    return path


def as_we_read(payload: bytes) -> Fields:
    packet, icrc = RocePacket.parse(payload)
    unread = packet.bth.opcode in UNREAD
    headers = {} if unread else {type(header): header for header in packet.extensions}
    fields: Fields = {name: read(packet) for name, (_, read) in BTH_FIELDS.items()}
    for name, (_, kind, attribute) in HEADER_FIELDS.items():
        fields[name] = getattr(headers.get(kind), attribute, None)
    place = headers.get(Reth, headers.get(AtomicEth))
    for name, (_, attribute) in PLACE_FIELDS.items():
        fields[name] = getattr(place, attribute, None)
    if not unread:
        fields[ICRC_FIELD] = int.from_bytes(icrc.to_bytes(4, "little"), "big")
    return fields


def as_tshark_reads(fields: dict[str, str]) -> Fields:
    read: Fields = {
        name: int(fields[name], base) if fields[name] else None for name, base in NUMBERS.items()
    }
    if fields[ICRC_FIELD]:
        read[ICRC_FIELD] = int(fields[ICRC_FIELD], 16)
    return read


def test_tshark_reads_the_same_headers(frames: list[Frame], capture: Path) -> None:
    rows = tshark.packet_fields(capture, (*NUMBERS, ICRC_FIELD, PROTOCOLS_FIELD))
    assert [as_tshark_reads(row) for row in rows] == [as_we_read(payload) for payload, _ in frames]
    for row in rows:
        assert row[PROTOCOLS_FIELD] in (
            "raw:ip:udp:infiniband",
            "raw:ip:udp:infiniband:data",
            "raw:ipv6:udp:infiniband",
            "raw:ipv6:udp:infiniband:data",
        )


def test_nothing_is_left_out(frames: list[Frame]) -> None:
    packets = [RocePacket.parse(payload)[0] for payload, _ in frames]
    assert {packet.bth.opcode for packet in packets} == set(Opcode)
    answers = [p.extension(Aeth) for p in packets if p.bth.opcode == Opcode.RC_ACKNOWLEDGE]
    codes = {a.syndrome_value for a in answers if a.syndrome_class is SyndromeClass.NAK}
    assert codes == ANSWERED_CODES
    assert any(a.syndrome_class is SyndromeClass.RNR_NAK for a in answers)
    assert {packet.bth.pad_count for packet in packets} == {0, 2}


def test_tshark_finds_nothing_malformed(capture: Path) -> None:
    fields = ("frame.number", "_ws.expert.message")
    assert tshark.packet_fields(capture, fields, "_ws.malformed || _ws.expert") == []


def test_control_a_packet_without_its_end_is_malformed(frames: list[Frame], tmp_path: Path) -> None:
    payload, descriptor = next(f for f in frames if f[0][0] == Opcode.RC_RDMA_WRITE_ONLY)
    cut = payload[: RocePacket.parse(payload)[0].bth.NBYTES + 6]
    path = tmp_path / "cut.pcapng"
    write_capture(path, [(payload, descriptor), (cut, descriptor)])
    rows = tshark.packet_fields(path, ("frame.number",), "_ws.malformed")
    assert rows == [{"frame.number": "2"}]


def test_control_another_field_is_noticed(frames: list[Frame], tmp_path: Path) -> None:
    payload, descriptor = next(f for f in frames if f[0][0] == Opcode.RC_RDMA_WRITE_ONLY)
    changed = bytearray(payload)
    changed[11] ^= 1  # the PSN's last bit
    path = tmp_path / "changed.pcapng"
    write_capture(path, [(bytes(changed), descriptor)])
    (row,) = tshark.packet_fields(path, (*NUMBERS, ICRC_FIELD))
    assert as_tshark_reads(row) != as_we_read(payload)


def scapy_icrc(packet: bytes) -> tuple[bytes, bytes]:
    """The ICRC that an IP packet ends with, and the one that scapy computes for it."""
    network = (IP if packet[0] >> 4 == 4 else IPv6)(packet)
    headers = raw(network)[: len(packet) - len(raw(network[UDP].payload))]
    bth = BTH(packet[len(headers) : len(headers) + 12] + bytes(ICRC_BYTES))
    bth.remove_payload()
    bth.icrc = None
    rest = packet[len(headers) + 12 : -ICRC_BYTES]
    udp = network[UDP]
    udp.remove_payload()
    return packet[-ICRC_BYTES:], raw(network / bth / Raw(rest))[-ICRC_BYTES:]


def test_scapy_computes_the_same_icrc(frames: list[Frame]) -> None:
    for payload, descriptor in frames:
        packet, comment = shown_packet(Datagram(payload, descriptor))
        ours, theirs = scapy_icrc(packet)
        assert (ours, comment) == (theirs, "")


def test_control_scapy_sees_a_wrong_icrc(frames: list[Frame]) -> None:
    payload, descriptor = frames[0]
    wrong = payload[:-1] + bytes((payload[-1] ^ 1,))
    ours, theirs = scapy_icrc(shown_packet(Datagram(wrong, descriptor))[0])
    assert ours != theirs
