"""Which transfers move payload by some regions: what taking a region away has to wait for.

A kernel, though it is rare: as Python over single accessors it would compile them when first a
region goes under a transfer, with all sessions of the worker waiting.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.data._capsule_kernels import moves_payload
from dpu_agent.data._cold_kernels import COLD
from dpu_agent.data._transfer_kernels import (
    Words,
    block_slots_of,
    capsule_of,
    descriptor_at,
    descriptors_of,
    response_of,
    results_at,
)
from dpu_agent.data.state import CommandState, command_at
from kvlane.capsule import HEADER_BYTES
from kvlane.jit import kernel

_TRANSFER = int(CommandState.TRANSFER)
_AWAITING = int(CommandState.AWAITING)


@kernel
def _moves_by(connection: Any, slot: int, rkeys: Words) -> bool:
    """Whether payload of the transfer in a command slot moves, or will, by one of the rkeys."""
    command = command_at(connection.commands, slot)
    held = block_slots_of(connection, slot, command.key_count)
    descriptors = descriptors_of(capsule_of(connection, command.buffer), command.key_count)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    for i in range(len(held)):
        if held[i] < 0 and results[i]["status"] != COLD:
            continue
        for rkey in rkeys:
            if np.int64(descriptor_at(descriptors, i).rkey) == rkey:
                return True
    return False


@kernel
def transfers_by(connection: Any, rkeys: Words) -> Words:
    """Numbers of the transfers of a connection that are running and move by one of the rkeys."""
    numbers = np.empty(connection.slot_count, np.int64)
    count = 0
    for slot in range(connection.slot_count):
        command = command_at(connection.commands, slot)
        if command.state not in (_TRANSFER, _AWAITING) or not moves_payload(command.opcode):
            continue
        if _moves_by(connection, slot, rkeys):
            numbers[count] = command.number
            count += 1
    return numbers[:count]
