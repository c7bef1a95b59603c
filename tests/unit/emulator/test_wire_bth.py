"""The base transport header: every bit where IBTA 1.7 section 9.2 puts it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.wire import bth
from emulator.wire.bth import Bth
from emulator.wire.errors import WireError

# RC SEND_ONLY, solicited, migrated, 2 pad bytes, FECN, QP 0x123456, PSN 0xabcdef, ack asked.
WIRE = bytes.fromhex("04e0fffe80123456 80abcdef")
VALUE = Bth(
    opcode=0x04,
    dest_qp=0x123456,
    psn=0xABCDEF,
    pad_count=2,
    ack_request=True,
    solicited=True,
    migreq=True,
    pkey=0xFFFE,
    fecn=True,
)

BTHS = st.builds(
    Bth,
    opcode=st.integers(0, 255),
    dest_qp=st.integers(0, 2**24 - 1),
    psn=st.integers(0, 2**24 - 1),
    pad_count=st.integers(0, 3),
    ack_request=st.booleans(),
    solicited=st.booleans(),
    migreq=st.booleans(),
    pkey=st.integers(0, 2**16 - 1),
    fecn=st.booleans(),
    becn=st.booleans(),
)


def test_deconstruct() -> None:
    assert Bth.parse(WIRE) == VALUE


def test_construct() -> None:
    assert VALUE.emit() == WIRE


def test_becn_is_the_second_bit() -> None:
    assert replace(VALUE, fecn=False, becn=True).emit()[bth.CONGESTION] == b"\x40"


def test_defaults_are_those_of_an_hca() -> None:
    assert Bth(opcode=0, dest_qp=0, psn=0).emit() == bytes.fromhex("0040ffff0000000000000000")


@given(BTHS)
def test_what_is_emitted_parses_to_the_same(value: Bth) -> None:
    wire = value.emit()
    assert len(wire) == Bth.NBYTES
    assert Bth.parse(wire) == value


def test_reserved_bits_are_ignored_and_not_passed_on() -> None:
    noisy = bytearray(WIRE)
    noisy[4] |= 0x3F
    noisy[8] |= 0x7F
    assert Bth.parse(bytes(noisy)) == VALUE


@pytest.mark.parametrize("length", range(12))
def test_truncated(length: int) -> None:
    with pytest.raises(WireError, match="BTH takes 12 bytes"):
        Bth.parse(WIRE[:length])


def test_other_transport_version() -> None:
    with pytest.raises(WireError, match="version is 1"):
        Bth.parse(WIRE[:1] + b"\xe1" + WIRE[2:])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("opcode", 256),
        ("pad_count", 4),
        ("pkey", 1 << 16),
        ("dest_qp", 1 << 24),
        ("psn", 1 << 24),
        ("psn", -1),
    ],
)
def test_no_value_that_cannot_be_emitted(field: str, value: int) -> None:
    with pytest.raises(WireError):
        replace(VALUE, **{field: value})  # type: ignore[arg-type]
