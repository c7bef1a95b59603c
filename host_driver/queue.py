"""Commands in flight over one queue pair: credits, ids, deadlines, and one end for each.

No thread, no clock: whoever drives it calls ``pump`` with the time. A command holds a
slot (its send buffer and its credit) until its response has come and its SEND has
completed, because a lost acknowledgement makes the NIC read the buffer again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from host_driver.commands import Command, Operation, same_error
from host_driver.rings import CapsuleRing
from kvlane.capsule import CommandStatus, Opcode, Response, emit_command, parse_response
from kvlane.errors import (
    DeadlineError,
    KvlaneError,
    ProtocolError,
    TransferError,
    VerbsError,
)
from kvlane.verbs.enums import QpState, WcOpcode, WcStatus
from kvlane.verbs.protocols import CompletionQueue, QueuePair
from kvlane.verbs.records import WC, RecordArray, new_records

LOOK_INTERVAL_NS = 5_000_000
"""How often deadlines and the queue pair's state are looked at, and so how late they are seen."""

_ID_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Peer:
    """What every response of the agent must carry."""

    session_id: int
    boot_id: bytes


@dataclass(slots=True)
class _Slot:
    """A credit in use."""

    command_id: int
    command: Command | None
    """None once the response has come."""
    sent: bool = False
    """True once the SEND has completed."""


class CommandQueue:
    """Sends commands in the order of submission, ``depth`` at a time at most."""

    def __init__(
        self,
        queue_pair: QueuePair,
        completion_queue: CompletionQueue,
        send_ring: CapsuleRing,
        receive_ring: CapsuleRing,
        peer: Peer,
        depth: int,
    ) -> None:
        self._queue_pair = queue_pair
        self._completion_queue = completion_queue
        self._send_ring = send_ring
        self._receive_ring = receive_ring
        self._peer = peer
        self._operations: dict[Operation[Any], None] = {}
        """Submitted and not ended, in order: whatever happens, these are owed an end."""
        self._waiting: deque[Command] = deque()
        self._slots: dict[int, _Slot] = {}
        self._slot_of_id: dict[int, int] = {}
        self._free_slots = list(range(depth))
        self._last_id = 0
        self._next_look_ns = 0
        self._completions = new_records(WC, 2 * depth)
        self._failure: KvlaneError | None = None
        self._closed = False
        """The queue pair is closed."""
        receive_ring.post_recv(queue_pair, range(len(receive_ring)))

    @property
    def in_flight(self) -> int:
        """Credits in use."""
        return len(self._slots)

    @property
    def idle(self) -> bool:
        """True when no command is in flight or waiting."""
        return not self._slots and not self._waiting

    @property
    def failure(self) -> KvlaneError | None:
        """Why the connection was given up, if it was."""
        return self._failure

    def submit(self, operation: Operation[Any]) -> None:
        """Queue the commands of an operation; it ends at once when the connection is gone."""
        if self._failure is not None:
            operation.give_up(same_error(self._failure))
            return
        self._operations[operation] = None
        self._waiting.extend(operation.commands())
        self._forget_if_ended(operation)

    def pump(self, now_ns: int) -> bool:
        """Take completions, end what is overdue, send what may be sent; True if any was."""
        if self._failure is not None:
            return False
        worked = self._take_completions()
        if self._failure is None and now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_INTERVAL_NS
            self._expire(now_ns)
            if self._queue_pair.state is QpState.ERR:
                self.fail(TransferError("the queue pair to the agent broke; connect anew"))
        return self._send_waiting() or worked

    def fail(self, error: KvlaneError) -> None:
        """Give the connection up. Every operation ends with ``error``, after its last write.

        Closing the queue pair comes first: what is said to have failed is touched no more.
        The first error counts. Calling again finishes what an interrupted call left.
        """
        if self._failure is None:
            self._failure = error
        if not self._closed:
            with contextlib.suppress(VerbsError):  # it is gone with its device then
                self._queue_pair.close()
            self._closed = True
        for operation in list(self._operations):
            operation.give_up(same_error(self._failure))
            del self._operations[operation]
        self._slots.clear()
        self._slot_of_id.clear()
        self._waiting.clear()

    def _forget_if_ended(self, operation: Operation[Any]) -> None:
        if operation.ended:
            self._operations.pop(operation, None)

    # Completions

    def _take_completions(self) -> bool:
        count = self._completion_queue.poll(self._completions)
        received: list[int] = []
        for completion in self._completions[:count]:
            if completion.status != WcStatus.SUCCESS:
                self.fail(TransferError(_describe(completion)))
            elif completion.opcode == WcOpcode.RECV:
                slot = int(completion.wr_id)
                self._take_response(slot, int(completion.byte_len))
                received.append(slot)
            else:
                self._take_sent(int(completion.wr_id))
            if self._failure is not None:
                return True
        if received:
            self._receive_ring.post_recv(self._queue_pair, received)
        return count > 0

    def _take_sent(self, index: int) -> None:
        slot = self._slots[index]
        slot.sent = True
        self._retire(index, slot)

    def _take_response(self, receive_slot: int, length: int) -> None:
        try:
            response = parse_response(self._receive_ring[receive_slot][:length])
            index = self._require_expected(response)
            slot = self._slots[index]
            assert slot.command is not None  # the id is forgotten with the command
            operation = slot.command.operation
            following = slot.command.complete(response)
        except ProtocolError as error:
            self.fail(ProtocolError(f"{error}; the connection was given up, connect anew"))
            return
        slot.command = None
        del self._slot_of_id[slot.command_id]
        self._retire(index, slot)
        if following is not None:
            self._waiting.append(following)
        self._forget_if_ended(operation)

    def _require_expected(self, response: Response) -> int:
        """The slot that a response answers; ``ProtocolError`` unless it can be its answer."""
        if response.boot_id != self._peer.boot_id or response.session != self._peer.session_id:
            raise ProtocolError(
                f"a response of session {response.session}, boot {response.boot_id.hex()} came "
                f"to session {self._peer.session_id}, boot {self._peer.boot_id.hex()}"
            )
        index = self._slot_of_id.get(response.command_id)
        if index is None:
            raise ProtocolError(f"a response came to command {response.command_id}, not in flight")
        command = self._slots[index].command
        assert command is not None
        if response.opcode != command.operation.opcode:
            raise ProtocolError(
                f"command {response.command_id} was 0x{command.operation.opcode:02x}, "
                f"its response says 0x{response.opcode:02x}"
            )
        wanted = 0 if response.opcode == Opcode.MATCH else len(command.keys)
        if response.status is CommandStatus.OK and len(response.results) != wanted:
            raise ProtocolError(f"{len(response.results)} results came, {wanted} were due")
        return index

    def _retire(self, index: int, slot: _Slot) -> None:
        if slot.sent and slot.command is None:
            del self._slots[index]
            self._free_slots.append(index)

    # Deadlines

    def _expire(self, now_ns: int) -> None:
        sent = [slot.command for slot in self._slots.values() if slot.command]
        overdue = [command for command in sent if command.operation.deadline_ns <= now_ns]
        if overdue:
            # The agent may still write to their memory, and only closing prevents that.
            self._give_up_on(overdue)
            return
        for command in [c for c in self._waiting if c.operation.deadline_ns <= now_ns]:
            self._waiting.remove(command)
            name = command.operation.opcode.name
            command.abort(DeadlineError(f"{name} got no credit in time; it was not sent"))
            self._forget_if_ended(command.operation)

    def _give_up_on(self, overdue: list[Command]) -> None:
        name = overdue[0].operation.opcode.name
        late = DeadlineError(f"{name} did not end in time; the connection was given up")
        for command in overdue:
            command.operation.note(same_error(late))
        self.fail(TransferError(f"the connection was given up: a {name} did not end in time"))

    # Sending

    def _send_waiting(self) -> bool:
        slots: list[int] = []
        lengths: list[int] = []
        while self._failure is None and self._waiting and self._free_slots:
            command = self._waiting[0]
            if not command.prepare():
                break
            slot = self._free_slots.pop()
            slots.append(slot)
            lengths.append(self._emit(slot, command))
            self._waiting.popleft()
        if slots:
            self._post(slots, lengths)
        return bool(slots)

    def _post(self, slots: list[int], lengths: list[int]) -> None:
        try:
            self._send_ring.post_send(self._queue_pair, slots, lengths)
        except VerbsError as error:
            self.fail(TransferError(f"the NIC takes no commands ({error}); connect anew"))

    def _emit(self, slot: int, command: Command) -> int:
        self._last_id = (self._last_id + 1) & _ID_MASK
        command_id = self._last_id
        self._slots[slot] = _Slot(command_id, command)
        self._slot_of_id[command_id] = slot
        operation = command.operation
        return emit_command(
            self._send_ring[slot],
            opcode=operation.opcode,
            command_id=command_id,
            session=self._peer.session_id,
            keys=command.keys,
            descriptors=command.descriptors,
            flags=operation.flags,
        )


def _describe(completion: RecordArray) -> str:
    try:
        status = WcStatus(int(completion.status)).name
    except ValueError:
        status = str(int(completion.status))
    return f"the data path to the agent failed ({status}); connect anew"
