"""Properties of the structs that socket calls read and write, held against the socket module."""

from __future__ import annotations

import socket
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.link._addressing_kernels import MAPPED, NO_SOCKET, VIRTUAL, endpoint_of, socket_of
from emulator.link._socket_kernels import (
    CONTROL,
    CONTROL_BYTES,
    CONTROL_HEADER_BYTES,
    MESSAGE,
    NAME_BYTES,
    put_control_int,
    put_control_short,
    put_name,
    take_name,
)
from emulator.link._udp_kernels import CONTROLS_AT, NAME_AT, PART, PART_BYTES
from emulator.link.addressing import address_of
from emulator.link.gid import gid_halves

_SOCKETS = st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(1, 0xFFFF))
_HALVES = st.integers(-(1 << 63), (1 << 63) - 1)
_RULES = st.sampled_from([MAPPED, VIRTUAL])


def _number(address: int, port: int) -> int:
    return address << 16 | port


@given(_SOCKETS)
def test_a_name_is_the_sockaddr_in_of_its_socket(place: tuple[int, int]) -> None:
    address, port = place
    name = np.zeros(NAME_BYTES, np.uint8)
    put_name(int(name.ctypes.data), _number(address, port))
    wanted = struct.pack("=H", socket.AF_INET) + struct.pack(">HI", port, address) + bytes(8)
    assert name.tobytes() == wanted
    assert take_name(int(name.ctypes.data)) == _number(address, port)


@given(_SOCKETS)
def test_a_number_is_the_address_that_python_has(place: tuple[int, int]) -> None:
    address, port = place
    assert address_of(_number(address, port)) == (
        socket.inet_ntoa(address.to_bytes(4, "big")),
        port,
    )


@given(_RULES, _SOCKETS)
def test_an_endpoint_leads_back_to_its_socket(rule: int, place: tuple[int, int]) -> None:
    number = _number(*place)
    gid_hi, gid_lo, udp_port, _ = endpoint_of(rule, number)
    assert socket_of(rule, gid_hi, gid_lo, udp_port) == number


@given(_RULES, _HALVES, _HALVES, _HALVES)
def test_no_gid_and_port_leads_outside_of_sockets(rule: int, hi: int, lo: int, port: int) -> None:
    number = socket_of(rule, hi, lo, port)
    assert number == NO_SOCKET or (0 <= number < 1 << 48 and number & 0xFFFF)


@given(st.integers(0, 0xFFFFFFFF), st.integers(1, 0xFFFF))
def test_a_mapped_gid_is_the_address_itself(address: int, port: int) -> None:
    gid = bytes(10) + b"\xff\xff" + address.to_bytes(4, "big")
    assert socket_of(MAPPED, *gid_halves(gid), port) == _number(address, port)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF))
def test_control_messages_are_as_c_lays_them_out(segment_bytes: int, tos: int) -> None:
    controls = np.full(2 * CONTROL_BYTES, 0xAA, np.uint8)
    address = int(controls.ctypes.data)
    put_control_short(address, 0, 17, 103, segment_bytes)
    put_control_int(address, 1, 0, 1, tos)
    first, second = controls[:CONTROL_BYTES].tobytes(), controls[CONTROL_BYTES:].tobytes()
    assert first[: CONTROL_HEADER_BYTES + 2] == struct.pack("@Niih", 18, 17, 103, 0)[
        :CONTROL_HEADER_BYTES
    ] + struct.pack("@H", segment_bytes)
    assert second[: CONTROL_HEADER_BYTES + 4] == struct.pack("@Niii", 20, 0, 1, tos)


def test_structs_have_the_sizes_of_c() -> None:
    assert socket.CMSG_SPACE(4) == socket.CMSG_SPACE(1) == CONTROL_BYTES == CONTROL.itemsize
    assert MESSAGE.itemsize == 64


def test_a_part_is_where_the_kernels_look() -> None:
    assert PART.fields is not None
    assert PART.fields["name"][1] == NAME_AT
    assert PART.fields["controls"][1] == CONTROLS_AT
    assert PART_BYTES % 8 == 0
