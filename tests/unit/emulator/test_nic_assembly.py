"""A NIC put together from its options: what capture and trace of a real socket hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.utils import RawPcapNgReader

from emulator.backend import EmulatedDevice, open_device
from emulator.link.faults import FaultPlan
from emulator.link.frames import Burst
from emulator.link.memory import memory_link_pair
from emulator.nic.assembly import NicParts, assemble_nic
from emulator.wire.bth import Bth
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers, parse_packet
from emulator.wire.opcode import Opcode
from kvlane.errors import ConfigError
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import SEND_WR, WC, new_records
from tests.support import tshark
from tests.support.frame_strategies import new_frame

NBYTES = 10_000
MTU = 1024


@contextmanager
def devices(*options: dict[str, object]) -> Iterator[list[EmulatedDevice]]:
    opened = [open_device({"mtu_bytes": MTU, **each}) for each in options]
    try:
        yield opened
    finally:
        for device in opened:
            device.close()


def write_once(source: EmulatedDevice, target: EmulatedDevice) -> None:
    """A WRITE between two devices on sockets, checked for its bytes."""
    access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
    ours, theirs = source.alloc(NBYTES), target.alloc(NBYTES)
    ours[:] = np.arange(NBYTES) % 251
    near, far = source.register(ours, access), target.register(theirs, access)
    cqs = [device.create_cq(16) for device in (source, target)]
    qps = [d.create_qp(cq, QpOptions()) for d, cq in zip((source, target), cqs, strict=True)]
    qps[0].connect(qps[1].endpoint)
    qps[1].connect(qps[0].endpoint)
    request = new_records(SEND_WR, 1)
    request.opcode, request.send_flags = int(WrOpcode.RDMA_WRITE), int(SendFlags.SIGNALED)
    request.local_addr, request.length, request.lkey = near.addr, NBYTES, near.lkey
    request.remote_addr, request.rkey = far.addr, far.rkey
    qps[0].post_send(request)
    out = new_records(WC, 1)
    while not cqs[0].poll(out):
        for device in (source, target):
            if not device.progress():
                device.wait(1.0)
    assert out.status[0] == 0
    assert (ours == theirs).all()


def captured(path: Path) -> list[tuple[Any, bytes]]:
    """Descriptor and payload of each packet of a capture."""
    with RawPcapNgReader(str(path)) as reader:
        return [parse_packet(data) for data, _ in reader]


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_ends_capture_the_same_packets(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("source.pcapng", "target.pcapng")]
    with devices(*({"pcap": str(path)} for path in paths)) as (source, target):
        write_once(source, target)
    packets = [captured(path) for path in paths]
    opcodes = [Bth.parse(payload).opcode for _, payload in packets[0]]
    assert opcodes[0] == Opcode.RC_RDMA_WRITE_FIRST
    assert opcodes.count(Opcode.RC_RDMA_WRITE_MIDDLE) == NBYTES // MTU - 1
    assert Counter(payload for _, payload in packets[0]) == Counter(
        payload for _, payload in packets[1]
    )
    for frame, payload in packets[0]:
        right = icrc(emit_headers(frame, len(payload)), payload[:-4])
        assert int.from_bytes(payload[-4:], "little") == right


@tshark.needs_tshark
def test_tshark_reads_a_capture_from_sockets(tmp_path: Path) -> None:
    path = tmp_path / "source.pcapng"
    with devices({"pcap": str(path)}, {}) as (source, target):
        write_once(source, target)
    rows = tshark.packet_fields(path, ("infiniband.bth.opcode", "frame.comment"))
    assert int(rows[0]["infiniband.bth.opcode"]) == Opcode.RC_RDMA_WRITE_FIRST
    assert rows[0]["frame.comment"].startswith("sent to UDP port ")
    assert tshark.packet_fields(path, ("frame.number",), "!infiniband.bth || _ws.malformed") == []


def test_a_trace_tells_of_packets_and_states(tmp_path: Path) -> None:
    path = tmp_path / "source.jsonl"
    with devices({"trace": str(path)}, {}) as (source, target):
        write_once(source, target)
    told = events(path)
    states = [event["after"] for event in told if event["event"] == "StateChange"]
    assert states[:3] == ["INIT", "RTR", "RTS"]
    packets = [event for event in told if event["event"] == "Packet"]
    assert packets[0]["opcode"] == "RC_RDMA_WRITE_FIRST"
    assert {packet["direction"] for packet in packets} == {"sent", "received"}
    assert {packet["fault"] for packet in packets} == {""}


def test_capture_and_trace_show_what_the_engine_sends_and_gets_not_what_is_lost(
    tmp_path: Path,
) -> None:
    near, far = memory_link_pair()
    pcap, trace = tmp_path / "nic.pcapng", tmp_path / "nic.jsonl"
    parts = NicParts(faults=FaultPlan(drop=1.0), pcap=str(pcap), trace=str(trace))
    nic = assemble_nic(near, parts, seed=1, clock=lambda: 5)
    burst = Burst(1, 64)
    frame = new_frame("::ffff:192.0.2.1", "::ffff:192.0.2.2", dst_port=4791)
    assert burst.append(bytes(16), frame)
    far.send(burst)
    assert not nic.progress()
    assert nic.link.send(burst) == 1
    assert far.receive(Burst(1, 64), 0) == 0
    nic.close()
    far.close()
    assert len(captured(pcap)) == 1
    assert [event["direction"] for event in events(trace)] == ["sent"]


@pytest.mark.parametrize("option", ["pcap", "trace"])
def test_a_file_that_cannot_be_written_is_refused_and_the_link_closed(
    option: str, tmp_path: Path
) -> None:
    near, far = memory_link_pair()
    parts = NicParts(**{option: str(tmp_path / "missing" / "file")})
    with pytest.raises(ConfigError, match=r"cannot write .*missing/file: No such file"):
        assemble_nic(near, parts, seed=1)
    assert near.fileno() == -1
    far.close()


def test_nothing_is_watched_by_default() -> None:
    near, far = memory_link_pair()
    nic = assemble_nic(near, NicParts(), seed=1)
    assert nic.link is near
    nic.close()
    far.close()


GBPS = 1_000_000_000


def test_marks_of_the_network_slow_a_nic_that_controls_congestion() -> None:
    """Through real sockets: ECT out, CE in, CNP back, and its bytes later than at line rate."""
    congested: dict[str, object] = {"congestion_bps": 10 * GBPS}
    with devices(congested, {**congested, "faults": "ecn=1"}) as (source, target):
        write_once(source, target)
        notified, slowed = target.counters(), source.counters()
    assert notified["np_ecn_marked_roce_packets"] == -(-NBYTES // MTU)
    assert notified["np_cnp_sent"] >= 1
    assert slowed["rp_cnp_handled"] >= 1
    assert slowed["rp_cnp_ignored"] == 0


@pytest.mark.parametrize("without", [0, 1])
def test_a_nic_without_congestion_control_neither_asks_for_marks_nor_answers(without: int) -> None:
    options: list[dict[str, object]] = [{"congestion_bps": GBPS}, {"congestion_bps": GBPS}]
    options[without] = {}
    options[1]["faults"] = "ecn=1"
    with devices(*options) as (source, target):
        write_once(source, target)
        assert target.counters()["np_cnp_sent"] == 0
        assert source.counters()["rp_cnp_handled"] == 0
