"""The capsule server's loop: completions in, commands executed, responses out.

A command that moves no payload is answered in the step that reads it. One that does keeps its
receive buffer until its transfer has ended, because its descriptors are needed until then.
Every command that arrives gets exactly one response, unless its session ends first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dpu_agent.cache import _shared_store_kernels as store_kernels
from dpu_agent.data import _cold_kernels as cold_kernels
from dpu_agent.data._capsule_kernels import (
    ReadCommand,
    moves_payload,
    read_command,
    write_response_header,
)
from dpu_agent.data._latency_kernels import NOT_EXECUTED, count_answers
from dpu_agent.data._posting_kernels import (
    enqueue,
    post_outgoing,
    post_receives,
    set_response,
)
from dpu_agent.data._tenant_kernels import count_keys
from dpu_agent.data._transfer_kernels import (
    RESULT,
    await_persistence,
    begin,
    capsule_of,
    count_done,
    finish,
    judge_persistence,
    keys_of,
    response_of,
    results_at,
    sum_arrived,
    take_up,
)
from dpu_agent.data._work_id_kernels import WorkKind, unpack_work_id
from dpu_agent.data.counting import TenantWord
from dpu_agent.data.state import (
    ARRIVAL_WORDS,
    POLL_BATCH,
    SEND_QUEUE_DEPTH,
    SERVER,
    CommandState,
    Serving,
    Trouble,
    command_at,
    connection_at,
    posted_at,
    server_at,
)
from kvlane._clock_kernels import monotonic_ns
from kvlane._scheduling_kernels import wait_a_turn
from kvlane.atomics import load_acquire
from kvlane.capsule import HEADER_BYTES, CommandFlags, CommandStatus, KeyStatus, Opcode
from kvlane.jit import kernel
from kvlane.rawmem import bytes_at, record_accessor, words_at
from kvlane.verbs import _call_kernels as verbs
from kvlane.verbs.calls import FAULT
from kvlane.verbs.enums import WcStatus
from kvlane.verbs.records import WC

_wc_at = record_accessor(WC)

_STORE = int(Opcode.STORE)
_DELETE = int(Opcode.DELETE)
_EXIST = int(Opcode.EXIST)
_OK = int(CommandStatus.OK)
_BAD_SESSION = int(CommandStatus.BAD_SESSION)
_TOO_MANY = int(CommandStatus.TOO_MANY_IN_FLIGHT)
_KEY_OK = int(KeyStatus.OK)
_ABORTED = int(KeyStatus.ABORTED)
_PERSISTENT = int(CommandFlags.PERSISTENT)
_SUCCESS = int(WcStatus.SUCCESS)
_FLUSHED = int(WcStatus.WR_FLUSH_ERR)
_KIND_RECEIVE = int(WorkKind.RECEIVE)
_KIND_RESPONSE = int(WorkKind.RESPONSE)
_FREE = int(CommandState.FREE)
_TRANSFER = int(CommandState.TRANSFER)
_AWAITING = int(CommandState.AWAITING)
_BROKEN = int(Trouble.BROKEN)
_NO_TROUBLE = int(Trouble.NONE)
_RESULT_BYTES = int(RESULT.itemsize)
_ARRIVAL_BYTES = 8 * ARRIVAL_WORDS
_EXIST_KEYS = int(TenantWord.EXIST_KEYS)
_MATCH_KEYS = int(TenantWord.MATCH_KEYS)

_INTERRUPT = int(SERVER.fields["interrupt"][1]) if SERVER.fields else 0


@kernel
def _refuse(serving: Serving, connection: Any, slot: int, read: ReadCommand, status: int) -> None:
    """Answer a command that is not executed."""
    boot_id = server_at(serving.server, 0).boot_id
    refusal = ReadCommand(status, read.opcode, 0, read.command_id, 0, connection.session)
    nbytes = write_response_header(response_of(connection, slot), refusal, 0, 0, boot_id)
    set_response(connection, slot, nbytes)


@kernel
def _respond(
    serving: Serving, connection: Any, slot: int, read: ReadCommand, result: int, results: int
) -> None:
    """Answer a command that was executed; ``results`` is how many bytes of them there are."""
    boot_id = server_at(serving.server, 0).boot_id
    nbytes = write_response_header(response_of(connection, slot), read, result, results, boot_id)
    set_response(connection, slot, nbytes)


@kernel
def _answer(
    serving: Serving, connection: Any, slot: int, buffer: int, read: ReadCommand, now: int
) -> None:
    """Execute a command that moves no payload."""
    keys = keys_of(capsule_of(connection, buffer), read.key_count)
    if read.opcode not in (_EXIST, _DELETE):
        matched, colder = cold_kernels.match(serving, keys, now)
        count_keys(connection, _MATCH_KEYS, matched - colder, colder, len(keys) - matched)
        bare = ReadCommand(_OK, read.opcode, 0, read.command_id, 0, read.session)
        _respond(serving, connection, slot, bare, matched, 0)
        return
    if read.opcode == _EXIST:
        statuses, colder = cold_kernels.exist(serving, keys)
        found = _put_statuses(connection, slot, statuses)
        count_keys(connection, _EXIST_KEYS, found - colder, colder, len(keys) - found)
    else:
        found = _put_statuses(connection, slot, store_kernels.delete(serving.store, keys))
    _respond(serving, connection, slot, read, found, _padded(read.key_count))


@kernel
def _padded(key_count: int) -> int:
    """Bytes of so many statuses of one byte."""
    return (key_count + 3) & ~3


@kernel
def _put_statuses(connection: Any, slot: int, statuses: Any) -> int:
    """Write the results of an EXIST or DELETE; how many are OK."""
    padded = _padded(len(statuses))
    out = bytes_at(response_of(connection, slot) + HEADER_BYTES, padded)
    found = 0
    for i in range(len(statuses)):
        out[i] = statuses[i]
        if statuses[i] == _KEY_OK:
            found += 1
    for i in range(len(statuses), padded):
        out[i] = 0
    return found


@kernel
def _occupy(connection: Any, slot: int, buffer: int, read: ReadCommand) -> Any:
    """Remember a command that does not end in the step that reads it."""
    command = command_at(connection.commands, slot)
    command.command_flags = read.command_flags
    command.command_id = read.command_id
    command.key_count = read.key_count
    command.buffer = buffer
    command.next_key = command.next_offset = 0
    command.cold = command.is_awaited_over = 0
    command.number = connection.begun
    connection.begun += 1
    connection.in_flight += 1
    return command


@kernel
def _delete_everywhere(
    serving: Serving, connection: Any, slot: int, buffer: int, read: ReadCommand
) -> None:
    """Execute a DELETE where there is a colder tier: what lies there is awaited to be gone.

    Also of a block that is in memory alone: a copy of it may be on its way, or the removal of an
    earlier one.
    """
    keys = keys_of(capsule_of(connection, buffer), read.key_count)
    found = _put_statuses(connection, slot, cold_kernels.delete(serving, keys))
    if found == 0:
        _respond(serving, connection, slot, read, found, _padded(read.key_count))
        _give_back(connection, buffer)
        return
    command = _occupy(connection, slot, buffer, read)
    command.state = _AWAITING
    command.cold = command.next_key = found
    cold_kernels.hand_over(serving, connection.index, slot)


@kernel
def _doubt_delete(connection: Any, slot: int) -> None:
    """Whether the blocks of a DELETE come back after a crash is not known."""
    command = command_at(connection.commands, slot)
    statuses = bytes_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    for i in range(command.key_count):
        if statuses[i] == _KEY_OK:
            statuses[i] = _ABORTED
    command.next_key = 0


@kernel
def _conclude_delete(serving: Serving, connection: Any, slot: int) -> None:
    """What lay in a colder tier is gone from there too."""
    command = command_at(connection.commands, slot)
    connection.in_flight -= 1
    _give_back(connection, command.buffer)
    key_count = command.key_count
    read = ReadCommand(_OK, _DELETE, 0, command.command_id, key_count, connection.session)
    command.cold = 0
    _respond(serving, connection, slot, read, command.next_key, _padded(key_count))


@kernel
def _start(
    serving: Serving, connection: Any, slot: int, buffer: int, read: ReadCommand, now: int
) -> None:
    """Begin a transfer; one of which nothing moves ends at once."""
    command = _occupy(connection, slot, buffer, read)
    command.state = _TRANSFER
    moving = begin(serving, connection, slot, read.opcode, read.key_count, buffer, now)
    cold_kernels.watch_room(serving)
    if command.cold != 0:
        cold_kernels.hand_over(serving, connection.index, slot)
    if moving == 0:
        _end_pass(serving, connection, slot, now)
    else:
        enqueue(connection, slot)


@kernel
def _end_pass(serving: Serving, connection: Any, slot: int, now: int) -> None:
    """All that could move has moved: the response may leave, unless something is awaited."""
    command = command_at(connection.commands, slot)
    if command.opcode == _STORE and command.command_flags & _PERSISTENT:
        finish(serving, connection, slot, now)
        command.cold = await_persistence(serving, connection, slot)
        if command.cold != 0:
            command.state = _AWAITING
            cold_kernels.hand_over(serving, connection.index, slot)
            return
    if command.cold == 0:
        _conclude(serving, connection, slot, now)
        return
    finish(serving, connection, slot, now)
    command.state = _AWAITING
    if command.is_awaited_over != 0:
        _go_on(serving, connection, slot, now)


@kernel
def _go_on(serving: Serving, connection: Any, slot: int, now: int) -> None:
    """Send what was awaited, as far as it is in memory now."""
    command = command_at(connection.commands, slot)
    if command.opcode == _DELETE:
        _conclude_delete(serving, connection, slot)
        return
    if command.opcode == _STORE:
        command.cold = 0
        judge_persistence(serving, connection, slot)
        _conclude(serving, connection, slot, now)
        return
    moving = take_up(serving, connection, slot, now)
    command.state = _TRANSFER
    command.next_key = command.next_offset = 0
    if moving == 0:
        _conclude(serving, connection, slot, now)
    else:
        enqueue(connection, slot)


class ResumedCommand(NamedTuple):
    """A command that has awaited something."""

    connection: int
    """Its index in the table."""
    serial: int
    slot: int
    number: int


@kernel
def resume(serving: Serving, which: ResumedCommand, succeeded: bool, now: int) -> None:
    """What a command awaits has come about, or will not; one that is gone by now is passed over."""
    connection = connection_at(serving.connections, which.connection)
    if connection.in_use == 0 or connection.serial != which.serial:
        return
    command = command_at(connection.commands, which.slot)
    if command.number != which.number or command.cold == 0:
        return
    if command.state == _AWAITING:
        if command.opcode == _DELETE and not succeeded:
            _doubt_delete(connection, which.slot)
        _go_on(serving, connection, which.slot, now)
        connection.touched = 1
        _post_touched(serving)
        count_answers(serving, now)
    else:
        command.is_awaited_over = 1


@kernel
def _give_back(connection: Any, buffer: int) -> None:
    """The command in a receive buffer is not needed any more."""
    words_at(connection.returned, connection.slot_count)[connection.returned_count] = buffer
    connection.returned_count += 1


@kernel
def _conclude(serving: Serving, connection: Any, slot: int, now: int) -> None:
    """All payload of a command has moved; only now may its response leave."""
    command = command_at(connection.commands, slot)
    finish(serving, connection, slot, now)
    connection.in_flight -= 1
    _give_back(connection, command.buffer)
    results = results_at(response_of(connection, slot) + HEADER_BYTES, command.key_count)
    read = ReadCommand(
        _OK, command.opcode, 0, command.command_id, command.key_count, connection.session
    )
    nbytes = command.key_count * _RESULT_BYTES
    _respond(serving, connection, slot, read, count_done(results), nbytes)
    if connection.is_awaited != 0:
        server_at(serving.server, 0).attention = 1


@kernel
def _execute(
    serving: Serving, connection: Any, slot: int, buffer: int, nbytes: int, now: int
) -> None:
    """Run the command in a receive buffer: respond, or start what will respond."""
    read = read_command(capsule_of(connection, buffer), nbytes)
    if read.status != _OK:
        _refuse(serving, connection, slot, read, read.status)
    elif read.session != connection.session:
        _refuse(serving, connection, slot, read, _BAD_SESSION)
    elif connection.in_flight >= connection.queue_depth:
        _refuse(serving, connection, slot, read, _TOO_MANY)
    else:
        executed = words_at(server_at(serving.server, 0).executed, 256)
        executed[read.opcode] += 1
        command_at(connection.commands, slot).opcode = read.opcode
        if moves_payload(read.opcode):
            _start(serving, connection, slot, buffer, read, now)
            return
        if read.opcode == _DELETE and cold_kernels.has_colder_tier(serving):
            _delete_everywhere(serving, connection, slot, buffer, read)
            return
        _answer(serving, connection, slot, buffer, read, now)
    _give_back(connection, buffer)


@kernel
def _execute_arrived(serving: Serving, connection: Any, now: int) -> None:
    """Run what has arrived, as far as there are command slots."""
    while (
        connection.arrived_head < connection.arrived_tail
        and connection.free_count > 0
        and connection.trouble == _NO_TROUBLE
    ):
        position = connection.arrived_head % connection.slot_count
        entry = words_at(connection.arrived + _ARRIVAL_BYTES * position, ARRIVAL_WORDS)
        connection.arrived_head += 1
        connection.free_count -= 1
        slot = int(words_at(connection.free, connection.slot_count)[connection.free_count])
        command = command_at(connection.commands, slot)
        command.opcode = NOT_EXECUTED
        command.arrived_at = entry[2]
        command.has_waited = 0
        _execute(serving, connection, slot, int(entry[0]), int(entry[1]), now)


@kernel
def _take_posted(serving: Serving, connection: Any, now: int) -> None:
    """A signaled request has completed, and with it all that were posted together."""
    entry = posted_at(connection.posted, connection.posted_head % SEND_QUEUE_DEPTH)
    connection.posted_head += 1
    connection.room += entry.requests
    command = command_at(connection.commands, entry.slot)
    if command.state != _TRANSFER:
        command.state = _FREE
        words_at(connection.free, connection.slot_count)[connection.free_count] = entry.slot
        connection.free_count += 1
        return
    if command.opcode == _STORE and serving.calls.sums_reads == 0:
        sum_arrived(serving, connection, entry)
    if entry.end_key == command.key_count:
        _end_pass(serving, connection, entry.slot, now)


@kernel
def _note_failure(serving: Serving, connection: Any, status: int) -> None:
    """A broken queue pair flushes what it holds, and the flushed completions may be seen before
    the one that says why; the flush counts only where nothing else is known."""
    if connection.trouble == _NO_TROUBLE or (
        connection.trouble == _BROKEN and connection.cause == _FLUSHED
    ):
        connection.trouble = _BROKEN
        connection.cause = status
    server_at(serving.server, 0).attention = 1


@kernel
def _take_completion(serving: Serving, completion: Any, now: int) -> None:
    kind, serial, index, slot = unpack_work_id(completion.wr_id)
    if index >= serving.connection_count:
        return
    connection = connection_at(serving.connections, index)
    if connection.in_use == 0 or connection.serial != serial:
        return  # flushed by a queue pair that is gone
    if completion.status != _SUCCESS:
        _note_failure(serving, connection, completion.status)
        return
    if connection.trouble != _NO_TROUBLE:
        return
    connection.touched = 1
    if kind == _KIND_RECEIVE:
        position = connection.arrived_tail % connection.slot_count
        entry = words_at(connection.arrived + _ARRIVAL_BYTES * position, ARRIVAL_WORDS)
        entry[0] = slot
        entry[1] = completion.byte_len
        entry[2] = now
        connection.arrived_tail += 1
    else:
        _take_posted(serving, connection, now)
    _execute_arrived(serving, connection, now)


@kernel
def _post_touched(serving: Serving) -> None:
    """Receives first: whoever gets a response may send the next command at once."""
    for index in range(serving.connection_count):
        connection = connection_at(serving.connections, index)
        if connection.touched == 0:
            continue
        connection.touched = 0
        if connection.in_use == 0:
            continue
        if connection.trouble == _NO_TROUBLE:
            post_receives(serving, index, connection)
        if connection.trouble == _NO_TROUBLE:
            post_outgoing(serving, index, connection)
        if connection.trouble != _NO_TROUBLE:
            server_at(serving.server, 0).attention = 1


@kernel
def serve(serving: Serving, now: int) -> int:
    """Handle the completions that are there: how many, or ``FAULT``."""
    server = server_at(serving.server, 0)
    count = verbs.poll_cq(serving.calls, server.cq, server.completions, POLL_BATCH)
    for i in range(count):
        _take_completion(serving, _wc_at(server.completions, i), now)
    if count > 0:
        _post_touched(serving)
    return count


@kernel
def serve_once(serving: Serving, now: int) -> int:
    """A turn that takes no time: as ``serve``."""
    count = serve(serving, now)
    count_answers(serving, now)
    return int(count)


@kernel
def _must_return(serving: Serving) -> bool:
    server = server_at(serving.server, 0)
    return bool(
        server.attention != 0
        or load_acquire(serving.server + _INTERRUPT) != 0
        or verbs.is_wanted(serving.calls)
    )


@kernel
def _is_room_wanted(serving: Serving) -> bool:
    """Whether something waits to be posted, until requests complete and make room."""
    for index in range(serving.connection_count):
        connection = connection_at(serving.connections, index)
        if connection.in_use != 0 and connection.outgoing_head != connection.outgoing_tail:
            return True
    return False


@kernel
def _sleep(serving: Serving, limit_ns: int, wake_fd: int) -> int:
    """Until a host asks for something: that its responses were taken can wait, as a rule."""
    return verbs.sleep(serving.calls, limit_ns, wake_fd, not _is_room_wanted(serving))


@kernel
def run(serving: Serving, spin_ns: int, limit_ns: int, wake_fd: int) -> int:
    """Serve until Python has something to do or ``limit_ns`` are over; ``FAULT`` or 0.

    When nothing happens it spins for ``spin_ns`` and then sleeps.
    """
    server = server_at(serving.server, 0)
    start = now = monotonic_ns(server.clock)
    idle_since = now
    while now - start < limit_ns:
        worked = verbs.progress(serving.calls, now)
        served = serve(serving, now)
        if worked == FAULT or served == FAULT:
            return FAULT
        now = monotonic_ns(server.clock)
        count_answers(serving, now)
        if _must_return(serving):
            break
        if worked != 0 or served != 0:
            idle_since = now
        elif now - idle_since < spin_ns:
            wait_a_turn(now - idle_since)
        elif _sleep(serving, limit_ns - (now - start), wake_fd) == FAULT:
            return FAULT
        else:
            idle_since = now = monotonic_ns(server.clock)
    return 0
