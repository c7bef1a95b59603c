"""STORE and RETRIEVE: what they take from the block store, move, and give back.

The results of a command are written where its response leaves from, as they become known. A
command holds store slots in ``block_slots``; a key that has none there moves nothing any more.
Regions are judged first: a key whose range is not registered is BAD_REGION, whatever the store
would have said of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpu_agent.cache import _shared_store_kernels as store_kernels
from dpu_agent.cache._store_kernels import slot_offset
from dpu_agent.data._capsule_kernels import moves_payload
from dpu_agent.data._cold_kernels import cold_positions, has_cold, has_colder_tier, mark_cold
from dpu_agent.data._region_kernels import is_inside
from dpu_agent.data._tenant_kernels import count_bytes, count_keys
from dpu_agent.data.counting import TenantWord
from dpu_agent.data.state import (
    RESPONSE_BYTES,
    CommandState,
    Serving,
    Trouble,
    command_at,
    server_at,
)
from kvlane.capsule import (
    DESCRIPTOR,
    HEADER_BYTES,
    KEY_RESULT,
    CommandFlags,
    KeyStatus,
    Opcode,
)
from kvlane.jit import kernel
from kvlane.limits import KEY_BYTES, MAX_CAPSULE_BYTES, MAX_KEYS_PER_CAPSULE
from kvlane.rawmem import array_accessor, crc32, record_accessor, words_at

RESULT = np.dtype([("status", "u4"), ("length", "u4"), ("checksum", "u4"), ("generation", "u4")])
"""KEY_RESULT with its three reserved bytes, which are zero, as the upper part of the status."""
assert KEY_RESULT.itemsize == RESULT.itemsize

KEY_WORDS = KEY_BYTES // 8
results_at = array_accessor(RESULT)
descriptor_at = record_accessor(DESCRIPTOR)

_STORE = int(Opcode.STORE)
_TRANSFER = int(CommandState.TRANSFER)
_CHECKSUM = int(CommandFlags.CHECKSUM)
_OK = int(KeyStatus.OK)
_EXISTS = int(KeyStatus.EXISTS)
_NOT_FOUND = int(KeyStatus.NOT_FOUND)
_BAD_LENGTH = int(KeyStatus.BAD_LENGTH)
_BAD_REGION = int(KeyStatus.BAD_REGION)
_MISMATCH = int(KeyStatus.CHECKSUM_MISMATCH)
_ABORTED = int(KeyStatus.ABORTED)
_NOT_PERSISTENT = int(KeyStatus.NOT_PERSISTENT)
_MISUSE = int(Trouble.STORE_MISUSE)
_UNFIT = int(Trouble.UNFIT_VICTIM)
_RETRIEVE_KEYS = int(TenantWord.RETRIEVE_KEYS)
_STORED_BYTES = int(TenantWord.STORED_BYTES)
_RETRIEVED_BYTES = int(TenantWord.RETRIEVED_BYTES)

Words = NDArray[np.int64]


@kernel
def capsule_of(connection: Any, buffer: int) -> int:
    """Address of a receive buffer."""
    return int(connection.capsules + buffer * MAX_CAPSULE_BYTES)


@kernel
def keys_of(capsule: int, key_count: int) -> Any:
    """The keys of a command as the store takes them, shape (n, 4)."""
    return words_at(capsule + HEADER_BYTES, key_count * KEY_WORDS).reshape((key_count, KEY_WORDS))


@kernel
def descriptors_of(capsule: int, key_count: int) -> int:
    """Address of the descriptors of a command."""
    return capsule + HEADER_BYTES + key_count * KEY_BYTES


@kernel
def response_of(connection: Any, slot: int) -> int:
    """Address of the response buffer of a command slot."""
    return int(connection.responses + slot * RESPONSE_BYTES)


@kernel
def block_slots_of(connection: Any, slot: int, key_count: int) -> Words:
    """The store's slot for each key of the command in a command slot, -1 for none."""
    address = connection.block_slots + slot * MAX_KEYS_PER_CAPSULE * 8
    found: Words = words_at(address, key_count)
    return found


@kernel
def _judge_regions(connection: Any, descriptors: int, results: Any) -> Words:
    """Mark the keys whose range is not registered; the positions of the others."""
    inside = np.empty(len(results), np.int64)
    count = 0
    for i in range(len(results)):
        record = descriptor_at(descriptors, i)
        addr, length = np.int64(record.addr), np.int64(record.length)
        if is_inside(connection, addr, length, np.int64(record.rkey)):
            results[i]["status"] = _OK
            inside[count] = i
            count += 1
        else:
            results[i]["status"] = _BAD_REGION
        results[i]["length"] = 0
        results[i]["checksum"] = 0
        results[i]["generation"] = 0
    return inside[:count]


@kernel
def _chosen_keys(keys: Any, chosen: Words) -> Any:
    """The keys at some positions."""
    if len(chosen) == len(keys):
        return keys
    picked = np.empty((len(chosen), KEY_WORDS), np.int64)
    for i in range(len(chosen)):
        for word in range(KEY_WORDS):
            picked[i, word] = keys[chosen[i], word]
    return picked


@kernel
def begin(
    serving: Serving, connection: Any, slot: int, opcode: int, key_count: int, buffer: int, now: int
) -> int:
    """Take from the store what it grants for a command; the number of keys that move now."""
    capsule = capsule_of(connection, buffer)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, key_count)
    descriptors = descriptors_of(capsule, key_count)
    held = block_slots_of(connection, slot, key_count)
    held[:] = -1
    inside = _judge_regions(connection, descriptors, results)
    keys = _chosen_keys(keys_of(capsule, key_count), inside)
    if opcode == _STORE:
        return _begin_store(serving, connection, descriptors, inside, keys, results, held)
    moving, found = _pin_present(serving, descriptors, inside, keys, results, held, now)
    colder = 0
    if has_cold(serving):
        missing = _not_found(results, inside)
        unfound = _chosen_keys(keys_of(capsule, key_count), missing)
        colder = mark_cold(serving, unfound, missing, results)
        command_at(connection.commands, slot).cold = colder
    count_keys(connection, _RETRIEVE_KEYS, found, 0, len(inside) - found - colder)
    return moving


@kernel
def take_up(serving: Serving, connection: Any, slot: int, now: int) -> int:
    """Take from the store what a RETRIEVE has awaited; the number of keys that move."""
    command = command_at(connection.commands, slot)
    capsule = capsule_of(connection, command.buffer)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    held = block_slots_of(connection, slot, command.key_count)
    awaited = cold_positions(results)
    for position in awaited:
        results[position]["status"] = _OK
    keys = _chosen_keys(keys_of(capsule, command.key_count), awaited)
    descriptors = descriptors_of(capsule, command.key_count)
    command.cold = command.is_awaited_over = 0
    moving, found = _pin_present(serving, descriptors, awaited, keys, results, held, now)
    count_keys(connection, _RETRIEVE_KEYS, 0, found, len(awaited) - found)
    return moving


@kernel
def _not_found(results: Any, positions: Words) -> Words:
    """Those of some positions whose keys were not found."""
    found = np.empty(len(positions), np.int64)
    count = 0
    for position in positions:
        if results[position]["status"] == _NOT_FOUND:
            found[count] = position
            count += 1
    return found[:count]


@kernel
def _begin_store(
    serving: Serving,
    connection: Any,
    descriptors: int,
    inside: Words,
    keys: Any,
    results: Any,
    held: Words,
) -> int:
    lengths = np.empty(len(inside), np.int64)
    for i in range(len(inside)):
        lengths[i] = np.int64(descriptor_at(descriptors, inside[i]).length)
    slots, statuses, unfit = store_kernels.reserve(serving.store, keys, lengths)
    moving = 0
    for i in range(len(inside)):
        results[inside[i]]["status"] = statuses[i]
        held[inside[i]] = slots[i]
        if slots[i] >= 0:
            moving += 1
    if unfit >= 0:
        connection.trouble = _UNFIT
        connection.cause = unfit
    return moving


@kernel
def _pin_present(
    serving: Serving,
    descriptors: int,
    inside: Words,
    keys: Any,
    results: Any,
    held: Words,
    now: int,
) -> tuple[int, int]:
    """Pin what is in memory, and say of the rest that it was not found; how many keys move, and how
    many were found."""
    slots = store_kernels.pin(serving.store, keys, now)
    table = serving.store.table
    moving, found = 0, 0
    for i in range(len(inside)):
        result = results[inside[i]]
        slot = slots[i]
        if slot < 0:
            result["status"] = _NOT_FOUND
            continue
        found += 1
        result["length"] = table[slot]["length"]
        generation = np.int64(table[slot]["generation"])
        if table[slot]["length"] > descriptor_at(descriptors, inside[i]).length:
            result["status"] = _BAD_LENGTH
            store_kernels.unpin(serving.store, _one(slot), _one(generation))
            continue
        result["checksum"] = table[slot]["checksum"]
        result["generation"] = generation
        held[inside[i]] = slot
        moving += 1
    return moving, found


@kernel
def _one(value: int) -> Words:
    only = np.empty(1, np.int64)
    only[0] = value
    return only


@kernel
def payload_of(serving: Serving, slot: int) -> int:
    """Address of the payload of a store's slot."""
    pool = server_at(serving.server, 0).pool_addr
    return int(pool + slot_offset(serving.store, slot))


@kernel
def moved_bytes(serving: Serving, slot: int) -> int:
    """Bytes of the block in a store's slot."""
    return int(serving.store.table[slot]["length"])


@kernel
def sum_arrived(serving: Serving, connection: Any, posted: Any) -> None:
    """Go on with the checksums of a STORE, over the payload that is in now."""
    slot = posted.slot
    command = command_at(connection.commands, slot)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    held = block_slots_of(connection, slot, command.key_count)
    start = posted.first_offset
    for i in range(posted.first_key, min(posted.end_key + 1, command.key_count)):
        if held[i] >= 0:
            end = posted.end_offset if i == posted.end_key else moved_bytes(serving, held[i])
            before = np.int64(results[i]["checksum"])
            part = payload_of(serving, held[i]) + start
            results[i]["checksum"] = crc32(before, part, end - start)
        start = 0


@kernel
def finish(serving: Serving, connection: Any, slot: int, now: int) -> None:
    """All that moves has moved: conclude in the store, and complete the results."""
    command = command_at(connection.commands, slot)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    held = block_slots_of(connection, slot, command.key_count)
    if command.opcode == _STORE:
        _finish_store(serving, connection, command, results, held, now)
    else:
        _finish_retrieve(serving, connection, results, held)


@kernel
def _finish_store(
    serving: Serving, connection: Any, command: Any, results: Any, held: Words, now: int
) -> None:
    """Publish the blocks that are as the host meant them."""
    descriptors = descriptors_of(capsule_of(connection, command.buffer), command.key_count)
    compares = (command.command_flags & _CHECKSUM) != 0
    right, sums = np.empty(len(held), np.int64), np.empty(len(held), np.int64)
    wrong = np.empty(len(held), np.int64)
    right_count, wrong_count, nbytes = 0, 0, 0
    for i in range(len(held)):
        if held[i] < 0:
            continue
        result = results[i]
        if compares and result["checksum"] != descriptor_at(descriptors, i).checksum:
            result["status"] = _MISMATCH
            result["checksum"] = 0
            wrong[wrong_count] = held[i]
            wrong_count += 1
        else:
            result["length"] = serving.store.table[held[i]]["length"]
            result["generation"] = serving.store.table[held[i]]["generation"]
            right[right_count] = held[i]
            sums[right_count] = np.int64(result["checksum"])
            right_count += 1
            nbytes += np.int64(result["length"])
    held[:] = -1
    count_bytes(connection, _STORED_BYTES, nbytes)
    misused = store_kernels.abort(serving.store, wrong[:wrong_count])
    if misused >= 0:
        _tell_misuse(connection, wrong[misused])
    misused = store_kernels.publish(serving.store, right[:right_count], sums[:right_count], now)
    if misused >= 0:
        _tell_misuse(connection, right[misused])


@kernel
def _finish_retrieve(serving: Serving, connection: Any, results: Any, held: Words) -> None:
    """Unpin; a block whose slot has changed under the transfer is ABORTED."""
    slots, generations = np.empty(len(held), np.int64), np.empty(len(held), np.int64)
    positions = np.empty(len(held), np.int64)
    count = 0
    for i in range(len(held)):
        if held[i] >= 0:
            slots[count] = held[i]
            generations[count] = np.int64(results[i]["generation"])
            positions[count] = i
            count += 1
    held[:] = -1
    unchanged, misused = store_kernels.unpin(serving.store, slots[:count], generations[:count])
    if misused >= 0:
        _tell_misuse(connection, slots[misused])
    nbytes = 0
    for i in range(count):
        result = results[positions[i]]
        nbytes += np.int64(result["length"])
        if not unchanged[i]:
            result["status"] = _ABORTED
            result["length"] = 0
            result["checksum"] = 0
            result["generation"] = 0
    count_bytes(connection, _RETRIEVED_BYTES, nbytes)


@kernel
def await_persistence(serving: Serving, connection: Any, slot: int) -> int:
    """How many keys of a STORE that has ended are to be made persistent; without a tier for that
    none, and they are told so."""
    if has_colder_tier(serving):
        return count_done(_results_of(connection, slot))
    judge_persistence(serving, connection, slot)
    return 0


@kernel
def judge_persistence(serving: Serving, connection: Any, slot: int) -> None:
    """Say of each key that is there whether it survives a crash: what lies colder does."""
    command = command_at(connection.commands, slot)
    results = _results_of(connection, slot)
    keys = keys_of(capsule_of(connection, command.buffer), command.key_count)
    statuses = store_kernels.exist(serving.cold, keys)
    for i in range(len(results)):
        if results[i]["status"] in (_OK, _EXISTS) and statuses[i] != _OK:
            results[i]["status"] = _NOT_PERSISTENT


@kernel
def _results_of(connection: Any, slot: int) -> Any:
    command = command_at(connection.commands, slot)
    return results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)


@kernel
def _tell_misuse(connection: Any, slot: int) -> None:
    connection.trouble = _MISUSE
    connection.cause = slot


@kernel
def count_done(results: Any) -> int:
    """Keys that ended OK or EXISTS."""
    done = 0
    for i in range(len(results)):
        if results[i]["status"] in (_OK, _EXISTS):
            done += 1
    return done


@kernel
def give_up_transfers(serving: Serving, connection: Any) -> None:
    """Return to the store what the commands of a connection hold; nothing moves any more."""
    for slot in range(connection.slot_count):
        command = command_at(connection.commands, slot)
        if command.state != _TRANSFER or not moves_payload(command.opcode):
            continue
        held = block_slots_of(connection, slot, command.key_count)
        results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
        for i in range(len(held)):
            if held[i] < 0:
                continue
            if command.opcode == _STORE:
                store_kernels.abort(serving.store, _one(held[i]))
            else:
                generation = np.int64(results[i]["generation"])
                store_kernels.unpin(serving.store, _one(held[i]), _one(generation))
            held[i] = -1
