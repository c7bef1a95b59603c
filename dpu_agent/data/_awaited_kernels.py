"""What a command awaits, for Python, which is to bring it into memory."""

from __future__ import annotations

from typing import Any

from dpu_agent.data._cold_kernels import cold_positions
from dpu_agent.data._transfer_kernels import capsule_of, keys_of, response_of, results_at
from dpu_agent.data.state import command_at
from kvlane.capsule import HEADER_BYTES, KeyStatus, Opcode
from kvlane.jit import kernel
from kvlane.limits import KEY_BYTES
from kvlane.rawmem import copy

_STORE = int(Opcode.STORE)
_DELETE = int(Opcode.DELETE)
_STORED = (int(KeyStatus.OK), int(KeyStatus.EXISTS))


@kernel
def _copy_key(keys: Any, row: int, into: Any, place: int) -> None:
    source = keys.ctypes.data + row * KEY_BYTES
    copy(into.ctypes.data + place * KEY_BYTES, source, KEY_BYTES)


@kernel
def _copy_stored(connection: Any, slot: int, keys: Any, into: Any) -> int:
    """Copy the keys of a STORE that are there now; how many they are."""
    results = results_at(response_of(connection, slot) + HEADER_BYTES, len(keys))
    count = 0
    for i in range(len(keys)):
        if results[i]["status"] in _STORED:
            _copy_key(keys, i, into, count)
            count += 1
    return count


@kernel
def copy_awaited(connection: Any, slot: int, into: Any) -> tuple[int, int, int]:
    """Copy the keys that a command awaits; its opcode and number, and how many they are.

    None are where the session has ended meanwhile.
    """
    if connection.in_use == 0:
        return 0, 0, 0
    command = command_at(connection.commands, slot)
    if command.cold == 0:
        return 0, 0, 0
    keys = keys_of(capsule_of(connection, command.buffer), command.key_count)
    if command.opcode == _DELETE:
        copy(into.ctypes.data, keys.ctypes.data, command.key_count * KEY_BYTES)
        return command.opcode, command.number, command.key_count
    if command.opcode == _STORE:
        return _STORE, command.number, _copy_stored(connection, slot, keys, into)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    positions = cold_positions(results)
    for i in range(len(positions)):
        _copy_key(keys, positions[i], into, i)
    return command.opcode, command.number, len(positions)
