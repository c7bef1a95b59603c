"""What is emitted is parsed as the same, and no bytes make a parser raise anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvlane.capsule import (
    BOOT_ID_BYTES,
    DESCRIPTOR,
    HEADER_BYTES,
    KEY_RESULT,
    CapsuleError,
    Command,
    CommandFlags,
    CommandStatus,
    Opcode,
    Response,
    emit_command,
    emit_response,
    parse_command,
    parse_response,
)
from kvlane.errors import ProtocolError
from kvlane.limits import KEY_BYTES, MAX_CAPSULE_BYTES
from tests.support.capsule_vectors import RESPONSE_HEX, STORE_HEX

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
OPCODES = st.sampled_from(Opcode)


def records(draw: st.DrawFn, dtype: np.dtype[Any], count: int) -> Any:
    nbytes = count * dtype.itemsize
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    return np.frombuffer(bytearray(data), dtype)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    opcode = draw(OPCODES)
    count = draw(st.integers(1, 6))
    keys = draw(st.binary(min_size=count * KEY_BYTES, max_size=count * KEY_BYTES))
    described = count if opcode in (Opcode.STORE, Opcode.RETRIEVE) else 0
    return Command(
        opcode=opcode,
        command_id=draw(U32),
        session=draw(U64),
        flags=draw(st.sampled_from([CommandFlags(0), CommandFlags.CHECKSUM])),
        priority=draw(st.integers(0, 255)),
        keys=np.frombuffer(keys, np.uint8).reshape(count, KEY_BYTES),
        descriptors=records(draw, DESCRIPTOR, described),
    )


@st.composite
def responses(draw: st.DrawFn) -> Response:
    opcode = draw(OPCODES)
    count = 0 if opcode is Opcode.MATCH else draw(st.integers(0, 9))
    dtype = KEY_RESULT if opcode in (Opcode.STORE, Opcode.RETRIEVE) else np.dtype(np.uint8)
    return Response(
        opcode=opcode,
        status=draw(st.sampled_from(CommandStatus)),
        command_id=draw(U32),
        session=draw(U64),
        result=draw(U32),
        boot_id=draw(st.binary(min_size=BOOT_ID_BYTES, max_size=BOOT_ID_BYTES)),
        results=records(draw, dtype, count),
    )


@given(command=commands())
def test_emitted_command_is_parsed_as_the_same(command: Command) -> None:
    out = np.full(MAX_CAPSULE_BYTES, 0xFF, np.uint8)
    length = emit_command(
        out,
        opcode=command.opcode,
        command_id=command.command_id,
        session=command.session,
        keys=command.keys,
        descriptors=command.descriptors,
        flags=command.flags,
        priority=command.priority,
    )
    parsed = parse_command(out[:length])
    for name in ("opcode", "command_id", "session", "flags", "priority"):
        assert getattr(parsed, name) == getattr(command, name), name
    assert parsed.keys.tobytes() == command.keys.tobytes()
    assert parsed.descriptors.tobytes() == command.descriptors.tobytes()
    assert (out[length:] == 0xFF).all()


@given(response=responses())
def test_emitted_response_is_parsed_as_the_same(response: Response) -> None:
    out = np.full(MAX_CAPSULE_BYTES, 0xFF, np.uint8)
    length = emit_response(
        out,
        opcode=response.opcode,
        status=response.status,
        command_id=response.command_id,
        session=response.session,
        boot_id=response.boot_id,
        result=response.result,
        results=response.results,
    )
    parsed = parse_response(out[:length])
    for name in ("opcode", "status", "command_id", "session", "result", "boot_id"):
        assert getattr(parsed, name) == getattr(response, name), name
    assert parsed.results.tobytes() == response.results.tobytes()
    assert (out[length:] == 0xFF).all()


@st.composite
def damaged(draw: st.DrawFn, valid_hex: str) -> bytes:
    """A valid capsule with a few header bytes replaced, cut off or prolonged."""
    data = bytearray.fromhex(valid_hex)
    for offset, value in draw(
        st.lists(st.tuples(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255)), max_size=4)
    ):
        data[offset] = value
    end = draw(st.integers(0, len(data)) | st.just(len(data)))
    return bytes(data[:end]) + draw(st.binary(max_size=3))


@given(data=st.binary(max_size=300) | damaged(STORE_HEX))
def test_any_bytes_are_a_command_or_a_refusal(data: bytes) -> None:
    try:
        command = parse_command(np.frombuffer(data, np.uint8))
    except CapsuleError as refusal:
        # Every refusal can be answered.
        assert refusal.status is not CommandStatus.OK  # noqa: PT017
        assert 0 <= refusal.command_id < 1 << 32  # noqa: PT017
    else:
        assert command.keys.tobytes() == data[HEADER_BYTES : HEADER_BYTES + command.keys.size]


@given(data=st.binary(max_size=300) | damaged(RESPONSE_HEX))
def test_any_bytes_are_a_response_or_a_protocol_error(data: bytes) -> None:
    try:
        response = parse_response(np.frombuffer(data, np.uint8))
    except ProtocolError:
        return
    assert len(response.boot_id) == BOOT_ID_BYTES
    assert data[HEADER_BYTES:].startswith(response.results.tobytes())
