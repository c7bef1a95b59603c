"""The opcode table: numbers, order of headers, place in the message, direction."""

from __future__ import annotations

import pytest

from emulator.wire.aeth import Aeth
from emulator.wire.atomic_eth import AtomicAckEth, AtomicEth
from emulator.wire.deth import Deth
from emulator.wire.feth import Feth
from emulator.wire.imm import Ieth, ImmDt
from emulator.wire.opcode import TRAITS, ExtensionHeader, Opcode
from emulator.wire.reth import Reth

POSITIONS = {"FIRST": "is_first", "MIDDLE": "is_middle", "LAST": "is_last", "ONLY": "is_only"}


def test_every_opcode_has_traits() -> None:
    assert set(TRAITS) == set(Opcode)


@pytest.mark.parametrize("opcode", Opcode)
def test_position_is_what_the_name_says(opcode: Opcode) -> None:
    named = [flag for word, flag in POSITIONS.items() if word in opcode.name.split("_")]
    expected = named[0] if named else "is_only"
    assert [flag for flag in POSITIONS.values() if getattr(opcode.traits, flag)] == [expected]


@pytest.mark.parametrize("opcode", Opcode)
def test_direction_is_what_the_name_says(opcode: Opcode) -> None:
    is_response = "RESPONSE" in opcode.name or "ACKNOWLEDGE" in opcode.name
    assert opcode.traits.is_response is is_response
    assert opcode.traits.is_request is not is_response


@pytest.mark.parametrize(
    ("opcode", "headers"),
    [
        (Opcode.RC_SEND_FIRST, ()),
        (Opcode.RC_SEND_LAST_WITH_IMMEDIATE, (ImmDt,)),
        (Opcode.RC_SEND_ONLY_WITH_INVALIDATE, (Ieth,)),
        (Opcode.RC_RDMA_WRITE_FIRST, (Reth,)),
        (Opcode.RC_RDMA_WRITE_MIDDLE, ()),
        (Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, (ImmDt,)),
        (Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, (Reth, ImmDt)),
        (Opcode.RC_RDMA_READ_REQUEST, (Reth,)),
        (Opcode.RC_RDMA_READ_RESPONSE_FIRST, (Aeth,)),
        (Opcode.RC_RDMA_READ_RESPONSE_MIDDLE, ()),
        (Opcode.RC_RDMA_READ_RESPONSE_LAST, (Aeth,)),
        (Opcode.RC_ACKNOWLEDGE, (Aeth,)),
        (Opcode.RC_ATOMIC_ACKNOWLEDGE, (Aeth, AtomicAckEth)),
        (Opcode.RC_COMPARE_SWAP, (AtomicEth,)),
        (Opcode.RC_FLUSH, (Feth, Reth)),
        (Opcode.RC_ATOMIC_WRITE, (Reth,)),
        (Opcode.UC_RDMA_WRITE_ONLY, (Reth,)),
        (Opcode.UD_SEND_ONLY, (Deth,)),
        (Opcode.UD_SEND_ONLY_WITH_IMMEDIATE, (Deth, ImmDt)),
        (Opcode.CNP, ()),
    ],
)
def test_headers(opcode: Opcode, headers: tuple[type[ExtensionHeader], ...]) -> None:
    assert opcode.traits.extensions == headers


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0x16, "RC_SEND_LAST_WITH_INVALIDATE"),
        (0x17, "RC_SEND_ONLY_WITH_INVALIDATE"),
        (0x1C, "RC_FLUSH"),
        (0x1D, "RC_ATOMIC_WRITE"),
        (0x2B, "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE"),
        (0x65, "UD_SEND_ONLY_WITH_IMMEDIATE"),
        (0x81, "CNP"),
    ],
)
def test_numbers(number: int, name: str) -> None:
    assert Opcode(number).name == name
