"""FETH: bits in their places, and what is no header."""

from __future__ import annotations

import pytest

from emulator.wire.errors import WireError
from emulator.wire.feth import Feth, Placement, Selectivity


@pytest.mark.parametrize(
    ("placement", "selectivity", "wire"),
    [
        (Placement.GLOBAL, Selectivity.RANGE, "00000001"),
        (Placement.PERSISTENT, Selectivity.RANGE, "00000002"),
        (Placement.GLOBAL | Placement.PERSISTENT, Selectivity.REGION, "00000013"),
        (15, 3, "0000003f"),
        (0, 0, "00000000"),
    ],
)
def test_bits(placement: int, selectivity: int, wire: str) -> None:
    header = Feth(placement, selectivity)
    assert header.emit().hex() == wire
    assert Feth.parse(bytes.fromhex(wire)) == header


def test_reserved_bits_are_ignored() -> None:
    assert Feth.parse(bytes.fromhex("ffffffd1")) == Feth(Placement.GLOBAL, Selectivity.REGION)


@pytest.mark.parametrize(("placement", "selectivity"), [(16, 0), (-1, 0), (1, 4)])
def test_values_that_do_not_fit(placement: int, selectivity: int) -> None:
    with pytest.raises(WireError, match="FETH"):
        Feth(placement, selectivity)


def test_too_short() -> None:
    with pytest.raises(WireError, match="FETH"):
        Feth.parse(bytes(3))
