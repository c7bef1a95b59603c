"""Whole packets: header order, pad, ICRC, and every way in which a length can be forged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.wire.aeth import Aeth
from emulator.wire.bth import Bth
from emulator.wire.errors import WireError
from emulator.wire.imm import ImmDt
from emulator.wire.opcode import Opcode
from emulator.wire.packet import RocePacket, emit_icrc, pad_count
from emulator.wire.reth import Reth

WRITE = RocePacket(
    Bth(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, dest_qp=0x11, psn=0x22, pad_count=3),
    (Reth(virtual_address=0x1000, rkey=0xAB, dma_length=5), ImmDt(0xCAFE)),
    b"hello",
)
WRITE_WIRE = bytes.fromhex(
    "0b70ffff00000011 00000022"  # BTH, MigReq, 3 pad bytes
    "0000000000001000 000000ab 00000005"  # RETH
    "0000cafe"  # ImmDt
    "68656c6c6f 000000"  # payload, pad
)
ICRC = b"\x01\x02\x03\x04"


def with_pad_count(wire: bytes, count: int) -> bytes:
    return wire[:1] + bytes(((wire[1] & 0xCF) | count << 4,)) + wire[2:]


def test_construct() -> None:
    assert WRITE.emit() == WRITE_WIRE


def test_deconstruct() -> None:
    assert RocePacket.parse(WRITE_WIRE + ICRC) == (WRITE, 0x04030201)


def test_icrc_is_little_endian() -> None:
    assert emit_icrc(0x04030201) == ICRC


@given(opcode=st.sampled_from(sorted(Opcode)), payload=st.binary(max_size=70))
def test_every_opcode_survives_the_wire(opcode: Opcode, payload: bytes) -> None:
    if not opcode.traits.has_payload:
        payload = b""
    extensions = tuple(kind.parse(bytes(kind.NBYTES)) for kind in opcode.traits.extensions)
    bth = Bth(opcode, dest_qp=1, psn=2, pad_count=pad_count(len(payload)))
    packet = RocePacket(bth, extensions, payload)
    wire = packet.emit() + ICRC
    assert len(wire) % 4 == 0
    assert RocePacket.parse(wire)[0] == packet


@given(st.binary(max_size=120))
def test_any_bytes_are_a_packet_or_a_wire_error(data: bytes) -> None:
    try:
        packet, icrc = RocePacket.parse(data)
    except WireError:
        return
    # Nonzero pad and reserved bits are not kept; everything else is.
    assert len(packet.emit() + emit_icrc(icrc)) == len(data)


@pytest.mark.parametrize("length", range(len(WRITE_WIRE)))
def test_truncated(length: int) -> None:
    with pytest.raises(WireError):
        RocePacket.parse(WRITE_WIRE[:length])


def test_cut_by_a_word_the_pad_count_still_rules() -> None:
    """Nothing in the packet tells; the ICRC, or the length in the RETH, does."""
    assert RocePacket.parse(WRITE_WIRE)[0].payload == b"h"


def test_forged_pad_does_not_make_a_negative_payload() -> None:
    ack = RocePacket(Bth(Opcode.RC_ACKNOWLEDGE, dest_qp=1, psn=2), (Aeth.ack(1),)).emit()
    with pytest.raises(WireError, match="headers and pad"):
        RocePacket.parse(with_pad_count(ack, 3) + ICRC)


def test_ack_with_payload() -> None:
    ack = RocePacket(Bth(Opcode.RC_ACKNOWLEDGE, dest_qp=1, psn=2), (Aeth.ack(1),)).emit()
    with pytest.raises(WireError, match="no payload"):
        RocePacket.parse(ack + bytes(4) + ICRC)


def test_length_that_is_no_multiple_of_four() -> None:
    with pytest.raises(WireError, match="multiple of 4"):
        RocePacket.parse(WRITE_WIRE + ICRC + b"x")


@pytest.mark.parametrize("opcode", [0x15, 0x1B, 0x44, 0xA4, 0xFF])
def test_opcode_that_is_not_spoken(opcode: Opcode) -> None:
    with pytest.raises(WireError, match="not spoken"):
        RocePacket.parse(bytes((opcode,)) + WRITE_WIRE[1:] + ICRC)


def test_missing_and_surplus_headers() -> None:
    bth = Bth(Opcode.RC_ACKNOWLEDGE, dest_qp=1, psn=2)
    with pytest.raises(WireError, match="takes the headers Aeth, not none"):
        RocePacket(bth)
    with pytest.raises(WireError, match="not Aeth \\+ ImmDt"):
        RocePacket(bth, (Aeth.ack(1), ImmDt(1)))


def test_pad_count_must_fit_the_payload() -> None:
    with pytest.raises(WireError, match="must be 1"):
        RocePacket(Bth(Opcode.RC_SEND_ONLY, dest_qp=1, psn=2), (), b"abc")


def test_extension_by_kind() -> None:
    assert WRITE.extension(ImmDt).immediate == 0xCAFE
    with pytest.raises(WireError, match="carries no Aeth"):
        WRITE.extension(Aeth)
