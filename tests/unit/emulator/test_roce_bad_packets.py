"""Whatever arrives from the network is dropped or refused, counted, and writes nowhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.roce.attributes import REQUIRED, QpAttributes, QpMask
from emulator.wire.icrc import icrc
from emulator.wire.ip import emit_headers
from emulator.wire.opcode import Opcode
from kvlane.verbs.enums import QpState, WcStatus, WrOpcode
from tests.support.roce_pair import ALL_ACCESS, Pair, Region, reseal
from tests.support.roce_script import Script

SIZE = 64
NEIGHBOUR = 300
MTU = 256
NAK_INVALID, NAK_ACCESS = 0x61, 0x62
ACK = 0x1F
PATTERN = 0x3C


class Victim:
    """b with a region of 64 bytes between two others, and a good WRITE of it under way from a."""

    def __init__(self) -> None:
        self.pair = Pair(MTU)
        port = self.pair.b
        self.regions = [port.region(size) for size in (NEIGHBOUR, SIZE, NEIGHBOUR)]
        self.target = self.regions[1]
        for region in self.regions:
            region.data[:] = PATTERN
        local = self.pair.a.region(SIZE)
        local.data[:] = 7
        self.pair.a.send(WrOpcode.RDMA_WRITE, local, SIZE, remote=self.target)
        ((payload, self.descriptor),) = self.pair.a.transmit(0)
        self.good = bytearray(payload)
        """WRITE ONLY: BTH 12, RETH 16 (address 8, rkey 4, length 4), payload 64, ICRC 4."""

    def receive(self, payload: bytearray, *, sealed: bool = True) -> list[bytes]:
        """Give it to b; what b answers."""
        frame = (bytes(payload), self.descriptor)
        self.pair.b.receive(reseal(payload, self.descriptor) if sealed else frame, 0)
        return [payload for payload, _ in self.pair.b.transmit(0)]

    def counter(self, name: str) -> int:
        return self.pair.b.engine.counters()[name]

    def assert_untouched(self, *, beside: bool = False) -> None:
        """No byte of any region has changed, nor any around them; ``beside``: but the target's."""
        for region in self.regions:
            assert region.guards_hold()
            assert (beside and region is self.target) or (region.data == PATTERN).all()


Damage = Callable[[bytearray], None]


def set_bytes(offset: int, *values: int) -> Damage:
    def damage(payload: bytearray) -> None:
        payload[offset : offset + len(values)] = bytes(values)

    return damage


def resized(nbytes: int) -> Damage:
    """So many bytes between the BTH and the ICRC."""

    def damage(payload: bytearray) -> None:
        payload[12:] = payload[12 : 12 + nbytes].ljust(nbytes, b"\x55") + bytes(4)

    return damage


def both(*damages: Damage) -> Damage:
    def damage(payload: bytearray) -> None:
        for each in damages:
            each(payload)

    return damage


def asks_for(nbytes: int, offset: int = 0) -> Damage:
    """The RETH names so many bytes, from so far into the region."""

    def damage(payload: bytearray) -> None:
        addr = (int.from_bytes(payload[12:20], "big") + offset) & ((1 << 64) - 1)
        payload[12:20] = addr.to_bytes(8, "big")
        payload[24:28] = nbytes.to_bytes(4, "big")

    return damage


def psn_shifted(by: int) -> Damage:
    def damage(payload: bytearray) -> None:
        psn = int.from_bytes(payload[9:12], "big") + by
        payload[9:12] = (psn & 0xFFFFFF).to_bytes(3, "big")

    return damage


RETH_AND_PAYLOAD = 16 + SIZE
RUNTS: list[tuple[str, int, str]] = [
    ("nothing but an ICRC", 4, "rx_runt"),
    ("a byte short of BTH and ICRC", 15, "rx_runt"),
    ("BTH without RETH", 16, "rx_bad_header"),
    ("RETH cut off", 28, "rx_bad_header"),
    ("no multiple of 4", 12 + 16 + 61 + 4, "rx_bad_header"),
]
DROPPED: list[tuple[str, Damage, str]] = [
    (
        "forged pad count of a WRITE without payload",
        both(resized(16), set_bytes(1, 0x70)),
        "rx_bad_header",
    ),
    (
        "forged pad count of an acknowledgement",
        both(resized(4), set_bytes(0, 0x11, 0x70)),
        "rx_bad_header",
    ),
    ("READ request with a payload", set_bytes(0, Opcode.RC_RDMA_READ_REQUEST), "rx_bad_header"),
    ("RD opcode", set_bytes(0, 0x44), "rx_bad_header"),
    ("UD opcode to an RC queue pair", set_bytes(0, 0x64), "rx_bad_header"),
    ("wrong P_Key", set_bytes(2, 0xFF, 0x12), "rx_bad_pkey"),
    ("wrong QPN", set_bytes(6, 0x77), "rx_unknown_qp"),
    *(
        (f"reserved transport version {version}", set_bytes(1, 0x40 | version), "rx_bad_header")
        for version in range(1, 16)
    ),
    *(
        (
            f"acknowledgement with reserved syndrome {syndrome:#x}",
            both(resized(4), set_bytes(0, 0x11), set_bytes(12, syndrome)),
            "rx_bad_header",
        )
        for syndrome in (0x40, 0x5F, 0xC0)
    ),
]
READ_ONLY = both(resized(16), set_bytes(0, Opcode.RC_RDMA_READ_REQUEST))
REFUSED: list[tuple[str, Damage, int]] = [
    ("forged pad count", set_bytes(1, 0x70), NAK_INVALID),
    ("length beyond the region by a byte", asks_for(SIZE + 1), NAK_ACCESS),
    ("length beyond the region by much", asks_for(NEIGHBOUR), NAK_ACCESS),
    ("length beyond the region because of the address", asks_for(SIZE, 1), NAK_ACCESS),
    ("length beyond the region, before it", asks_for(SIZE, -1), NAK_ACCESS),
    ("length that makes the address wrap round", asks_for(SIZE, 1 << 63), NAK_ACCESS),
    ("length beyond what a message may have", asks_for((1 << 31) + 1), NAK_INVALID),
    ("length that the payload exceeds", asks_for(SIZE - 1), NAK_INVALID),
    ("length 0 with a payload", asks_for(0), NAK_INVALID),
    ("length beyond the region, read", both(READ_ONLY, asks_for(SIZE + 1)), NAK_ACCESS),
    ("reserved opcode", set_bytes(0, 0x1F), NAK_INVALID),
    ("wrong rkey", set_bytes(23, 0), NAK_ACCESS),
    (
        "opcode out of sequence: MIDDLE",
        both(resized(MTU), set_bytes(0, Opcode.RC_RDMA_WRITE_MIDDLE)),
        NAK_INVALID,
    ),
    ("opcode out of sequence: LAST", set_bytes(0, Opcode.RC_RDMA_WRITE_LAST), NAK_INVALID),
    ("opcode out of sequence: SEND LAST", set_bytes(0, Opcode.RC_SEND_LAST), NAK_INVALID),
]
TAKEN: list[tuple[str, Damage]] = [
    ("as it is", set_bytes(0)),
    ("reserved bits beside FECN and BECN", set_bytes(4, 0x3F)),
    ("FECN and BECN", set_bytes(4, 0xC0)),
    ("reserved bits beside AckReq", set_bytes(8, 0xFF)),
    ("MigReq 0", set_bytes(1, 0x00)),
    ("MigReq 1", set_bytes(1, 0x40)),
    ("limited membership of the partition", set_bytes(2, 0x7F, 0xFF)),
]


def named(cases: list[Any]) -> pytest.MarkDecorator:
    arguments = [("damage", "fate"), ("damage",)][len(cases[0]) == 2]
    return pytest.mark.parametrize(
        arguments, [case[1:] for case in cases], ids=[case[0] for case in cases]
    )


@pytest.mark.parametrize(
    ("length", "counter"), [case[1:] for case in RUNTS], ids=[case[0] for case in RUNTS]
)
def test_a_runt_is_dropped_and_counted(length: int, counter: str) -> None:
    victim = Victim()
    short = victim.good[: length - 4] + bytes(4)
    assert victim.receive(short, sealed=length >= 16) == []
    assert victim.counter(counter) == 1
    assert victim.pair.b.state == QpState.RTS
    victim.assert_untouched()


@pytest.mark.parametrize("length", range(32))
def test_runts_are_dropped_whatever_their_opcode(length: int) -> None:
    victim = Victim()
    for opcode in range(0x18):
        short = victim.good[: max(length, 4)]
        short[0] = opcode
        victim.receive(short, sealed=len(short) >= 16)
    victim.assert_untouched()


@pytest.mark.parametrize("index", [0, 1, 40, -1], ids=["opcode", "flags", "payload", "ICRC"])
def test_a_frame_with_a_bad_icrc_is_dropped_and_counted(index: int) -> None:
    victim = Victim()
    victim.good[index] ^= 1
    assert victim.receive(victim.good, sealed=False) == []
    assert victim.counter("rx_icrc_encapsulated") == 1
    assert victim.pair.b.state == QpState.RTS
    victim.assert_untouched()


@named(DROPPED)
def test_a_damaged_frame_is_dropped_and_counted(damage: Damage, fate: str) -> None:
    victim = Victim()
    damage(victim.good)
    before = victim.counter(fate)
    assert victim.receive(victim.good) == []
    assert victim.counter(fate) == before + 1
    assert victim.counter("rx_accepted") == 0
    assert victim.pair.b.state == QpState.RTS
    victim.assert_untouched()


def test_a_foreign_source_address_is_dropped_and_counted() -> None:
    victim = Victim()
    victim.descriptor.src_lo += 1
    assert victim.receive(victim.good) == []
    assert victim.counter("rx_unknown_qp") == 1
    victim.assert_untouched()


@named(REFUSED)
def test_a_request_that_breaks_the_rules_is_refused_and_ends_the_connection(
    damage: Damage, fate: int
) -> None:
    victim = Victim()
    damage(victim.good)
    (answer,) = victim.receive(victim.good)
    assert (answer[0], answer[12]) == (Opcode.RC_ACKNOWLEDGE, fate)
    refused = "resp_remote_access_errors" if fate == NAK_ACCESS else "resp_invalid_request"
    assert victim.counter(refused) == 1
    assert victim.pair.b.state == QpState.ERR
    victim.assert_untouched()


def test_another_message_in_the_middle_of_one_is_refused() -> None:
    """An opcode out of sequence: the bytes before it are in their place, and none elsewhere."""
    victim = Victim()
    large = victim.regions[0]
    first = victim.good[:]
    first[0] = Opcode.RC_RDMA_WRITE_FIRST
    first[12:28] = (
        large.addr.to_bytes(8, "big") + large.key.to_bytes(4, "big") + NEIGHBOUR.to_bytes(4, "big")
    )
    first[28:] = bytes(MTU) + bytes(4)
    victim.receive(first)
    psn_shifted(1)(victim.good)
    (answer,) = victim.receive(victim.good)
    assert answer[12] == NAK_INVALID
    assert not large.data[:MTU].any()
    large.data[:MTU] = PATTERN
    victim.assert_untouched()


@named(TAKEN)
def test_what_means_nothing_is_ignored(damage: Damage) -> None:
    """IBTA 1.7 section 9.2: reserved bits are not looked at; MigReq and membership may be both."""
    victim = Victim()
    damage(victim.good)
    (answer,) = victim.receive(victim.good)
    assert (answer[0], answer[12]) == (Opcode.RC_ACKNOWLEDGE, ACK)
    assert (victim.target.data == 7).all()
    victim.assert_untouched(beside=True)


@pytest.mark.parametrize("opcode", [Opcode.RC_RDMA_WRITE_ONLY, Opcode.RC_RDMA_READ_REQUEST])
def test_a_reth_of_length_0_needs_no_key_and_moves_nothing(opcode: Opcode) -> None:
    """IBTA 1.7 C9-88."""
    victim = Victim()
    forged = victim.good
    both(resized(16), asks_for(0, 1 << 40), set_bytes(20, 1, 2, 3, 4), set_bytes(0, opcode))(forged)
    (answer,) = victim.receive(forged)
    read = opcode == Opcode.RC_RDMA_READ_REQUEST
    assert answer[0] == (Opcode.RC_RDMA_READ_RESPONSE_ONLY if read else Opcode.RC_ACKNOWLEDGE)
    assert (len(answer), answer[12]) == (20, ACK)
    assert victim.pair.b.state == QpState.RTS
    victim.assert_untouched()


def test_an_old_connection_reaches_nobody() -> None:
    """A peer that keeps the PSN and number of an earlier connection (slaclab rogue 1268)."""
    victim = Victim()
    port = victim.pair.b
    port.engine.qps.destroy(port.qp)
    port.qp = port.new_qp()
    port.connect(victim.pair.a, MTU)
    assert victim.receive(victim.good) == []
    assert victim.counter("rx_unknown_qp") == 1
    victim.assert_untouched()


@pytest.mark.parametrize("newer_by", [1, 1000, (1 << 23) - 1])
def test_a_stale_psn_of_an_earlier_connection_is_a_repetition(newer_by: int) -> None:
    """The same queue pair, connected anew: what was sent before is acknowledged, not executed."""
    victim = Victim()
    reconnect(victim, newer_by)
    (answer,) = victim.receive(victim.good)
    assert (answer[0], answer[12]) == (Opcode.RC_ACKNOWLEDGE, ACK)
    assert victim.counter("duplicate_request") == 1
    victim.assert_untouched()


@pytest.mark.parametrize("newer_by", [-1, -1000, 1 - (1 << 23)])
def test_a_stale_psn_that_lies_ahead_of_the_new_ones_is_out_of_sequence(newer_by: int) -> None:
    victim = Victim()
    reconnect(victim, newer_by)
    (answer,) = victim.receive(victim.good)
    assert (answer[0], answer[12]) == (Opcode.RC_ACKNOWLEDGE, 0x60)
    assert victim.counter("out_of_sequence") == 1
    assert victim.pair.b.state == QpState.RTS
    victim.assert_untouched()


def reconnect(victim: Victim, newer_by: int) -> None:
    """Take b's queue pair through RESET to a connection whose PSNs begin later by so many."""
    port, peer = victim.pair.b, victim.pair.a
    port.engine.qps.modify(port.qp, QpAttributes(qp_state=QpState.RESET), QpMask.STATE)
    access = QpAttributes(qp_state=QpState.INIT, qp_access_flags=int(ALL_ACCESS))
    needed = REQUIRED[QpState.RESET, QpState.INIT][port.kind]
    port.engine.qps.modify(port.qp, access, QpMask.STATE | needed)
    peer.first_psn = (peer.first_psn + newer_by) & 0xFFFFFF
    port.connect(peer, MTU)


# Answers, to a requester


def requester(works: int = 2) -> tuple[Script, list[Region]]:
    """A port with so many WRITEs sent, and its regions, filled."""
    script = Script()
    regions = [script.port.region(NEIGHBOUR) for _ in range(3)]
    remote = script.pair.a.region(NEIGHBOUR)
    for region in regions:
        region.data[:] = PATTERN
    for number in range(works):
        script.port.send(WrOpcode.RDMA_WRITE, regions[1], SIZE, remote=remote, wr_id=number)
    assert len(script.requests()) == works
    return script, regions


@pytest.mark.parametrize("syndrome", [0x40, 0x4A, 0x5F, 0xC0, 0xDF])
def test_a_reserved_syndrome_acknowledges_nothing_and_is_counted(syndrome: int) -> None:
    """Bits 6 and 5 are 2: neither ACK nor NAK (IBTA 1.7 section 9.7.5)."""
    script, regions = requester()
    script.acknowledge(1, syndrome)
    assert script.port.poll() == []
    assert script.counter("rx_bad_header") == 1
    script.acknowledge(1)
    assert [wc.status for wc in script.port.poll()] == [WcStatus.SUCCESS] * 2
    assert all(region.guards_hold() and (region.data == PATTERN).all() for region in regions)


@pytest.mark.parametrize("syndrome", [0x80 | ACK, ACK, 0])
def test_bit_7_and_the_credits_of_a_syndrome_are_ignored(syndrome: int) -> None:
    script, _ = requester()
    script.acknowledge(1, syndrome)
    assert [wc.status for wc in script.port.poll()] == [WcStatus.SUCCESS] * 2


@pytest.mark.parametrize("code", range(5, 32))
def test_a_reserved_nak_code_ends_the_connection(code: int) -> None:
    """The peer refuses, for a reason that nobody knows; going on could only be wrong."""
    script, regions = requester()
    script.acknowledge(0, 0x60 | code)
    completions = script.port.poll()
    assert [wc.status for wc in completions] == [WcStatus.REM_OP_ERR, WcStatus.WR_FLUSH_ERR]
    assert script.port.state == QpState.ERR
    assert all(region.guards_hold() and (region.data == PATTERN).all() for region in regions)


def test_the_vectors_of_this_file_use_zlib_crc() -> None:
    headers = emit_headers(Victim().descriptor, 16)
    body = bytes(12)
    assert icrc(headers, body) != zlib.crc32(headers + body), "the ICRC masks what routers change"


@given(
    body=st.binary(min_size=12, max_size=400),
    opcode=st.sampled_from([int(op) for op in Opcode]),
    behind=st.integers(-3, 3),
)
def test_sealed_garbage_never_raises_and_never_writes_outside(
    body: bytes, opcode: int, behind: int
) -> None:
    victim = Victim()
    pair, descriptor = victim.pair, victim.descriptor
    pair.b.recv(victim.regions[0], NEIGHBOUR)
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
    assert all(region.guards_hold() for region in victim.regions)


@given(body=st.binary(max_size=200))
def test_raw_garbage_never_raises(body: bytes) -> None:
    victim = Victim()
    victim.receive(bytearray(body), sealed=False)
    assert victim.counter("rx_runt") + victim.counter("rx_icrc_encapsulated") == 1
    victim.assert_untouched()
