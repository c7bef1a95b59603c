"""Work requests as objects: what they take, what they refuse, and what they remember."""

from __future__ import annotations

import ctypes
import socket
from typing import Any

import pytest

from emulator.pyverbs import libibverbs_enums as e
from emulator.pyverbs._structure import Field, signed64, unsigned64
from emulator.pyverbs.pyverbs_error import PyverbsUserError
from emulator.pyverbs.wr import SGE, RecvWR, SendWR, send_flags_to_str


def test_an_element_reads_the_memory_it_names() -> None:
    buffer = ctypes.create_string_buffer(b"abcdef")
    sge = SGE(ctypes.addressof(buffer), 6, 7)
    assert sge.read(3, 2) == b"cde"
    assert (sge.length, sge.lkey) == (6, 7)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("length", 1 << 32, OverflowError),
        ("length", -1, OverflowError),
        ("lkey", "7", TypeError),
        ("addr", None, TypeError),
        ("addr", 1 << 64, OverflowError),
    ],
)
def test_a_field_refuses_what_the_structure_cannot_hold(
    name: str, value: Any, error: type[Exception]
) -> None:
    sge = SGE(1, 2, 3)
    with pytest.raises(error, match=name):
        setattr(sge, name, value)
    assert (sge.addr, sge.length, sge.lkey) == (1, 2, 3)


def test_a_field_takes_whatever_converts_to_an_integer() -> None:
    sge = SGE(1, 7.9, e.IBV_WR_SEND_WITH_INV)
    assert (sge.length, sge.lkey) == (7, 9)


@pytest.mark.parametrize("value", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_unsigned_numbers_survive_the_records_of_the_engine(value: int) -> None:
    assert -(1 << 63) <= signed64(value) < 1 << 63
    assert unsigned64(signed64(value)) == value


def test_a_signed_field_has_a_range_of_its_own() -> None:
    field = Field(8, signed=True)
    assert [field.convert(n) for n in (-128, 127)] == [-128, 127]
    with pytest.raises(OverflowError):
        field.convert(128)


def test_a_receive_keeps_its_elements_as_they_were() -> None:
    sge = SGE(100, 8, 1)
    wr = RecvWR(wr_id=5, num_sge=1, sg=[sge, SGE(200, 8, 1)])
    sge.addr = 300
    assert [element.addr for element in wr.elements] == [100]
    assert wr.wr_id == 5


def test_a_receive_without_a_list_has_no_elements() -> None:
    assert RecvWR().elements == []
    with pytest.raises(TypeError, match="num_sge is 1"):
        RecvWR(num_sge=1)


def test_requests_are_linked() -> None:
    last = RecvWR(wr_id=2)
    first = RecvWR(wr_id=1, next_wr=last)
    assert first.next_wr is last
    assert last.next_wr is None


@pytest.mark.parametrize("opcode", [e.IBV_WR_SEND, e.IBV_WR_RDMA_READ])
def test_data_needs_an_element(opcode: int) -> None:
    with pytest.raises(PyverbsUserError):
        SendWR(opcode=opcode)
    with pytest.raises(PyverbsUserError):
        SendWR(opcode=opcode, num_sge=1)


@pytest.mark.parametrize("opcode", [e.IBV_WR_LOCAL_INV, e.IBV_WR_BIND_MW, e.IBV_WR_SEND_WITH_INV])
def test_windows_are_changed_without_elements(opcode: int) -> None:
    assert SendWR(opcode=opcode).num_sge == 0


def test_a_send_is_signaled_unless_something_else_is_said() -> None:
    sge = SGE(1, 2, 3)
    assert SendWR(num_sge=1, sg=[sge]).send_flags == e.IBV_SEND_SIGNALED
    assert SendWR(num_sge=1, sg=[sge], send_flags=0).send_flags == 0


def test_sg_list_can_only_be_written() -> None:
    wr = SendWR(num_sge=1, sg=[SGE(1, 2, 3)])
    wr.sg_list = SGE(4, 5, 6)
    assert wr.elements == [(4, 5, 6)]
    with pytest.raises(AttributeError):
        print(wr.sg_list)


def test_setters_of_remote_memory() -> None:
    wr = SendWR(opcode=e.IBV_WR_ATOMIC_CMP_AND_SWP, num_sge=1, sg=[SGE(1, 8, 3)])
    wr.set_wr_atomic(rkey=9, addr=1 << 63, compare_add=(1 << 64) - 1)
    assert (wr.remote_key, wr.remote_addr) == (9, 1 << 63)
    assert (wr.compare_add, wr.swap) == ((1 << 64) - 1, 0)
    with pytest.raises(TypeError):
        wr.set_wr_rdma(rkey="9", addr=0)


def test_a_datagram_needs_a_handle() -> None:
    wr = SendWR(num_sge=1, sg=[SGE(1, 8, 3)])
    with pytest.raises(TypeError, match="address handle"):
        wr.set_wr_ud(None, 1, 2)


def test_a_copy_is_independent() -> None:
    wr = SendWR(wr_id=1, num_sge=1, sg=[SGE(1, 8, 3)])
    copy = SendWR(opcode=e.IBV_WR_LOCAL_INV)
    copy.take(wr)
    copy.wr_id = 2
    assert (wr.wr_id, copy.opcode, copy.elements) == (1, e.IBV_WR_SEND, [(1, 8, 3)])


def test_text_for_people() -> None:
    wr = SendWR(wr_id=77, num_sge=1, sg=[SGE(1, 8, 3)], imm_data=socket.htonl(1))
    assert "77" in str(wr)
    assert send_flags_to_str(e.IBV_SEND_FENCE | e.IBV_SEND_INLINE) == (
        "IBV_SEND_FENCE IBV_SEND_INLINE "
    )
