"""The MAD header, and layouts as tables: every bit has one place and comes back from it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.wire.errors import WireError
from emulator.wire.layout import Bits, Octets, Scattered
from emulator.wire.mad import MAD_BYTES, MadHeader, parse_mad

HEADER = MadHeader(
    management_class=0x07,
    class_version=2,
    attribute_id=0x0010,
    transaction_id=0x0123456789ABCDEF,
    attribute_modifier=0xCAFEF00D,
)
WIRE = bytes.fromhex("01070203 0000 0000 0123456789abcdef 0010 0000 cafef00d")


PLACES: dict[str, Bits] = {
    name: place for name, place in MadHeader.LAYOUT.items() if isinstance(place, Bits)
}


def test_construct() -> None:
    assert HEADER.emit() == WIRE


def test_deconstruct() -> None:
    assert MadHeader.parse(WIRE) == HEADER


@given(st.data())
def test_what_is_emitted_parses_to_the_same(data: st.DataObject) -> None:
    fields = {
        name: data.draw(st.integers(0, (1 << place.width) - 1), name)
        for name, place in PLACES.items()
    }
    value = MadHeader(**fields)
    assert MadHeader.parse(value.emit()) == value


def test_a_mad_is_256_bytes_whatever_it_carries() -> None:
    mad = HEADER.emit_with(b"content")
    assert len(mad) == MAD_BYTES
    header, content = parse_mad(mad)
    assert header == HEADER
    assert content == b"content".ljust(232, b"\0")


def test_content_that_does_not_fit() -> None:
    with pytest.raises(WireError, match="232"):
        HEADER.emit_with(bytes(233))


@pytest.mark.parametrize("length", [0, 24, 255, 257])
def test_no_other_length_is_a_mad(length: int) -> None:
    with pytest.raises(WireError, match="256 bytes"):
        parse_mad(bytes(length))


def test_other_base_version() -> None:
    with pytest.raises(WireError, match="version is 2"):
        parse_mad(replace(HEADER, base_version=2).emit_with(b""))


@pytest.mark.parametrize("field", PLACES)
def test_no_value_that_cannot_be_emitted(field: str) -> None:
    too_large = 1 << PLACES[field].width
    with pytest.raises(WireError, match=field):
        replace(HEADER, **{field: too_large})


@given(st.integers(0, 3), st.integers(0, 7), st.integers(1, 40), st.data())
def test_bits_touch_nothing_else(byte: int, bit: int, width: int, data: st.DataObject) -> None:
    place = Bits(byte, width, bit)
    value = data.draw(st.integers(0, (1 << width) - 1))
    first = byte * 8 + bit
    buffer = bytearray(16)
    place.put(buffer, value)
    assert int.from_bytes(buffer, "big") == value << 128 - first - width
    assert place.get(bytes(buffer)) == value
    # All other bits set: the value is still what is read.
    around = int.from_bytes(b"\xff" * 16, "big") ^ ((1 << width) - 1) << 128 - first - width
    noisy = (around | int.from_bytes(buffer, "big")).to_bytes(16, "big")
    assert place.get(noisy) == value


def test_scattered_parts_are_highest_first() -> None:
    place = Scattered((Bits(0, 8), Bits(3, 8), Bits(1, 4)))
    buffer = bytearray(4)
    place.put(buffer, 0xABCDE)
    assert buffer == bytes.fromhex("abe000cd")
    assert place.get(bytes(buffer)) == 0xABCDE
    with pytest.raises(WireError):
        place.checked(1 << 20, "it")


def test_short_bytes_are_padded_and_long_ones_refused() -> None:
    place = Octets(0, 4)
    assert place.checked(b"ab", "it") == b"ab\0\0"
    with pytest.raises(WireError, match="room for 4 bytes, not 5"):
        place.checked(b"abcde", "it")


def test_fields_do_not_overlap() -> None:
    assert PLACES.keys() == MadHeader.LAYOUT.keys()
    places = sorted((place.byte, place.byte + place.width // 8) for place in PLACES.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
