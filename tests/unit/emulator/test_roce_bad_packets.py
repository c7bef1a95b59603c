"""Whatever arrives from the network is dropped or refused, counted, and writes nowhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import QpState, WrOpcode
from tests.support.roce_pair import Frame, Pair, mapped_gid, reseal

Damage = Callable[[bytearray, Any], None]


def good_write(pair: Pair) -> Frame:
    """A WRITE ONLY of 64 bytes from a to b, not delivered."""
    local, remote = pair.a.region(64), pair.b.region(64)
    local.data[:] = 7
    pair.a.send(WrOpcode.RDMA_WRITE, local, 64, remote=remote)
    (frame,) = pair.a.transmit(0)
    return frame


def flip_icrc(payload: bytearray, descriptor: Any) -> None:
    payload[-1] ^= 1


def set_byte(index: int, value: int) -> Damage:
    def damage(payload: bytearray, descriptor: Any) -> None:
        payload[index] = value

    return damage


def foreign_source(payload: bytearray, descriptor: Any) -> None:
    descriptor.src_lo += 1


CASES: list[tuple[str, Damage, bool, str]] = [
    ("wrong ICRC", flip_icrc, False, "rx_icrc_encapsulated"),
    ("flipped payload bit", set_byte(40, 0), False, "rx_icrc_encapsulated"),
    ("transport version", set_byte(1, 0x41), True, "rx_bad_header"),
    ("forged pad", set_byte(1, 0x70), True, ""),
    ("unknown opcode", set_byte(0, 0x1F), True, "rx_bad_header"),
    ("RD opcode", set_byte(0, 0x44), True, "rx_bad_header"),
    ("UD opcode to an RC queue pair", set_byte(0, 0x64), True, "rx_bad_header"),
    ("wrong partition", set_byte(3, 0x12), True, "rx_bad_pkey"),
    ("wrong queue pair", set_byte(6, 0x77), True, "rx_unknown_qp"),
    ("foreign source address", foreign_source, True, "rx_unknown_qp"),
]


@pytest.mark.parametrize(
    ("name", "damage", "resealed", "counter"), CASES, ids=[case[0] for case in CASES]
)
def test_a_damaged_frame_is_dropped_and_counted(
    name: str, damage: Damage, resealed: bool, counter: str
) -> None:
    pair = Pair(256)
    payload, descriptor = good_write(pair)
    damaged = bytearray(payload)
    damage(damaged, descriptor)
    frame = reseal(damaged, descriptor) if resealed else (bytes(damaged), descriptor)
    before = pair.b.engine.counters()
    pair.b.receive(frame, 0)
    after = pair.b.engine.counters()
    if counter:
        assert after[counter] == before[counter] + 1
        assert pair.b.transmit(0) == []
        assert pair.b.state == QpState.RTS
    else:
        assert pair.b.state == QpState.ERR, "a length that cannot be is refused with a NAK"


def test_the_undamaged_frame_is_taken() -> None:
    """The negative control of the cases above."""
    pair = Pair(256)
    frame = good_write(pair)
    pair.b.receive(reseal(bytearray(frame[0]), frame[1]), 0)
    assert [f[0][0] for f in pair.b.transmit(0)] == [Opcode.RC_ACKNOWLEDGE]


@pytest.mark.parametrize("length", range(32))
def test_runts_are_dropped_whatever_their_opcode(length: int) -> None:
    pair = Pair(256)
    payload, descriptor = good_write(pair)
    for opcode in range(0x18):
        short = bytearray(payload[: max(length, 4)])
        if len(short) >= 16:
            short[0] = opcode
        frame = reseal(short, descriptor) if len(short) >= 16 else (bytes(short), descriptor)
        pair.b.receive(frame, 0)


def test_a_middle_without_a_first_is_refused() -> None:
    pair = Pair(256)
    payload, descriptor = good_write(pair)
    forged = bytearray(payload[:12] + bytes(256) + bytes(4))
    forged[0] = Opcode.RC_RDMA_WRITE_MIDDLE
    pair.b.receive(reseal(forged, descriptor), 0)
    (answer,) = pair.b.transmit(0)
    assert answer[0][12] == 0x61
    assert pair.b.state == QpState.ERR


def test_an_old_connection_reaches_nobody() -> None:
    """A peer that keeps the PSN and number of an earlier connection (slaclab rogue 1268)."""
    pair = Pair(256)
    frame = good_write(pair)
    pair.b.engine.qps.destroy(pair.b.qp)
    pair.b.qp = pair.b.new_qp()
    pair.b.connect(pair.a, 256)
    pair.b.receive(frame, 0)
    assert pair.b.engine.counters()["rx_unknown_qp"] == 1


def test_the_vectors_of_this_file_use_zlib_crc() -> None:
    body = bytes(12)
    pair = Pair(256)
    _, descriptor = good_write(pair)
    headers = emit_headers(descriptor, 16)
    assert icrc(headers, body) != zlib.crc32(headers + body), "the ICRC masks what routers change"


@given(
    body=st.binary(min_size=12, max_size=400),
    opcode=st.sampled_from([int(op) for op in Opcode]),
    behind=st.integers(-3, 3),
)
def test_sealed_garbage_never_raises_and_never_writes_outside(
    body: bytes, opcode: int, behind: int
) -> None:
    pair = Pair(256)
    regions = [pair.b.region(300) for _ in range(3)]
    pair.b.recv(regions[0], 300)
    _, descriptor = good_write(pair)
    frame = bytearray(body + bytes(4))
    frame[0] = opcode
    frame[1] &= 0xF0
    frame[2:4] = b"\xff\xff"
    frame[5:8] = pair.b.engine.qps.number(pair.b.qp).to_bytes(3, "big")
    psn = (pair.a.first_psn + behind) & 0xFFFFFF
    frame[9:12] = psn.to_bytes(3, "big")
    pair.b.receive(reseal(frame, descriptor), 0)
    pair.b.transmit(0)
    pair.b.poll()
    assert all(region.guards_hold() for region in regions)


@given(body=st.binary(max_size=200))
def test_raw_garbage_never_raises(body: bytes) -> None:
    pair = Pair(256)
    _, descriptor = good_write(pair)
    pair.b.receive((body, descriptor), 0)
    counters = pair.b.engine.counters()
    assert counters["rx_runt"] + counters["rx_icrc_encapsulated"] == 1
    assert mapped_gid(2) == pair.b.engine.gid
