"""KV command capsules: the bytes of a command and of its response.

A command is one SEND from host to agent, a response one SEND back. All numbers are
little-endian, as in NVMe, whose Key Value command set lends the opcodes. The layout is
drawn byte by byte in docs/capsules.md; the dtypes below are its single source.

    command  = header (64) | key (32) x key_count | descriptor (24) x descriptor_count
    response = header (64) | results, by opcode (see ``results_nbytes``)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import ProtocolError
from kvlane.limits import (
    CAPSULE_VERSION,
    KEY_BYTES,
    MAX_CAPSULE_BYTES,
    MAX_KEYS_PER_CAPSULE,
)

COMMAND_MAGIC = int.from_bytes(b"KVLC", "little")
RESPONSE_MAGIC = int.from_bytes(b"KVLR", "little")
HEADER_BYTES = 64
BOOT_ID_BYTES = 16


class Opcode(IntEnum):
    """Commands; the numbers of the NVMe Key Value command set where it has the command."""

    STORE = 0x01
    RETRIEVE = 0x02
    DELETE = 0x10
    EXIST = 0x14
    MATCH = 0x81
    """Longest stored prefix of a key chain; vendor specific."""


class CommandFlags(IntFlag):
    """Options of a command."""

    CHECKSUM = 1
    """STORE: compare each descriptor's checksum with the bytes that arrived."""
    PERSISTENT = 2
    """STORE: answer when the blocks survive a crash of the agent."""


NO_FLAGS = CommandFlags(0)
KNOWN_FLAGS = int(CommandFlags.CHECKSUM | CommandFlags.PERSISTENT)


class CommandStatus(IntEnum):
    """How a whole command ended. Anything but OK means that no key was touched."""

    OK = 0
    BAD_MAGIC = 1
    BAD_VERSION = 2
    BAD_OPCODE = 3
    BAD_LENGTH = 4
    BAD_COUNT = 5
    BAD_SESSION = 6
    BAD_FLAGS = 7
    TOO_MANY_IN_FLIGHT = 8
    DRAINING = 9
    """Takes no new work. This release's agent never says so: while it drains it refuses new
    sessions, and serves those that are open until it closes them."""
    INTERNAL = 10


class KeyStatus(IntEnum):
    """How a command ended for one key."""

    OK = 0
    EXISTS = 1
    """STORE: an earlier writer has this key, published or on its way; nothing was read."""
    NOT_FOUND = 2
    NO_SPACE = 3
    """STORE: every slot is pinned or being written."""
    BAD_LENGTH = 4
    """STORE: longer than a slot, or zero. RETRIEVE: buffer too short; ``length`` says the need."""
    BAD_REGION = 5
    """The range is not inside a region that this session registered under that rkey."""
    CHECKSUM_MISMATCH = 6
    """STORE: the bytes that arrived are not those the host summed; not published."""
    ABORTED = 7
    """RETRIEVE: the slot was used again under the transfer, so the buffer may hold bytes of
    both. DELETE: gone, and might be back after a crash. Hosts also give it to keys that no
    response came for: a transfer that fails takes the queue pair with it, and whether such a
    STORE was published is unknown."""
    NOT_PERSISTENT = 8
    """STORE with PERSISTENT: the block is there, and would be lost with the agent: it has no tier
    that survives it, or that has no room or has failed."""


COMMAND_HEADER = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "opcode",
            "flags",
            "command_id",
            "priority",
            "key_count",
            "session",
            "length",
            "descriptor_count",
        ],
        "formats": ["<u4", "u1", "u1", "<u2", "<u4", "u1", "<u2", "<u8", "<u4", "<u2"],
        "offsets": [0, 4, 5, 6, 8, 12, 14, 16, 24, 28],
        "itemsize": HEADER_BYTES,
    }
)
"""Bytes 13, 30 and 31 and 32 to 63 are reserved, sent as zero and ignored when received."""

RESPONSE_HEADER = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "opcode",
            "status",
            "command_id",
            "key_count",
            "session",
            "length",
            "result",
            "boot_id",
        ],
        "formats": ["<u4", "u1", "u1", "<u2", "<u4", "<u2", "<u8", "<u4", "<u4", "V16"],
        "offsets": [0, 4, 5, 6, 8, 12, 16, 24, 28, 32],
        "itemsize": HEADER_BYTES,
    }
)
"""``result``: MATCH, length of the longest stored prefix; others, keys that ended OK or EXISTS."""

DESCRIPTOR = np.dtype(
    [
        ("addr", "<u8"),
        ("rkey", "<u4"),
        ("length", "<u4"),
        ("checksum", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""Where the host keeps one block: STORE reads from it, RETRIEVE writes to it."""

KEY_RESULT = np.dtype(
    [
        ("status", "u1"),
        ("reserved", "V3"),
        ("length", "<u4"),
        ("checksum", "<u4"),
        ("generation", "<u4"),
    ]
)
"""Per key of STORE and RETRIEVE; ``checksum`` is the CRC-32 of the stored bytes."""

KeyArray = NDArray[np.uint8]
"""Shape (n, 32), C-contiguous."""

_HAS_DESCRIPTORS = frozenset({Opcode.STORE, Opcode.RETRIEVE})
_OPCODES = frozenset(int(op) for op in Opcode)


def results_nbytes(opcode: int, key_count: int) -> int:
    """Bytes after the response header: records (STORE, RETRIEVE), one status byte a key
    padded to 4 (EXIST, DELETE), or nothing (MATCH)."""
    if opcode in _HAS_DESCRIPTORS:
        return key_count * KEY_RESULT.itemsize
    if opcode in (Opcode.EXIST, Opcode.DELETE):
        return (key_count + 3) & ~3
    return 0


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command; ``keys`` and ``descriptors`` are views of the received bytes."""

    opcode: Opcode
    command_id: int
    session: int
    flags: CommandFlags
    priority: int
    """For schedulers to come: agents take any value and give no command precedence by it."""
    keys: KeyArray
    descriptors: Any
    """``recarray`` of DESCRIPTOR, one a key, or empty."""


@dataclass(frozen=True, slots=True)
class Response:
    """A parsed response."""

    opcode: int
    status: CommandStatus
    command_id: int
    session: int
    result: int
    boot_id: bytes
    results: Any
    """``recarray`` of KEY_RESULT (STORE, RETRIEVE), uint8 array (EXIST, DELETE), or empty."""


class CapsuleError(ProtocolError):
    """A command capsule that cannot be executed; carries what the refusal must say."""

    def __init__(self, status: CommandStatus, command_id: int, opcode: int, text: str) -> None:
        self.status = status
        self.command_id = command_id
        self.opcode = opcode
        super().__init__(text)


def command_nbytes(key_count: int, descriptor_count: int) -> int:
    """Length of a command capsule."""
    return HEADER_BYTES + key_count * KEY_BYTES + descriptor_count * DESCRIPTOR.itemsize


def emit_command(
    out: NDArray[np.uint8],
    *,
    opcode: Opcode,
    command_id: int,
    session: int,
    keys: KeyArray,
    descriptors: Any = None,
    flags: CommandFlags = NO_FLAGS,
    priority: int = 0,
) -> int:
    """Write a command into ``out`` and return its length.

    ``ProtocolError`` if it cannot fit, or has not one descriptor for each key where the
    opcode takes descriptors and none where it does not: what is emitted can be parsed.
    """
    key_count = len(keys)
    descriptor_count = 0 if descriptors is None else len(descriptors)
    if descriptor_count != (key_count if opcode in _HAS_DESCRIPTORS else 0):
        raise ProtocolError(
            f"{descriptor_count} descriptors with {key_count} keys; STORE and RETRIEVE take "
            f"one for each key, other commands none"
        )
    if not 0 < key_count <= MAX_KEYS_PER_CAPSULE:
        raise ProtocolError(
            f"{key_count} keys in one command; 1 to {MAX_KEYS_PER_CAPSULE} fit a capsule"
        )
    length = command_nbytes(key_count, descriptor_count)
    if length > len(out):
        raise ProtocolError(f"a command of {length} bytes in a buffer of {len(out)}")
    out[:HEADER_BYTES] = 0
    header = out[:HEADER_BYTES].view(COMMAND_HEADER)[0]
    header["magic"] = COMMAND_MAGIC
    header["version"] = CAPSULE_VERSION
    header["opcode"] = opcode
    header["flags"] = flags
    header["command_id"] = command_id
    header["priority"] = priority
    header["key_count"] = key_count
    header["session"] = session
    header["length"] = length
    header["descriptor_count"] = descriptor_count
    end = HEADER_BYTES + key_count * KEY_BYTES
    out[HEADER_BYTES:end] = keys.reshape(-1)
    if descriptor_count:
        out[end:length] = np.ascontiguousarray(descriptors).view(np.uint8).reshape(-1)
    return length


def parse_command(data: NDArray[np.uint8]) -> Command:
    """Read a command; ``CapsuleError`` with the status to answer when it is not one."""
    if len(data) < HEADER_BYTES:
        raise CapsuleError(
            CommandStatus.BAD_LENGTH, 0, 0, f"a command of {len(data)} bytes has no header"
        )
    header = data[:HEADER_BYTES].view(COMMAND_HEADER)[0]
    command_id, opcode = int(header["command_id"]), int(header["opcode"])
    key_count, descriptor_count = int(header["key_count"]), int(header["descriptor_count"])

    def refuse(status: CommandStatus, text: str) -> CapsuleError:
        return CapsuleError(status, command_id, opcode, text)

    if header["magic"] != COMMAND_MAGIC:
        raise refuse(CommandStatus.BAD_MAGIC, f"magic 0x{int(header['magic']):08x} is not KVLC")
    if header["version"] != CAPSULE_VERSION:
        raise refuse(
            CommandStatus.BAD_VERSION,
            f"capsule version {int(header['version'])}, this agent speaks {CAPSULE_VERSION}",
        )
    if opcode not in _OPCODES:
        raise refuse(CommandStatus.BAD_OPCODE, f"opcode 0x{opcode:02x} is unknown")
    if int(header["flags"]) & ~KNOWN_FLAGS:
        raise refuse(CommandStatus.BAD_FLAGS, f"unknown flags 0x{int(header['flags']):04x}")
    wanted = key_count if opcode in _HAS_DESCRIPTORS else 0
    if not 0 < key_count <= MAX_KEYS_PER_CAPSULE or descriptor_count != wanted:
        raise refuse(
            CommandStatus.BAD_COUNT,
            f"{key_count} keys with {descriptor_count} descriptors for opcode 0x{opcode:02x}",
        )
    length = command_nbytes(key_count, descriptor_count)
    if int(header["length"]) != length or len(data) != length or length > MAX_CAPSULE_BYTES:
        raise refuse(
            CommandStatus.BAD_LENGTH,
            f"header says {int(header['length'])} bytes, the counts {length}, {len(data)} came",
        )
    end = HEADER_BYTES + key_count * KEY_BYTES
    return Command(
        opcode=Opcode(opcode),
        command_id=command_id,
        session=int(header["session"]),
        flags=CommandFlags(int(header["flags"])),
        priority=int(header["priority"]),
        keys=data[HEADER_BYTES:end].reshape(key_count, KEY_BYTES),
        descriptors=data[end:length].view(DESCRIPTOR).view(np.recarray),
    )


def emit_response(
    out: NDArray[np.uint8],
    *,
    opcode: int,
    status: CommandStatus,
    command_id: int,
    session: int,
    boot_id: bytes,
    result: int = 0,
    results: Any = None,
) -> int:
    """Write a response into ``out`` and return its length.

    ``results`` is an array of KEY_RESULT records or of status bytes, as the opcode has it.
    """
    key_count = 0 if results is None else len(results)
    length = HEADER_BYTES + results_nbytes(opcode, key_count)
    out[:length] = 0
    header = out[:HEADER_BYTES].view(RESPONSE_HEADER)[0]
    header["magic"] = RESPONSE_MAGIC
    header["version"] = CAPSULE_VERSION
    header["opcode"] = opcode
    header["status"] = status
    header["command_id"] = command_id
    header["key_count"] = key_count
    header["session"] = session
    header["length"] = length
    header["result"] = result
    header["boot_id"] = np.void(boot_id)
    if key_count:
        body = np.ascontiguousarray(results).view(np.uint8).reshape(-1)
        out[HEADER_BYTES : HEADER_BYTES + len(body)] = body
    return length


def parse_response(data: NDArray[np.uint8]) -> Response:
    """Read a response; ``ProtocolError`` when it is not one."""
    if len(data) < HEADER_BYTES:
        raise ProtocolError(f"a response of {len(data)} bytes has no header")
    header = data[:HEADER_BYTES].view(RESPONSE_HEADER)[0]
    if header["magic"] != RESPONSE_MAGIC or header["version"] != CAPSULE_VERSION:
        raise ProtocolError(
            f"not a response of version {CAPSULE_VERSION}: magic 0x{int(header['magic']):08x}, "
            f"version {int(header['version'])}"
        )
    opcode, key_count = int(header["opcode"]), int(header["key_count"])
    length = HEADER_BYTES + results_nbytes(opcode, key_count)
    if int(header["length"]) != length or len(data) != length:
        raise ProtocolError(
            f"response says {int(header['length'])} bytes, its counts {length}, {len(data)} came"
        )
    try:
        status = CommandStatus(int(header["status"]))
    except ValueError as error:
        raise ProtocolError(f"unknown command status {int(header['status'])}") from error
    body = data[HEADER_BYTES:length]
    results: Any = body[:key_count]
    if opcode in _HAS_DESCRIPTORS:
        results = body.view(KEY_RESULT).view(np.recarray)
    return Response(
        opcode=opcode,
        status=status,
        command_id=int(header["command_id"]),
        session=int(header["session"]),
        result=int(header["result"]),
        boot_id=header["boot_id"].tobytes(),
        results=results,
    )
