"""Capsules are the pinned bytes, read back as what was written, and every refusal says why."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvlane.capsule import (
    DESCRIPTOR,
    HEADER_BYTES,
    KEY_RESULT,
    CapsuleError,
    CommandFlags,
    CommandStatus,
    Opcode,
    command_nbytes,
    emit_command,
    emit_response,
    parse_command,
    parse_response,
    results_nbytes,
)
from kvlane.errors import ProtocolError
from kvlane.limits import MAX_CAPSULE_BYTES, MAX_KEYS_PER_CAPSULE
from tests.support.capsule_vectors import (
    BOOT_ID,
    COMMAND_ID,
    DESCRIPTORS,
    KEYS,
    PRIORITY,
    RESPONSE_HEX,
    SESSION,
    STORE_HEX,
    emit_store,
    emit_store_response,
    key_results,
)


def as_array(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def packed_store() -> bytes:
    """The golden command, packed by hand from the layout in docs/capsules.md."""
    header = struct.pack(
        "<4sBBHIBxHQIH34x", b"KVLC", 1, 0x01, 1, COMMAND_ID, PRIORITY, 2, SESSION, 176, 2
    )
    descriptors = struct.pack("<QIII4x", 0x7F0000001000, 0x1234, 4096, 0x89ABCDEF)
    descriptors += struct.pack("<QIII4x", 0x7F0000002000, 0x1234, 1000, 0x01234567)
    return header + bytes(range(64)) + descriptors


def packed_response() -> bytes:
    """The golden response, packed by hand from the layout in docs/capsules.md."""
    header = struct.pack(
        "<4sBBHIH2xQII16s16x", b"KVLR", 1, 0x01, 0, COMMAND_ID, 2, SESSION, 96, 1, BOOT_ID
    )
    return header + struct.pack("<B3xIII", 0, 4096, 0x89ABCDEF, 7) + struct.pack("<B15x", 6)


def test_command_is_the_pinned_bytes() -> None:
    assert emit_store().hex() == STORE_HEX
    assert packed_store().hex() == STORE_HEX


def test_response_is_the_pinned_bytes() -> None:
    assert emit_store_response().hex() == RESPONSE_HEX
    assert packed_response().hex() == RESPONSE_HEX


def test_pinned_command_is_read() -> None:
    command = parse_command(as_array(bytes.fromhex(STORE_HEX)))
    assert command.opcode is Opcode.STORE
    assert command.flags is CommandFlags.CHECKSUM
    assert (command.command_id, command.session) == (COMMAND_ID, SESSION)
    assert command.priority == PRIORITY
    assert np.array_equal(command.keys, KEYS)
    assert command.descriptors.tolist() == DESCRIPTORS.tolist()
    assert command.descriptors.length.tolist() == [4096, 1000]


def test_pinned_response_is_read() -> None:
    response = parse_response(as_array(bytes.fromhex(RESPONSE_HEX)))
    assert (response.opcode, response.status) == (Opcode.STORE, CommandStatus.OK)
    assert (response.command_id, response.session) == (COMMAND_ID, SESSION)
    assert (response.result, response.boot_id) == (1, BOOT_ID)
    assert response.results.tolist() == key_results().tolist()
    assert response.results.generation.tolist() == [7, 0]


def test_command_is_read_wherever_it_lies_in_memory() -> None:
    data = as_array(b"?" * 3 + bytes.fromhex(STORE_HEX))[3:]
    assert parse_command(data).descriptors.addr.tolist() == DESCRIPTORS["addr"].tolist()


Change = Callable[[bytearray], bytes | bytearray]


def put(offset: int, layout: str, value: int | bytes) -> Change:
    """Overwrite a field."""

    def change(capsule: bytearray) -> bytearray:
        struct.pack_into("<" + layout, capsule, offset, value)
        return capsule

    return change


REFUSED_COMMANDS: list[tuple[str, Change, CommandStatus]] = [
    ("empty", lambda c: b"", CommandStatus.BAD_LENGTH),
    ("half a header", lambda c: c[:63], CommandStatus.BAD_LENGTH),
    ("response's magic", put(0, "4s", b"KVLR"), CommandStatus.BAD_MAGIC),
    ("version 2", put(4, "B", 2), CommandStatus.BAD_VERSION),
    ("version 0", put(4, "B", 0), CommandStatus.BAD_VERSION),
    ("opcode 0", put(5, "B", 0), CommandStatus.BAD_OPCODE),
    ("opcode LIST of NVMe", put(5, "B", 0x06), CommandStatus.BAD_OPCODE),
    ("unknown flag", put(6, "H", 4), CommandStatus.BAD_FLAGS),
    ("no key", put(14, "H", 0), CommandStatus.BAD_COUNT),
    ("too many keys", put(14, "H", MAX_KEYS_PER_CAPSULE + 1), CommandStatus.BAD_COUNT),
    ("a descriptor too few", put(28, "H", 1), CommandStatus.BAD_COUNT),
    ("descriptors for EXIST", put(5, "B", Opcode.EXIST), CommandStatus.BAD_COUNT),
    ("length lies", put(24, "I", 175), CommandStatus.BAD_LENGTH),
    ("cut off", lambda c: c[:-1], CommandStatus.BAD_LENGTH),
    ("a byte too many", lambda c: c + b"\0", CommandStatus.BAD_LENGTH),
]


@pytest.mark.parametrize(
    ("change", "status"),
    [pytest.param(change, status, id=name) for name, change, status in REFUSED_COMMANDS],
)
def test_refused_command_says_what_the_response_must_say(
    change: Change, status: CommandStatus
) -> None:
    data = bytes(change(bytearray.fromhex(STORE_HEX)))
    with pytest.raises(CapsuleError) as caught:
        parse_command(as_array(data))
    refusal = caught.value
    assert refusal.status is status
    has_header = len(data) >= HEADER_BYTES
    assert refusal.command_id == (COMMAND_ID if has_header else 0)
    assert refusal.opcode == (data[5] if has_header else 0)


def test_all_refusals_that_bytes_can_earn_are_tried() -> None:
    # The others depend on the session and the agent, not on the bytes.
    of_the_agent = {
        CommandStatus.OK,
        CommandStatus.BAD_SESSION,
        CommandStatus.TOO_MANY_IN_FLIGHT,
        CommandStatus.DRAINING,
        CommandStatus.INTERNAL,
    }
    assert {status for _, _, status in REFUSED_COMMANDS} == set(CommandStatus) - of_the_agent


def test_reserved_bytes_are_ignored() -> None:
    data = bytearray.fromhex(STORE_HEX)
    for reserved in (13, 30, 31, *range(32, HEADER_BYTES)):
        data[reserved] = 0xFF
    assert parse_command(as_array(bytes(data))).session == SESSION


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: b"", id="empty"),
        pytest.param(lambda c: c[:63], id="half a header"),
        pytest.param(put(0, "4s", b"KVLC"), id="command's magic"),
        pytest.param(put(4, "B", 2), id="version"),
        pytest.param(put(6, "H", 999), id="unknown status"),
        pytest.param(put(12, "H", 3), id="a result too few"),
        pytest.param(put(24, "I", 95), id="length lies"),
        pytest.param(lambda c: c[:-1], id="cut off"),
        pytest.param(lambda c: c + b"\0", id="a byte too many"),
    ],
)
def test_what_is_no_response_is_refused(change: Change) -> None:
    data = bytes(change(bytearray.fromhex(RESPONSE_HEX)))
    with pytest.raises(ProtocolError):
        parse_response(as_array(data))


@pytest.mark.parametrize(
    ("opcode", "nbytes"),
    [
        (Opcode.STORE, [0, 16, 80]),
        (Opcode.RETRIEVE, [0, 16, 80]),
        (Opcode.DELETE, [0, 4, 8]),
        (Opcode.EXIST, [0, 4, 8]),
        (Opcode.MATCH, [0, 0, 0]),
        (0xFF, [0, 0, 0]),
    ],
)
def test_results_sizes(opcode: int, nbytes: list[int]) -> None:
    assert [results_nbytes(opcode, keys) for keys in (0, 1, 5)] == nbytes


@pytest.mark.parametrize("status", [s for s in CommandStatus if s is not CommandStatus.OK])
def test_refusal_of_an_unknown_opcode_travels(status: CommandStatus) -> None:
    out = np.full(HEADER_BYTES, 0xFF, np.uint8)
    length = emit_response(
        out, opcode=0xEE, status=status, command_id=5, session=6, boot_id=BOOT_ID
    )
    response = parse_response(out[:length])
    assert (response.opcode, response.status, len(response.results)) == (0xEE, status, 0)


def emit(out: Any, opcode: Opcode, key_count: int, descriptors: Any) -> int:
    keys = np.zeros((key_count, 32), np.uint8)
    return emit_command(
        out, opcode=opcode, command_id=1, session=1, keys=keys, descriptors=descriptors
    )


@pytest.mark.parametrize("key_count", [0, MAX_KEYS_PER_CAPSULE + 1])
def test_key_count_out_of_range_is_not_emitted(key_count: int) -> None:
    out = np.zeros(2 * MAX_CAPSULE_BYTES, np.uint8)
    with pytest.raises(ProtocolError, match=f"{key_count} keys"):
        emit(out, Opcode.EXIST, key_count, None)


@pytest.mark.parametrize(
    ("opcode", "descriptor_count"),
    [(Opcode.STORE, 1), (Opcode.RETRIEVE, 0), (Opcode.EXIST, 2), (Opcode.MATCH, 1)],
)
def test_descriptors_that_do_not_fit_are_not_emitted(opcode: Opcode, descriptor_count: int) -> None:
    out = np.zeros(MAX_CAPSULE_BYTES, np.uint8)
    with pytest.raises(ProtocolError, match=f"{descriptor_count} descriptors with 2 keys"):
        emit(out, opcode, 2, np.zeros(descriptor_count, DESCRIPTOR))


def test_command_is_not_emitted_into_a_buffer_too_short() -> None:
    out = np.full(command_nbytes(2, 0) - 1, 0xFF, np.uint8)
    with pytest.raises(ProtocolError, match="128 bytes in a buffer of 127"):
        emit(out, Opcode.EXIST, 2, None)
    assert (out == 0xFF).all()


def test_largest_command_and_response_fit_a_capsule() -> None:
    out = np.zeros(MAX_CAPSULE_BYTES, np.uint8)
    count = MAX_KEYS_PER_CAPSULE
    length = emit(out, Opcode.STORE, count, np.zeros(count, DESCRIPTOR))
    assert len(parse_command(out[:length]).keys) == count
    results = np.zeros(count, KEY_RESULT)
    length = emit_response(
        out,
        opcode=Opcode.STORE,
        status=CommandStatus.OK,
        command_id=1,
        session=1,
        boot_id=BOOT_ID,
        results=results,
    )
    assert len(parse_response(out[:length]).results) == count
