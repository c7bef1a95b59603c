"""One event for each packet on a link, whatever its bytes are."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator

import pytest

from emulator.link.frames import Burst
from emulator.link.memory import MemoryLink, memory_link_pair
from emulator.link.trace import TraceLink
from emulator.trace.events import Direction, Packet, StateChange
from emulator.trace.packets import packet_event
from emulator.trace.sinks import JsonLines, Recording
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import QpState
from tests.support.packet_kinds import every_kind
from tests.support.roce_pair import Frame, mapped_gid


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    return every_kind(mapped_gid)


@pytest.fixture
def ends() -> Iterator[tuple[MemoryLink, MemoryLink]]:
    pair = memory_link_pair()
    yield pair
    for link in pair:
        link.close()


def event_of(frames: list[Frame], opcode: Opcode) -> Packet:
    payload, descriptor = next(frame for frame in frames if frame[0][0] == opcode)
    return packet_event(payload, descriptor, Direction.SENT, 0)


def test_an_event_for_each_frame_in_both_directions(
    ends: tuple[MemoryLink, MemoryLink], frames: list[Frame]
) -> None:
    trace = Recording()
    link = TraceLink(ends[0], trace, clock=lambda: 11)
    burst = Burst(len(frames), 1 << 20)
    for frame in frames:
        assert burst.append(*frame)
    assert link.send(burst) == len(frames)
    ends[1].send(burst)
    assert link.receive(Burst(len(frames), 1 << 20), now=22) == len(frames)
    packets = trace.of(Packet)
    sent, received = packets[: len(frames)], packets[len(frames) :]
    assert {(p.direction, p.at_ns) for p in sent} == {(Direction.SENT, 11)}
    assert {(p.direction, p.at_ns) for p in received} == {(Direction.RECEIVED, 22)}
    names = [Opcode(payload[0]).name for payload, _ in frames]
    assert [p.opcode for p in sent] == [p.opcode for p in received] == names
    assert [p.psn for p in sent] == [int.from_bytes(f[0][9:12], "big") for f in frames]
    assert {p.fault for p in packets} == {""}


def test_what_an_event_tells(frames: list[Frame]) -> None:
    atomic = event_of(frames, Opcode.RC_ATOMIC_ACKNOWLEDGE)
    assert (atomic.syndrome, atomic.answer, atomic.length) == (0x1F, "ACK", 0)
    assert atomic.msn is not None
    datagram = event_of(frames, Opcode.UD_SEND_ONLY)
    assert datagram.src_qpn is not None
    assert datagram.syndrome is None
    assert event_of(frames, Opcode.CNP).flags == ("becn",)
    asking = event_of(frames, Opcode.RC_RDMA_READ_REQUEST)
    assert asking.flags == ("ack_request",)
    answers = {
        packet_event(payload, descriptor, Direction.SENT, 0).answer
        for payload, descriptor in frames
        if payload[0] == Opcode.RC_ACKNOWLEDGE
    }
    assert answers == {
        "ACK",
        "RNR_NAK",
        "NAK PSN_SEQUENCE_ERROR",
        "NAK INVALID_REQUEST",
        "NAK REMOTE_ACCESS_ERROR",
        "NAK REMOTE_OPERATIONAL_ERROR",
    }


def test_a_wrong_icrc_is_a_fault_of_a_packet_that_can_be_read(frames: list[Frame]) -> None:
    payload, descriptor = frames[0]
    right = packet_event(payload, descriptor, Direction.SENT, 0)
    wrong = packet_event(payload[:-1] + b"?", descriptor, Direction.SENT, 0)
    assert wrong.fault == "the ICRC is wrong"
    assert (wrong.opcode, wrong.psn, wrong.length) == (right.opcode, right.psn, right.length)


def test_any_bytes_have_an_event(frames: list[Frame]) -> None:
    rng = random.Random(5)
    _, descriptor = frames[0]
    for length in (*range(40), 300):
        for _ in range(20):
            event = packet_event(rng.randbytes(length), descriptor, Direction.RECEIVED, 0)
            assert event.fault


def test_only_what_the_link_accepts_is_told(frames: list[Frame]) -> None:
    near, far = memory_link_pair(capacity_frames=1)
    trace = Recording()
    link = TraceLink(near, trace, clock=lambda: 0)
    burst = Burst(2, 4096)
    assert burst.append(*frames[0])
    assert burst.append(*frames[1])
    assert link.send(burst) == 1
    assert len(trace.events) == 1
    link.close()
    far.close()


def test_json_lines_hold_the_same() -> None:
    file = io.BytesIO()
    sink = JsonLines(file)
    change = StateChange(
        at_ns=3, qpn=7, before=QpState.RTS, after=QpState.ERR, cause="REMOTE_ACCESS_ERROR"
    )
    sink(change)
    sink(change)
    sink.close()
    sink(change)
    lines = file.getvalue().decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "event": "StateChange",
            "at_ns": 3,
            "qpn": 7,
            "before": "RTS",
            "after": "ERR",
            "cause": "REMOTE_ACCESS_ERROR",
        }
    ] * 2
    assert sink.lost_events == 1


def test_every_packet_can_be_written_as_json(frames: list[Frame]) -> None:
    file = io.BytesIO()
    sink = JsonLines(file)
    events = [packet_event(*frame, Direction.SENT, 0) for frame in frames]
    for event in events:
        sink(event)
    lines = [json.loads(line) for line in file.getvalue().decode().splitlines()]
    assert [line["opcode"] for line in lines] == [event.opcode for event in events]
    assert {line["direction"] for line in lines} == {"sent"}


def test_a_recording_answers_questions() -> None:
    trace = Recording()
    changes = [
        StateChange(at_ns=n, qpn=qpn, before=QpState.RTS, after=QpState.ERR, cause="")
        for n, qpn in enumerate((1, 2, 1))
    ]
    for change in changes:
        trace(change)
    assert trace.of(StateChange) == changes
    assert trace.of(StateChange, qpn=1) == [changes[0], changes[2]]
    assert trace.only(StateChange, qpn=2) == changes[1]
    with pytest.raises(AssertionError, match="not one StateChange but 2"):
        trace.only(StateChange, qpn=1)
    trace.clear()
    assert trace.of(StateChange) == []
