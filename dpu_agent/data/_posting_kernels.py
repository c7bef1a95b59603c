"""Work requests on their way into queue pairs, which hold only so many of them.

A NIC frees entries of a send queue only by the completion of a signaled request, for that one
and all before it. So every chunk that is posted ends in a signaled request, and what the chunk
stands for is remembered in the ring ``posted`` until that completion is seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpu_agent.data._latency_kernels import note_answer
from dpu_agent.data._transfer_kernels import (
    RESULT,
    block_slots_of,
    capsule_of,
    descriptor_at,
    descriptors_of,
    moved_bytes,
    payload_of,
    response_of,
)
from dpu_agent.data._work_id_kernels import WorkKind, pack_work_id
from dpu_agent.data.state import (
    CHUNK_BYTES,
    CHUNK_REQUESTS,
    SEND_QUEUE_DEPTH,
    CommandState,
    Serving,
    Trouble,
    command_at,
    posted_at,
    server_at,
)
from kvlane.capsule import HEADER_BYTES, Opcode
from kvlane.jit import kernel
from kvlane.limits import MAX_CAPSULE_BYTES
from kvlane.rawmem import record_accessor, words_at
from kvlane.verbs import _call_kernels as verbs
from kvlane.verbs.calls import PostResult
from kvlane.verbs.enums import SendFlags, WrOpcode
from kvlane.verbs.records import RECV_WR, SEND_WR

_send_wr_at = record_accessor(SEND_WR)
_recv_wr_at = record_accessor(RECV_WR)

_RESULT_BYTES = int(RESULT.itemsize)
_CHECKSUM_AT = int(RESULT.fields["checksum"][1]) if RESULT.fields else 0

_STORE = int(Opcode.STORE)
_READ = int(WrOpcode.RDMA_READ)
_WRITE = int(WrOpcode.RDMA_WRITE)
_SEND = int(WrOpcode.SEND)
_SIGNALED = int(SendFlags.SIGNALED)
_KIND_RECEIVE = int(WorkKind.RECEIVE)
_KIND_RESPONSE = int(WorkKind.RESPONSE)
_KIND_TRANSFER = int(WorkKind.TRANSFER)
_TRANSFER = int(CommandState.TRANSFER)
_RESPONSE = int(CommandState.RESPONSE)
_POSTED = int(PostResult.POSTED)
_REFUSED = int(Trouble.REFUSED)


@kernel
def enqueue(connection: Any, slot: int) -> None:
    """A command slot has something to post: the payload of its keys, or its response."""
    ring = words_at(connection.outgoing, connection.slot_count)
    ring[connection.outgoing_tail % connection.slot_count] = slot
    connection.outgoing_tail += 1


@kernel
def set_response(connection: Any, slot: int, nbytes: int) -> None:
    """The response in a slot's buffer is ready to leave."""
    command = command_at(connection.commands, slot)
    command.state = _RESPONSE
    command.response_bytes = nbytes
    enqueue(connection, slot)


@kernel
def _refuse(connection: Any) -> None:
    connection.trouble = _REFUSED


@kernel
def post_receives(serving: Serving, index: int, connection: Any) -> None:
    """Give all receive buffers that were returned back to the NIC."""
    count = connection.returned_count
    if count == 0:
        return
    server = server_at(serving.server, 0)
    returned = words_at(connection.returned, count)
    for i in range(count):
        buffer = int(returned[i])
        request = _recv_wr_at(server.receives, i)
        request.wr_id = pack_work_id(_KIND_RECEIVE, connection.serial, index, buffer)
        request.local_addr = capsule_of(connection, buffer)
        request.length = MAX_CAPSULE_BYTES
        request.lkey = connection.receive_lkey
    connection.returned_count = 0
    if verbs.post_recv(serving.calls, connection.qp, server.receives, count) != _POSTED:
        _refuse(connection)


@kernel
def _note_posted(connection: Any, requests: int, slot: int) -> Any:
    """The entry for requests that were posted now; of payload it says none."""
    entry = posted_at(connection.posted, connection.posted_tail % SEND_QUEUE_DEPTH)
    entry.requests = requests
    entry.slot = slot
    entry.first_key = entry.first_offset = entry.end_key = entry.end_offset = 0
    connection.posted_tail += 1
    connection.room -= requests
    return entry


@kernel
def _form_request(
    serving: Serving,
    request: Any,
    command: Any,
    descriptor: Any,
    block: int,
    nbytes: int,
    sum_word: int,
) -> None:
    """Write the request for the next part of a command's next key, all but its id."""
    request.opcode = _READ if command.opcode == _STORE else _WRITE
    request.send_flags = 0
    request.imm = 0
    request.local_addr = payload_of(serving, block) + command.next_offset
    request.length = nbytes
    request.lkey = server_at(serving.server, 0).pool_lkey
    request.remote_addr = np.int64(descriptor.addr) + command.next_offset
    request.rkey = np.int64(descriptor.rkey)
    request.sum_addr = sum_word


@kernel
def _form_chunk(serving: Serving, index: int, connection: Any, slot: int) -> int:
    """Write work requests for the next payload of a command, and step over it; how many."""
    server = server_at(serving.server, 0)
    command = command_at(connection.commands, slot)
    descriptors = descriptors_of(capsule_of(connection, command.buffer), command.key_count)
    held = block_slots_of(connection, slot, command.key_count)
    work_id = pack_work_id(_KIND_TRANSFER, connection.serial, index, slot)
    most = min(connection.room, CHUNK_REQUESTS)
    sums = 0
    if command.opcode == _STORE and serving.calls.sums_reads != 0:
        sums = response_of(connection, slot) + HEADER_BYTES + _CHECKSUM_AT
    count, left = 0, CHUNK_BYTES
    while command.next_key < command.key_count and count < most and left > 0:
        block = held[command.next_key]
        whole = moved_bytes(serving, block) if block >= 0 else 0
        if block >= 0:
            nbytes = min(left, whole - command.next_offset)
            request = _send_wr_at(server.requests, count)
            descriptor = descriptor_at(descriptors, command.next_key)
            word = sums + command.next_key * _RESULT_BYTES if sums != 0 else 0
            _form_request(serving, request, command, descriptor, block, nbytes, word)
            request.wr_id = work_id
            command.next_offset += nbytes
            left -= nbytes
            count += 1
        if command.next_offset == whole:
            command.next_key += 1
            command.next_offset = 0
    # The chunk of the last key that moves is the command's last.
    while command.next_key < command.key_count and held[command.next_key] < 0:
        command.next_key += 1
    return count


@kernel
def _post_chunk(serving: Serving, index: int, connection: Any, slot: int) -> bool:
    """Post the next part of a command's transfer; whether all of it is posted then."""
    server = server_at(serving.server, 0)
    command = command_at(connection.commands, slot)
    first_key, first_offset = command.next_key, command.next_offset
    count = _form_chunk(serving, index, connection, slot)
    if count > 0:
        _send_wr_at(server.requests, count - 1).send_flags = _SIGNALED
        if verbs.post_send(serving.calls, connection.qp, server.requests, count) != _POSTED:
            _refuse(connection)
        entry = _note_posted(connection, count, slot)
        entry.first_key, entry.first_offset = first_key, first_offset
        entry.end_key, entry.end_offset = command.next_key, command.next_offset
    return bool(command.next_key == command.key_count)


@kernel
def _outgoing_slot(connection: Any, ahead: int) -> int:
    """The command slot that is so far behind the first of those with something to post; or -1."""
    if connection.outgoing_head + ahead >= connection.outgoing_tail:
        return -1
    ring = words_at(connection.outgoing, connection.slot_count)
    return int(ring[(connection.outgoing_head + ahead) % connection.slot_count])


@kernel
def _form_response(serving: Serving, index: int, connection: Any, slot: int, at: int) -> None:
    """Write the work request of a response."""
    request = _send_wr_at(server_at(serving.server, 0).requests, at)
    request.wr_id = pack_work_id(_KIND_RESPONSE, connection.serial, index, slot)
    request.opcode = _SEND
    request.send_flags = _SIGNALED
    request.imm = 0
    request.local_addr = response_of(connection, slot)
    request.length = command_at(connection.commands, slot).response_bytes
    request.lkey = connection.response_lkey
    request.remote_addr = 0
    request.rkey = 0
    request.sum_addr = 0


@kernel
def _post_responses(serving: Serving, index: int, connection: Any) -> None:
    """Post the responses that come next, together: the NIC is called once."""
    count, most = 0, min(connection.room, CHUNK_REQUESTS)
    slot = _outgoing_slot(connection, 0)
    while count < most and slot >= 0 and command_at(connection.commands, slot).state == _RESPONSE:
        _form_response(serving, index, connection, slot, count)
        _note_posted(connection, 1, slot)
        note_answer(serving, index, command_at(connection.commands, slot))
        count += 1
        slot = _outgoing_slot(connection, count)
    connection.outgoing_head += count
    requests = server_at(serving.server, 0).requests
    if verbs.post_send(serving.calls, connection.qp, requests, count) != _POSTED:
        _refuse(connection)


@kernel
def post_outgoing(serving: Serving, index: int, connection: Any) -> None:
    """Post in order as far as the send queue has room."""
    slot = _outgoing_slot(connection, 0)
    while slot >= 0 and connection.room > 0 and connection.trouble == 0:
        if command_at(connection.commands, slot).state == _TRANSFER:
            if _post_chunk(serving, index, connection, slot):
                connection.outgoing_head += 1
        else:
            _post_responses(serving, index, connection)
        slot = _outgoing_slot(connection, 0)
