"""Command capsules read and judged, and headers of responses written, without Python.

The layout is that of ``kvlane.capsule``, taken as 64-bit words: what is asserted here of its
dtypes is what the shifts below rely on.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlane.capsule import (
    COMMAND_HEADER,
    COMMAND_MAGIC,
    DESCRIPTOR,
    HEADER_BYTES,
    KNOWN_FLAGS,
    RESPONSE_HEADER,
    RESPONSE_MAGIC,
    CommandStatus,
    Opcode,
)
from kvlane.jit import kernel
from kvlane.limits import CAPSULE_VERSION, KEY_BYTES, MAX_CAPSULE_BYTES, MAX_KEYS_PER_CAPSULE
from kvlane.rawmem import copy, words_at

HEADER_WORDS = HEADER_BYTES // 8
DESCRIPTOR_BYTES = int(DESCRIPTOR.itemsize)
BOOT_ID_OFFSET = int(RESPONSE_HEADER.fields["boot_id"][1]) if RESPONSE_HEADER.fields else 0
_BOOT_ID_BYTES = 16
_WORD_COUNT = 5

_STORE = int(Opcode.STORE)
_RETRIEVE = int(Opcode.RETRIEVE)
_DELETE = int(Opcode.DELETE)
_EXIST = int(Opcode.EXIST)
_MATCH = int(Opcode.MATCH)
_OK = int(CommandStatus.OK)
_BAD_MAGIC = int(CommandStatus.BAD_MAGIC)
_BAD_VERSION = int(CommandStatus.BAD_VERSION)
_BAD_OPCODE = int(CommandStatus.BAD_OPCODE)
_BAD_LENGTH = int(CommandStatus.BAD_LENGTH)
_BAD_COUNT = int(CommandStatus.BAD_COUNT)
_BAD_FLAGS = int(CommandStatus.BAD_FLAGS)


def _offsets(dtype: object) -> dict[str, int]:
    fields = getattr(dtype, "fields", None) or {}
    return {name: int(place[1]) for name, place in fields.items()}


assert _offsets(COMMAND_HEADER) == {
    "magic": 0,
    "version": 4,
    "opcode": 5,
    "flags": 6,
    "command_id": 8,
    "priority": 12,
    "key_count": 14,
    "session": 16,
    "length": 24,
    "descriptor_count": 28,
}
assert _offsets(RESPONSE_HEADER) == {
    "magic": 0,
    "version": 4,
    "opcode": 5,
    "status": 6,
    "command_id": 8,
    "key_count": 12,
    "session": 16,
    "length": 24,
    "result": 28,
    "boot_id": 32,
}


class ReadCommand(NamedTuple):
    """What a command capsule says; after a refusal, what the refusal must repeat."""

    status: int
    """``CommandStatus``: OK, or why it is refused."""
    opcode: int
    command_flags: int
    command_id: int
    key_count: int
    session: int
    """As a signed number of the same 64 bits."""


@kernel
def moves_payload(opcode: int) -> bool:
    """Whether a command of this kind has descriptors."""
    return opcode in (_STORE, _RETRIEVE)


@kernel
def _judge_counts(opcode: int, key_count: int, descriptor_count: int) -> bool:
    wanted = key_count if moves_payload(opcode) else 0
    return 0 < key_count <= MAX_KEYS_PER_CAPSULE and descriptor_count == wanted


@kernel
def read_command(capsule: int, nbytes: int) -> ReadCommand:
    """Read the ``nbytes`` that arrived at an address; the first fault found is the verdict."""
    if nbytes < HEADER_BYTES:
        return ReadCommand(_BAD_LENGTH, 0, 0, 0, 0, 0)
    words = words_at(capsule, HEADER_WORDS)
    first, second, session, fourth = int(words[0]), int(words[1]), int(words[2]), int(words[3])
    opcode, flags = (first >> 40) & 0xFF, (first >> 48) & 0xFFFF
    command_id, key_count = second & 0xFFFFFFFF, (second >> 48) & 0xFFFF
    length, descriptor_count = fourth & 0xFFFFFFFF, (fourth >> 32) & 0xFFFF
    expected = HEADER_BYTES + key_count * KEY_BYTES + descriptor_count * DESCRIPTOR_BYTES
    status = _OK
    if first & 0xFFFFFFFF != COMMAND_MAGIC:
        status = _BAD_MAGIC
    elif (first >> 32) & 0xFF != CAPSULE_VERSION:
        status = _BAD_VERSION
    elif opcode not in (_STORE, _RETRIEVE, _DELETE, _EXIST, _MATCH):
        status = _BAD_OPCODE
    elif flags & ~KNOWN_FLAGS != 0:
        status = _BAD_FLAGS
    elif not _judge_counts(opcode, key_count, descriptor_count):
        status = _BAD_COUNT
    elif length != expected or nbytes != expected or expected > MAX_CAPSULE_BYTES:
        status = _BAD_LENGTH
    return ReadCommand(status, opcode, flags, command_id, key_count, session)


@kernel
def write_response_header(
    response: int, command: ReadCommand, result: int, results_bytes: int, boot_id: int
) -> int:
    """Write the header at an address; the length of the whole response.

    ``command.key_count`` is the number of results that follow, for whose bytes the caller cares;
    ``boot_id`` is the address of 16 bytes.
    """
    length = HEADER_BYTES + results_bytes
    words = words_at(response, HEADER_WORDS)
    words[0] = RESPONSE_MAGIC | CAPSULE_VERSION << 32 | command.opcode << 40 | command.status << 48
    words[1] = command.command_id | command.key_count << 32
    words[2] = command.session
    words[3] = length | result << 32
    for word in range(4, HEADER_WORDS):
        words[word] = 0
    copy(response + BOOT_ID_OFFSET, boot_id, _BOOT_ID_BYTES)
    return length
