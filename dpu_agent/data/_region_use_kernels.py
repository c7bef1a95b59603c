"""Which transfers move payload by some regions: what taking a region away has to wait for.

A kernel, though it is rare: as Python over single accessors it would compile them when first a
region goes under a transfer, with all sessions of the worker waiting.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.data._capsule_kernels import moves_payload
from dpu_agent.data._transfer_kernels import (
    Words,
    block_slots_of,
    capsule_of,
    descriptor_at,
    descriptors_of,
)
from dpu_agent.data.state import CommandState, command_at
from kvlane.jit import kernel

_TRANSFER = int(CommandState.TRANSFER)


@kernel
def _moves_by(connection: Any, slot: int, rkeys: Words) -> bool:
    """Whether payload of the transfer in a command slot moves by one of the rkeys."""
    command = command_at(connection.commands, slot)
    held = block_slots_of(connection, slot, command.key_count)
    descriptors = descriptors_of(capsule_of(connection, command.buffer), command.key_count)
    for i in range(len(held)):
        if held[i] < 0:
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
        if command.state != _TRANSFER or not moves_payload(command.opcode):
            continue
        if _moves_by(connection, slot, rkeys):
            numbers[count] = command.number
            count += 1
    return numbers[:count]
