"""The capture of a link: what scapy reads from it, and that its end is not the link's."""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import RawPcapNgReader

from emulator.link.datagrams import Datagram
from emulator.link.frames import FRAME, Burst
from emulator.link.memory import MemoryLink, memory_link_pair
from emulator.link.pcap import PcapLink, shown_packet
from emulator.link.pcapng import PacketDirection
from emulator.wire.bth import Bth
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers, parse_packet
from emulator.wire.opcode import Opcode
from emulator.wire.packet import emit_icrc
from kvlane.limits import ROCE_V2_UDP_PORT
from tests.support.frame_strategies import new_frame
from tests.support.repository import run_python

FULL_DISK = "/dev/full"


class Clock:
    """Time by hand."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def ends() -> Iterator[tuple[MemoryLink, MemoryLink]]:
    pair = memory_link_pair()
    yield pair
    for link in pair:
        link.close()


def ipv4_frame(dst_port: int) -> Any:
    return new_frame(
        "::ffff:192.0.2.1", "::ffff:192.0.2.2", src_port=0xC123, dst_port=dst_port, ip_frag=0x4000
    )


def sealed(dst_port: int = ROCE_V2_UDP_PORT, psn: int = 1) -> Datagram:
    """A packet with a right ICRC."""
    frame = ipv4_frame(dst_port)
    body = Bth(Opcode.RC_SEND_ONLY, dest_qp=2, psn=psn).emit() + bytes(range(8))
    return Datagram(body + emit_icrc(icrc(emit_headers(frame, len(body) + 4), body)), frame)


def burst_of(*datagrams: Datagram) -> Burst:
    burst = Burst(8, 1 << 17)
    for datagram in datagrams:
        assert burst.append(*datagram)
    return burst


def packets_in(path: Path) -> list[tuple[bytes, Any]]:
    with RawPcapNgReader(str(path)) as reader:
        return list(reader)


def test_both_directions_with_time_and_payload(
    ends: tuple[MemoryLink, MemoryLink], tmp_path: Path
) -> None:
    path, clock = tmp_path / "link.pcapng", Clock()
    near = PcapLink(ends[0], path, clock)
    clock.now = 7_000_000_001
    assert near.send(burst_of(sealed(psn=1), sealed(psn=2))) == 2
    ends[1].send(burst_of(sealed(psn=3)))
    assert near.receive(Burst(8, 4096), now=(1 << 32) + 5) == 1
    near.close()
    packets = packets_in(path)
    assert [data for data, _ in packets] == [shown_packet(sealed(psn=n))[0] for n in (1, 2, 3)]
    assert {meta.tsresol for _, meta in packets} == {10**9}
    times = [meta.tshigh << 32 | meta.tslow for _, meta in packets]
    assert times == [7_000_000_001, 7_000_000_001, (1 << 32) + 5]
    assert [meta.direction for _, meta in packets] == [
        PacketDirection.OUTBOUND,
        PacketDirection.OUTBOUND,
        PacketDirection.INBOUND,
    ]


def test_only_what_the_link_accepts_is_written(tmp_path: Path) -> None:
    near, far = memory_link_pair(capacity_frames=1)
    link = PcapLink(near, tmp_path / "link.pcapng", Clock())
    assert link.send(burst_of(sealed(psn=1), sealed(psn=2))) == 1
    link.close()
    far.close()
    assert len(packets_in(tmp_path / "link.pcapng")) == 1


def test_a_capture_in_progress_can_be_read(
    ends: tuple[MemoryLink, MemoryLink], tmp_path: Path
) -> None:
    """Nothing waits in a buffer, so a killed process has lost nothing."""
    path = tmp_path / "link.pcapng"
    link = PcapLink(ends[0], path, Clock())
    assert packets_in(path) == []
    link.send(burst_of(sealed()))
    assert len(packets_in(path)) == 1


def test_every_block_is_framed_by_its_length(
    ends: tuple[MemoryLink, MemoryLink], tmp_path: Path
) -> None:
    path = tmp_path / "link.pcapng"
    PcapLink(ends[0], path, Clock()).send(burst_of(sealed(dst_port=9), sealed()))
    data, kinds = path.read_bytes(), []
    while data:
        kind, length = struct.unpack_from("<II", data)
        assert length % 4 == 0
        assert struct.unpack_from("<I", data, length - 4) == (length,)
        kinds.append(kind)
        data = data[length:]
    assert kinds == [0x0A0D0D0A, 1, 6, 6]


@pytest.mark.parametrize("spoiled", [0, 1 << 31])
def test_any_port_is_shown_as_that_of_roce(spoiled: int) -> None:
    payload, frame = sealed(dst_port=40_123)
    payload = payload[:-4] + emit_icrc(int.from_bytes(payload[-4:], "little") ^ spoiled)
    packet, comment = shown_packet(Datagram(payload, frame))
    assert comment == "sent to UDP port 40123"
    shown, data = parse_packet(packet)
    assert shown.dst_port == ROCE_V2_UDP_PORT
    assert data[:-4] == payload[:-4]
    right = icrc(emit_headers(shown, len(data)), data[:-4])
    assert int.from_bytes(data[-4:], "little") ^ right == spoiled


def test_bytes_that_are_no_packet_are_captured_as_they_are(
    ends: tuple[MemoryLink, MemoryLink], tmp_path: Path
) -> None:
    path = tmp_path / "link.pcapng"
    link = PcapLink(ends[0], path, Clock())
    runts = [Datagram(bytes(n), ipv4_frame(port)) for n in (0, 3, 15) for port in (9, 4791)]
    too_long = Datagram(bytes(65_508), ipv4_frame(4791))
    burst = burst_of(*runts, too_long)
    assert link.send(burst) == len(runts) + 1
    found = [bytes(IP(data)[UDP].payload) for data, _ in packets_in(path)]
    assert found == [runt.payload for runt in runts]


def test_a_full_disk_ends_the_capture_and_nothing_else(
    ends: tuple[MemoryLink, MemoryLink], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        link = PcapLink(ends[0], FULL_DISK, Clock())
        for psn in range(3):
            assert link.send(burst_of(sealed(psn=psn), sealed())) == 2
    assert ends[1].receive(Burst(8, 4096), 0) == 6
    assert link.lost_packets == 6
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text


_FILL_A_LIMITED_FILE = """
import resource
from emulator.trace.record_file import RecordFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = RecordFile("limited")
results = [file.append(bytes([n]) * 300) for n in range(5)]
assert results == [True, True, True, False, False], results
assert file.lost_records == 2, file.lost_records
"""


def test_a_record_that_does_not_fit_is_cut_off(tmp_path: Path) -> None:
    done = run_python(["-c", _FILL_A_LIMITED_FILE], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = b"".join(bytes([n]) * 300 for n in range(3))
    assert (tmp_path / "limited").read_bytes() == whole


def test_short_writes_are_continued(ends: tuple[MemoryLink, MemoryLink], tmp_path: Path) -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:5])

    slow, path = Slow(), tmp_path / "copy.pcapng"
    link = PcapLink(ends[0], slow, Clock())
    link.send(burst_of(sealed()))
    link.close()
    path.write_bytes(slow.getvalue())  # and a file that was lent is still open
    assert len(packets_in(path)) == 1


def test_a_file_that_its_owner_closes_ends_the_capture(
    ends: tuple[MemoryLink, MemoryLink],
) -> None:
    file = io.BytesIO()
    link = PcapLink(ends[0], file, Clock())
    file.close()
    assert link.send(burst_of(sealed())) == 1
    assert link.lost_packets == 1


def test_the_wrapped_link_is_all_that_it_was(
    ends: tuple[MemoryLink, MemoryLink], tmp_path: Path
) -> None:
    link = PcapLink(ends[0], tmp_path / "link.pcapng", Clock())
    names = ("gid", "udp_port", "source_port", "receive_window_bytes")
    assert [getattr(link, name) for name in names] == [getattr(ends[0], name) for name in names]
    assert link.fileno() == ends[0].fileno()
    assert link.next_release(3) is None
    link.close()
    assert ends[0].fileno() == -1


def test_descriptors_are_not_changed() -> None:
    payload, frame = sealed(dst_port=5)
    before = np.array(frame, FRAME).copy()
    shown_packet(Datagram(payload, frame))
    assert frame == before
