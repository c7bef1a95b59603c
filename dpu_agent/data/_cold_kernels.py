"""Blocks of a colder tier: seen by lookups, awaited by a RETRIEVE or until they are deleted.

A RETRIEVE sends what is in memory at once. Keys that lie colder are marked in its results and
handed over to Python, which has them brought into memory; then the RETRIEVE takes them up and
sends them too. Each key is awaited once: what is not in memory by then is NOT_FOUND.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.cache import _shared_store_kernels as store_kernels
from dpu_agent.data._notice_kernels import note_chain
from dpu_agent.data.state import Serving, command_at, connection_at, server_at
from kvlane.capsule import KeyStatus
from kvlane.jit import kernel
from kvlane.rawmem import words_at

COLD = 0xFF
"""Status of a key that is awaited; it is never sent."""
assert COLD not in tuple(KeyStatus)

_OK = int(KeyStatus.OK)


@kernel
def has_cold(serving: Serving) -> bool:
    """Whether anything lies in a colder tier; without the lock, for who can live with no."""
    return bool(serving.cold.ledger[0]["blocks"] != 0)


@kernel
def has_colder_tier(serving: Serving) -> bool:
    """Whether there is anybody who looks after one."""
    return bool(server_at(serving.server, 0).low_water != 0)


@kernel
def exist(serving: Serving, keys: Any) -> tuple[Any, int]:
    """OK or NOT_FOUND for each key, wherever its block lies; how many lie in a colder tier only."""
    statuses = store_kernels.exist(serving.store, keys)
    count = 0
    if has_cold(serving):
        colder = store_kernels.exist(serving.cold, keys)
        for i in range(len(keys)):
            if colder[i] == _OK and statuses[i] != _OK:
                statuses[i] = _OK
                count += 1
    return statuses, count


@kernel
def match(serving: Serving, keys: Any, now: int) -> tuple[int, int]:
    """How many keys, from the first on, have a block somewhere without a gap; how many of these
    have it in a colder tier only."""
    matched = int(store_kernels.match(serving.store, keys, now))
    if has_colder_tier(serving):
        store_kernels.announce(serving.cold, keys, now)
    colder = 0
    if matched < len(keys) and has_cold(serving):
        rest = keys[matched:]
        in_memory = store_kernels.exist(serving.store, rest)
        in_files = store_kernels.exist(serving.cold, rest)
        for i in range(len(rest)):
            if in_memory[i] != _OK:
                if in_files[i] != _OK:
                    break
                colder += 1
            matched += 1
    note_chain(serving, keys, colder > 0)
    return matched, colder


@kernel
def delete(serving: Serving, keys: Any) -> Any:
    """Delete what is in memory; OK for each key that lay there or lies colder."""
    statuses = store_kernels.delete(serving.store, keys)
    colder = store_kernels.exist(serving.cold, keys)
    for i in range(len(keys)):
        if colder[i] == _OK:
            statuses[i] = _OK
    return statuses


@kernel
def mark_cold(serving: Serving, keys: Any, positions: Any, results: Any) -> int:
    """Mark the keys, of those at some positions that were not found, that lie colder; how many."""
    statuses = store_kernels.exist(serving.cold, keys)
    count = 0
    for i in range(len(positions)):
        if statuses[i] == _OK:
            results[positions[i]]["status"] = COLD
            count += 1
    return count


@kernel
def cold_positions(results: Any) -> Any:
    """Where the keys that are awaited stand in a command."""
    positions = np.empty(len(results), np.int64)
    count = 0
    for i in range(len(results)):
        if results[i]["status"] == COLD:
            positions[count] = i
            count += 1
    return positions[:count]


@kernel
def hand_over(serving: Serving, index: int, slot: int) -> None:
    """Let Python know of a command that awaits blocks."""
    command_at(connection_at(serving.connections, index).commands, slot).has_waited = 1
    server = server_at(serving.server, 0)
    place = server.awaiting_tail % server.awaiting_size
    entry = words_at(server.awaiting + 16 * place, 2)
    entry[0] = index
    entry[1] = slot
    server.awaiting_tail += 1
    server.attention = 1


@kernel
def watch_room(serving: Serving) -> None:
    """Let Python know that few slots are free; without the store's lock, a count that is out of
    date is right the next time."""
    server = server_at(serving.server, 0)
    if serving.store.ledger[0]["free"] < server.low_water:
        server.is_short = 1
        server.attention = 1
