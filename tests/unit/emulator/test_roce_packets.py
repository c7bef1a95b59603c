"""How a message is cut into packets: every path MTU, every operation, partitions, and 2 GiB."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from emulator.link.frames import Burst
from emulator.wire.aeth import Aeth
from emulator.wire.imm import ImmDt
from emulator.wire.opcode import Opcode
from emulator.wire.packet import RocePacket
from emulator.wire.reth import Reth
from kvlane.verbs.enums import MwType, QpState, QpType, WcOpcode, WcStatus, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Pair, reseal
from tests.support.roce_script import ACK, NAK_ACCESS, NAK_INVALID, NAK_SEQUENCE, Script
from tests.support.roce_work import (
    part,
    pattern,
    post,
    post_receive,
    receive,
    statuses,
    towards,
    work,
    wr_ids,
)

MTUS = [256, 512, 1024, 2048, 4096]
GIB_2 = 1 << 31
NAMES = {
    WrOpcode.SEND: ("SEND", ""),
    WrOpcode.SEND_WITH_IMM: ("SEND", "_WITH_IMMEDIATE"),
    WrOpcode.SEND_WITH_INV: ("SEND", "_WITH_INVALIDATE"),
    WrOpcode.RDMA_WRITE: ("RDMA_WRITE", ""),
    WrOpcode.RDMA_WRITE_WITH_IMM: ("RDMA_WRITE", "_WITH_IMMEDIATE"),
    WrOpcode.RDMA_READ: ("RDMA_READ_RESPONSE", ""),
}


def expected(opcode: WrOpcode, size: int, mtu: int, transport: str) -> list[tuple[str, int]]:
    """Opcode and payload of each packet that carries the message, simply said."""
    stem, suffix = NAMES[opcode]
    count = max(1, -(-size // mtu))
    packets = []
    for i in range(count):
        last = i == count - 1
        place = ("ONLY" if last else "FIRST") if i == 0 else ("LAST" if last else "MIDDLE")
        payload = size - i * mtu if last else mtu
        packets.append((f"{transport}_{stem}_{place}{suffix if last else ''}", payload))
    return packets


def carried(frames: list[Any]) -> list[tuple[str, int]]:
    """Opcode and payload of the packets that carry data."""
    packets = [RocePacket.parse(frame)[0] for frame, _ in frames]
    named = [(Opcode(p.bth.opcode).name, len(p.payload)) for p in packets]
    return [item for item in named if "REQUEST" not in item[0] and "ACKNOWLEDGE" not in item[0]]


def cases() -> list[tuple[QpType, WrOpcode]]:
    on_uc = [op for op in NAMES if op not in (WrOpcode.SEND_WITH_INV, WrOpcode.RDMA_READ)]
    return [(QpType.RC, op) for op in NAMES] + [(QpType.UC, op) for op in on_uc]


@pytest.mark.parametrize("mtu", MTUS)
@pytest.mark.parametrize(("kind", "opcode"), cases())
def test_a_message_is_cut_at_the_path_mtu(kind: QpType, opcode: WrOpcode, mtu: int) -> None:
    pair = Pair(mtu, kind=kind)
    frames: list[Any] = []
    keep = lambda sent: frames.extend(sent) or sent  # type: ignore[func-returns-value]  # noqa: E731
    pair.to_a = pair.to_b = keep
    top = 3 * mtu + 5
    local, remote = pair.a.region(top), pair.b.region(top)
    reads = opcode == WrOpcode.RDMA_READ
    source, target = (remote, local) if reads else (local, remote)
    source.data[:] = pattern(top)
    window = pair.b.engine.regions.alloc_window(1, MwType.TYPE_2)
    for size in (0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, top):
        target.data[:] = 0
        post_receive(pair.b, receive([part(remote)]))
        post(pair.a, work(opcode, [part(local, 0, size)], imm=window, **towards(remote)))
        pair.run()
        assert statuses(pair.a.poll()) == [WcStatus.SUCCESS]
        assert carried(frames) == expected(opcode, size, mtu, kind.name)
        assert (source.data[:size] == target.data[:size]).all()
        assert not target.data[size:].any()
        frames.clear()


@pytest.mark.parametrize("nbytes", [0, 1, 255, 257, 300])
def test_a_response_of_another_length_than_asked_for_ends_the_connection(nbytes: int) -> None:
    script = Script(256)
    local, remote = script.port.region(600), script.pair.a.region(600)
    post(script.port, work(WrOpcode.RDMA_READ, [part(local)], **towards(remote)))
    script.packets()
    first = Opcode.RC_RDMA_READ_RESPONSE_FIRST
    script.respond(first, 0, Aeth(ACK, 1), payload=b"x" * nbytes)
    assert statuses(script.port.poll()) == [WcStatus.BAD_RESP_ERR]
    assert not local.data.any()


@pytest.mark.parametrize(
    ("theirs", "ours", "passes"),
    [
        (0xFFFF, 0xFFFF, True),
        (0x7FFF, 0xFFFF, True),
        (0xFFFF, 0x7FFF, True),
        (0x7FFF, 0x7FFF, False),
        (0x8001, 0xFFFF, False),
        (0xFFFE, 0xFFFF, False),
        (0x8005, 0x0005, True),
        (0x0005, 0x0005, False),
    ],
)
def test_partitions_must_agree_and_one_side_be_a_full_member(
    theirs: int, ours: int, passes: bool
) -> None:
    script = Script()
    script.port.engine.qps.table[script.port.qp].pkey = ours
    region = script.port.region(8)
    post_receive(script.port, receive([part(region)]))
    answers = script.request(Opcode.RC_SEND_ONLY, 0, payload=b"x", pkey=theirs)
    assert answers == (["ACK 0"] if passes else [])
    assert script.counter("rx_bad_pkey") == (0 if passes else 1)


class Vast:
    """A registered region of 2 GiB, of which only what is touched takes memory."""

    def __init__(self, script: Script) -> None:
        self._memory = mmap.mmap(-1, GIB_2 + mmap.PAGESIZE)
        self.data = np.frombuffer(self._memory, np.uint8)
        self.addr = int(self.data.ctypes.data)
        self.key = script.port.engine.regions.register(
            self.addr, GIB_2, int(ALL_ACCESS), 1, self._memory
        )

    def behind_is_untouched(self) -> bool:
        return not self.data[GIB_2:].any()


def jump(script: Script, **fields: int) -> None:
    """Set fields of the queue pair, as they are after most of a long message."""
    for name, value in fields.items():
        script.port.engine.qps.table[script.port.qp][name] = value


@pytest.mark.parametrize("mtu", MTUS)
def test_a_write_of_2_gib_ends_where_its_region_ends(mtu: int) -> None:
    script = Script(mtu)
    vast = Vast(script)
    packets = GIB_2 // mtu
    header = Reth(vast.addr, vast.key, GIB_2)
    assert script.request(Opcode.RC_RDMA_WRITE_FIRST, 0, header, payload=b"a" * mtu) == ["ACK 0"]
    done = (packets - 2) * mtu
    base = script.pair.a.first_psn
    jump(
        script,
        write_addr=vast.addr + done,
        write_left=GIB_2 - done,
        expected_psn=(base + packets - 2) & 0xFFFFFF,
    )
    assert script.request(Opcode.RC_RDMA_WRITE_MIDDLE, packets - 2, payload=b"b" * mtu) == [
        f"ACK {packets - 2}"
    ]
    post_receive(script.port, receive(wr_id=3))
    script.request(
        Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, packets - 1, ImmDt(9), payload=b"c" * mtu
    )
    (wc,) = script.port.poll()
    assert (wc.wr_id, wc.imm, wc.byte_len) == (3, 9, GIB_2)
    assert bytes(vast.data[:mtu]) == b"a" * mtu
    assert bytes(vast.data[GIB_2 - 2 * mtu : GIB_2]) == b"b" * mtu + b"c" * mtu
    assert vast.behind_is_untouched()


@pytest.mark.parametrize(
    ("length", "offset", "syndrome"),
    [(GIB_2 + 1, 0, NAK_INVALID), (0xFFFFFFFF, 0, NAK_INVALID), (GIB_2, 1, NAK_ACCESS)],
)
@pytest.mark.parametrize("opcode", [Opcode.RC_RDMA_WRITE_FIRST, Opcode.RC_RDMA_READ_REQUEST])
def test_one_byte_more_is_refused(opcode: Opcode, length: int, offset: int, syndrome: int) -> None:
    script = Script(256)
    vast = Vast(script)
    payload = b"" if opcode == Opcode.RC_RDMA_READ_REQUEST else bytes(256)
    header = Reth(vast.addr + offset, vast.key, GIB_2)
    frame, descriptor = script.frame(opcode, script.pair.a.first_psn, header, payload=payload)
    forged = bytearray(frame)
    forged[24:28] = length.to_bytes(4, "big")
    script.port.receive(reseal(forged, descriptor), 0)
    assert script.answers() == [f"NAK 0 {syndrome:#04x}"]


@pytest.mark.parametrize("mtu", [256, 512, 4096])
def test_a_read_of_2_gib_takes_its_numbers_and_can_be_asked_for_in_part(mtu: int) -> None:
    script = Script(mtu)
    vast = Vast(script)
    vast.data[GIB_2 - mtu : GIB_2] = 7
    packets = GIB_2 // mtu
    script.port.receive(
        script.frame(
            Opcode.RC_RDMA_READ_REQUEST,
            script.pair.a.first_psn,
            Reth(vast.addr, vast.key, GIB_2),
        ),
        0,
    )
    first = RocePacket.parse(script.port.transmit(0)[0][0])[0]
    assert Opcode(first.bth.opcode) == Opcode.RC_RDMA_READ_RESPONSE_FIRST
    # The rest of two million responses need not be looked at: its region goes away.
    jump(script, job_head=int(script.port.engine.qps.table[script.port.qp].job_tail), new_jobs=0)
    tail = Reth(vast.addr + GIB_2 - mtu, vast.key, mtu)
    assert script.request(Opcode.RC_RDMA_READ_REQUEST, packets - 1, tail) == [f"ONLY {packets - 1}"]
    beyond = Reth(vast.addr, vast.key, 2 * mtu)
    assert script.request(Opcode.RC_RDMA_READ_REQUEST, packets - 1, beyond) == []
    assert script.request(Opcode.RC_RDMA_READ_REQUEST, packets, tail) == [f"ONLY {packets}"]


def requester(script: Script, opcode: WrOpcode, length: int) -> tuple[Any, Vast]:
    """Post one long request and return its record in the queue."""
    vast = Vast(script)
    post(script.port, work(opcode, [(vast.addr, length, vast.key)], remote_addr=64, rkey=9))
    ring = script.port.engine.qps._memory[script.port.qp][0]
    return ring[0], vast


@pytest.mark.parametrize("mtu", [256, 512, 4096])
def test_a_read_of_2_gib_is_filled_to_its_last_byte(mtu: int) -> None:
    script = Script(mtu)
    wqe, vast = requester(script, WrOpcode.RDMA_READ, GIB_2)
    (request,) = script.packets()
    assert request.extension(Reth) == Reth(64, 9, GIB_2)
    packets = GIB_2 // mtu
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_FIRST, 0, Aeth(ACK, 1), payload=b"a" * mtu)
    wqe.received = (packets - 1) * mtu
    jump(script, una_psn=(script.port.first_psn + packets - 1) & 0xFFFFFF)
    script.respond(Opcode.RC_RDMA_READ_RESPONSE_LAST, packets - 1, Aeth(ACK, 1), payload=b"z" * mtu)
    (wc,) = script.port.poll()
    assert (wc.status, wc.byte_len) == (WcStatus.SUCCESS, GIB_2)
    assert bytes(vast.data[GIB_2 - mtu : GIB_2]) == b"z" * mtu
    assert vast.behind_is_untouched()
    assert script.port.engine.next_deadline() >= 1 << 61


def test_a_lost_end_of_a_long_read_is_asked_for_alone() -> None:
    script = Script(4096)
    wqe, _ = requester(script, WrOpcode.RDMA_READ, GIB_2)
    script.packets()
    packets = GIB_2 // 4096
    wqe.received = (packets - 3) * 4096
    jump(script, una_psn=(script.port.first_psn + packets - 3) & 0xFFFFFF)
    last = Opcode.RC_RDMA_READ_RESPONSE_LAST
    script.respond(last, packets - 1, Aeth(ACK, 1), payload=bytes(4096))
    (again,) = script.packets()
    assert again.extension(Reth) == Reth(64 + (packets - 3) * 4096, 9, 3 * 4096)


@pytest.mark.parametrize("mtu", MTUS)
def test_a_write_of_2_gib_goes_on_from_where_it_is_missed(mtu: int) -> None:
    script = Script(mtu)
    wqe, vast = requester(script, WrOpcode.RDMA_WRITE, GIB_2)
    packets = GIB_2 // mtu
    window = len(script.packets())
    assert window == int(script.port.engine.qps.table[script.port.qp].window)
    at = packets - 5
    base = script.port.first_psn
    fields = dict.fromkeys(("una_psn", "tx_psn", "high_psn"), (base + at) & 0xFFFFFF)
    jump(script, **fields)
    wqe.sent = at
    vast.data[GIB_2 - 1] = 0x77
    script.now += 1
    sent = script.packets()
    assert [(p.bth.psn - base) & 0xFFFFFF for p in sent] == [at + i for i in range(5)]
    assert sent[-1].payload[-1] == 0x77
    assert Opcode(sent[-1].bth.opcode) == Opcode.RC_RDMA_WRITE_LAST
    script.acknowledge(at + 2, NAK_SEQUENCE)
    assert script.requests() == [
        f"RDMA_WRITE_MIDDLE {at + 2}",
        f"RDMA_WRITE_MIDDLE {at + 3}",
        f"RDMA_WRITE_LAST {at + 4}",
    ]
    script.acknowledge(at + 4)
    assert statuses(script.port.poll()) == [WcStatus.SUCCESS]


def test_one_byte_more_is_a_local_error() -> None:
    script = Script(4096)
    memory = mmap.mmap(-1, GIB_2 + mmap.PAGESIZE)
    addr = int(np.frombuffer(memory, np.uint8).ctypes.data)
    key = script.port.engine.regions.register(addr, GIB_2 + 1, int(ALL_ACCESS), 1, memory)
    post(script.port, work(WrOpcode.RDMA_WRITE, [(addr, GIB_2 + 1, key)]))
    assert script.packets() == []
    assert statuses(script.port.poll()) == [WcStatus.LOC_LEN_ERR]
    assert script.port.state == QpState.ERR


@pytest.mark.parametrize("left", [0, 1, 5])
def test_no_more_than_half_of_the_numbers_are_under_way(left: int) -> None:
    """One more, and the first response would look like one of an earlier request."""
    script = Script(256)
    requester(script, WrOpcode.RDMA_READ, GIB_2 - left * 256)
    local = script.port.region(100_000)
    post(script.port, work(WrOpcode.RDMA_WRITE, [part(local)]))
    sent = script.requests()
    assert sent[0] == "RDMA_READ_REQUEST 0"
    assert len(sent) == 1 + left
    assert script.port.engine.next_deadline() < 1 << 61
    for psn in range(3):
        opcode = Opcode.RC_RDMA_READ_RESPONSE_MIDDLE if psn else Opcode.RC_RDMA_READ_RESPONSE_FIRST
        aeth = () if psn else (Aeth(ACK, 1),)
        script.respond(opcode, psn, *aeth, payload=bytes(256))
        (another,) = script.requests()
        assert another.endswith(f" {(1 << 23) + psn}")
    # An acknowledgement for what is behind the READ shows its last responses to be lost.
    script.acknowledge((1 << 23) + 1)
    assert script.requests()[0] == "RDMA_READ_REQUEST 3"


def test_a_read_behind_a_write_waits_for_room_among_the_numbers() -> None:
    script = Script(256)
    local = script.port.region(1000)
    post(script.port, work(WrOpcode.RDMA_WRITE, [part(local)], wr_id=7))
    requester(script, WrOpcode.RDMA_READ, GIB_2)
    assert script.requests()[-1] == "RDMA_WRITE_LAST 3"
    script.acknowledge(2)
    assert script.requests() == []
    script.acknowledge(3)
    assert wr_ids(script.port.poll()) == [7]
    assert script.requests() == ["RDMA_READ_REQUEST 4"]


def test_a_response_far_ahead_acknowledges_a_long_write() -> None:
    """Message and acknowledged number may be more than half of the numbers apart."""
    script = Script(256)
    wqe, _ = requester(script, WrOpcode.RDMA_WRITE, GIB_2)
    script.packets()
    at = (1 << 23) - 2
    base = script.port.first_psn
    fields = dict.fromkeys(("una_psn", "tx_psn", "high_psn"), (base + at) & 0xFFFFFF)
    jump(script, **fields)
    wqe.sent = at
    local = script.port.region(2560)
    post(script.port, work(WrOpcode.RDMA_READ, [part(local)]))
    assert script.requests()[-1] == f"RDMA_READ_REQUEST {at + 2}"
    first = Opcode.RC_RDMA_READ_RESPONSE_FIRST
    script.respond(first, at + 2, Aeth(ACK, 2), payload=b"r" * 256)
    (wc,) = script.port.poll()
    assert (wc.status, wc.opcode) == (WcStatus.SUCCESS, WcOpcode.RDMA_WRITE)
    assert bytes(local.data[:256]) == b"r" * 256


def test_a_repeated_read_of_half_the_numbers_is_answered_again() -> None:
    script = Script(256)
    vast = Vast(script)
    header = Reth(vast.addr, vast.key, GIB_2)
    base = script.pair.a.first_psn
    script.port.burst = Burst(2, 1 << 13)
    request = script.frame(Opcode.RC_RDMA_READ_REQUEST, base, header)
    for _ in range(2):
        script.port.receive(request, 0)
        frames = [RocePacket.parse(frame)[0] for frame, _ in script.port.transmit(0)]
        assert [Opcode(p.bth.opcode) for p in frames] == [
            Opcode.RC_RDMA_READ_RESPONSE_FIRST,
            Opcode.RC_RDMA_READ_RESPONSE_MIDDLE,
        ]
        assert [(p.bth.psn - base) & 0xFFFFFF for p in frames] == [0, 1]
    assert script.counter("duplicate_request") == 1


def test_half_of_the_numbers_under_way_do_not_look_like_none() -> None:
    """What was to be sent next seemed to lie before what is unacknowledged."""
    script = Script(256)
    requester(script, WrOpcode.RDMA_READ, GIB_2)
    local = script.port.region(8)
    post(script.port, work(WrOpcode.RDMA_WRITE, [part(local)]))
    assert script.requests() == ["RDMA_READ_REQUEST 0"]
    # An acknowledgement that lacks the data: asked for again once, and no more until some comes.
    script.acknowledge(0)
    assert script.requests() == ["RDMA_READ_REQUEST 0"]
    script.acknowledge(0)
    assert script.requests() == []
    first = Opcode.RC_RDMA_READ_RESPONSE_FIRST
    script.respond(first, 0, Aeth(ACK, 1), payload=bytes(256))
    assert script.requests() == [f"RDMA_WRITE_ONLY {1 << 23}"]
