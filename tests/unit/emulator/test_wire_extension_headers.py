"""The headers after the BTH: deconstruct, construct, truncated input, field ranges."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.wire.aeth import RNR_TIMER_NS, Aeth, NakCode, SyndromeClass
from emulator.wire.atomic_eth import AtomicAckEth, AtomicEth
from emulator.wire.deth import Deth
from emulator.wire.errors import WireError
from emulator.wire.imm import Ieth, ImmDt
from emulator.wire.reth import MAX_DMA_LENGTH, Reth

VECTORS = [
    (
        Reth(virtual_address=0x0102030405060708, rkey=0x0A0B0C0D, dma_length=0x80000000),
        "0102030405060708 0a0b0c0d 80000000",
    ),
    (
        AtomicEth(
            virtual_address=0x0102030405060708,
            rkey=0x0A0B0C0D,
            swap_or_add=0x1112131415161718,
            compare=0x2122232425262728,
        ),
        "0102030405060708 0a0b0c0d 1112131415161718 2122232425262728",
    ),
    (AtomicAckEth(original_value=0xF1F2F3F4F5F6F7F8), "f1f2f3f4f5f6f7f8"),
    (Aeth(syndrome=0x62, msn=0x010203), "62010203"),
    (ImmDt(immediate=0x01020304), "01020304"),
    (Ieth(rkey=0x01020304), "01020304"),
    (Deth(q_key=0x80010000, source_qp=0x010203), "80010000 00010203"),
]
by_header = pytest.mark.parametrize(
    ("value", "text"), VECTORS, ids=[type(value).__name__ for value, _ in VECTORS]
)


@by_header
def test_construct(value: Any, text: str) -> None:
    assert value.emit() == bytes.fromhex(text)
    assert len(value.emit()) == value.NBYTES


@by_header
def test_deconstruct_reads_only_its_own_bytes(value: Any, text: str) -> None:
    assert type(value).parse(bytes.fromhex(text) + b"\xee" * 5) == value


@by_header
def test_truncated(value: Any, text: str) -> None:
    wire = bytes.fromhex(text)
    for length in range(len(wire)):
        with pytest.raises(WireError, match="bytes"):
            type(value).parse(wire[:length])


@by_header
def test_a_field_one_too_large(value: Any, text: str) -> None:
    for field in value.__slots__:
        beyond = {"dma_length": MAX_DMA_LENGTH + 1, "syndrome": 256}.get(field)
        if beyond is None:
            beyond = 1 << (24 if field in ("msn", "source_qp") else 64)
        fields = {name: getattr(value, name) for name in value.__slots__}
        with pytest.raises(WireError):
            type(value)(**{**fields, field: beyond})
        with pytest.raises(WireError):
            type(value)(**{**fields, field: -1})


def test_reth_longer_than_a_message_may_be_is_refused() -> None:
    with pytest.raises(WireError, match="DMA length"):
        Reth.parse(bytes(12) + b"\x80\x00\x00\x01")


@pytest.mark.parametrize(
    ("aeth", "syndrome", "kind"),
    [
        (Aeth.ack(5), 0x1F, SyndromeClass.ACK),
        (Aeth.ack(5, credit_count=3), 0x03, SyndromeClass.ACK),
        (Aeth.rnr_nak(5, timer_code=25), 0x39, SyndromeClass.RNR_NAK),
        (Aeth.nak(5, NakCode.PSN_SEQUENCE_ERROR), 0x60, SyndromeClass.NAK),
        (Aeth.nak(5, NakCode.INVALID_REQUEST), 0x61, SyndromeClass.NAK),
        (Aeth.nak(5, NakCode.REMOTE_ACCESS_ERROR), 0x62, SyndromeClass.NAK),
        (Aeth.nak(5, NakCode.REMOTE_OPERATIONAL_ERROR), 0x63, SyndromeClass.NAK),
        (Aeth.nak(5, NakCode.INVALID_RD_REQUEST), 0x64, SyndromeClass.NAK),
    ],
)
def test_syndromes(aeth: Aeth, syndrome: int, kind: SyndromeClass) -> None:
    assert aeth.syndrome == syndrome
    assert aeth.syndrome_class is kind
    assert aeth.syndrome_value == syndrome & 0x1F
    assert aeth.msn == 5


def test_reserved_syndromes_have_a_class_of_their_own() -> None:
    assert Aeth(0x40, 0).syndrome_class is SyndromeClass.RESERVED


def test_a_syndrome_value_of_six_bits_does_not_spill_into_the_class() -> None:
    with pytest.raises(WireError, match="RNR_NAK"):
        Aeth.rnr_nak(0, timer_code=32)


def test_rnr_timers() -> None:
    assert len(RNR_TIMER_NS) == 32
    assert RNR_TIMER_NS[0] == 655_360_000
    assert RNR_TIMER_NS[1] == 10_000
    assert RNR_TIMER_NS[14] == 1_280_000
    assert RNR_TIMER_NS[25] == 61_440_000
    assert RNR_TIMER_NS[31] == 491_520_000
    assert list(RNR_TIMER_NS[1:]) == sorted(RNR_TIMER_NS[1:])
    # From code 4 on each step of two doubles the wait.
    assert all(RNR_TIMER_NS[i + 2] == 2 * RNR_TIMER_NS[i] for i in range(3, 30))
