"""The capsule server: turns completions into work on the block store and into responses.

It reads no clock, starts no thread and waits for nothing. Its owner calls ``poll`` and all
other methods from one thread, which therefore owns store, queue pairs and sessions without
a lock. Every command that arrives gets exactly one response, unless its session ends first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpu_agent.control.core import RemoteRegion
from dpu_agent.data.commands import TRANSFERS, Blocks, Transfer, answer
from dpu_agent.data.connection import Connection, completions_max
from dpu_agent.data.failures import explain, first_causes
from dpu_agent.data.work_ids import WorkKind, unpack_work_id
from kvlane.capsule import (
    CapsuleError,
    Command,
    CommandStatus,
    emit_response,
    parse_command,
)
from kvlane.errors import ConfigError, SessionNotFoundError, VerbsError
from kvlane.verbs.enums import WcStatus
from kvlane.verbs.protocols import CompletionQueue, Device, QpEndpoint
from kvlane.verbs.records import WC, RecordArray, new_records

_POLL_BATCH = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the response to one command says."""

    opcode: int
    command_id: int
    status: CommandStatus
    result: int = 0
    results: Any = None


def _create_cq(device: Device, max_sessions: int, max_queue_depth: int) -> CompletionQueue:
    """One for all sessions; ``ConfigError`` where the device has none so large.

    Twice what they need: a session may close and its successor open before the first one's
    flushed completions are polled.
    """
    try:
        return device.create_cq(2 * max_sessions * completions_max(max_queue_depth))
    except VerbsError as error:
        raise ConfigError(
            f"{error}; lower sessions.max_sessions, which is {max_sessions}, or "
            f"sessions.max_queue_depth, which is {max_queue_depth}"
        ) from error


class CapsuleServer:
    """All sessions' data path over one device, one completion queue and one store."""

    def __init__(
        self,
        device: Device,
        blocks: Blocks,
        *,
        boot_id: bytes,
        max_sessions: int,
        max_queue_depth: int,
        on_failure: Callable[[int, str], None],
    ) -> None:
        """``on_failure(session id, reason)`` tells of a session that ended by itself."""
        self._device = device
        self._blocks = blocks
        self._boot_id = boot_id
        self._on_failure = on_failure
        self._cq = _create_cq(device, max_sessions, max_queue_depth)
        self._completions = new_records(WC, _POLL_BATCH)
        self._by_id: dict[int, Connection] = {}
        self._by_qp: dict[int, Connection] = {}
        self._executed: Counter[str] = Counter()

    @property
    def executed(self) -> dict[str, int]:
        """Commands executed, by name of opcode."""
        return dict(self._executed)

    def open(
        self,
        session_id: int,
        remote: QpEndpoint,
        regions: Sequence[RemoteRegion],
        queue_depth: int,
    ) -> QpEndpoint:
        """Connect a session's queue pair; return the agent's end of it."""
        connection = Connection(self._device, self._cq, session_id, queue_depth)
        try:
            endpoint = connection.connect(remote, regions)
        except BaseException:
            connection.close()
            raise
        self._by_id[session_id] = connection
        self._by_qp[endpoint.qp_num] = connection
        return endpoint

    def close(self, session_id: int) -> None:
        """End a session, if it is there; afterwards no transfer of it runs."""
        connection = self._by_id.pop(session_id, None)
        if connection is not None:
            del self._by_qp[connection.qp.endpoint.qp_num]
            connection.close()

    def close_all(self) -> None:
        """End every session, and the completion queue with them."""
        for session_id in list(self._by_id):
            self.close(session_id)
        self._cq.close()

    def register(self, session_id: int, regions: Sequence[RemoteRegion]) -> None:
        """Add regions; ``SessionNotFoundError``, ``SessionError``, ``CapacityError``."""
        self._require(session_id).regions.add(regions)

    def deregister(
        self, session_id: int, rkeys: Sequence[int], on_ended: Callable[[], None]
    ) -> None:
        """Take regions away; ``on_ended()`` once no transfer uses them, maybe at once."""
        self._require(session_id).deregister(rkeys, on_ended)

    def poll(self, now: int) -> bool:
        """Handle completions that are there; True when there were any."""
        count = self._cq.poll(self._completions)
        if count == 0:
            return False
        batch = self._completions[:count]
        causes = first_causes(batch)
        touched: dict[int, Connection] = {}
        for wr_id, status, nbytes, qp_num in _columns(batch):
            kind, serial, slot = unpack_work_id(wr_id)
            connection = self._by_qp.get(qp_num)
            if connection is None or connection.serial != serial:
                continue  # flushed by a queue pair that is gone
            if status != WcStatus.SUCCESS:
                self._fail(connection, explain(causes[qp_num]))
                continue
            touched[qp_num] = connection
            with self._contained(connection):
                self._completed(connection, kind, slot, nbytes, now)
        for qp_num, connection in touched.items():
            if self._by_qp.get(qp_num) is connection:
                with self._contained(connection):
                    connection.ring.post(connection.qp)
        return True

    def _require(self, session_id: int) -> Connection:
        try:
            return self._by_id[session_id]
        except KeyError:
            raise SessionNotFoundError(
                f"sessions/{session_id} is not open; open a new session"
            ) from None

    @contextmanager
    def _contained(self, connection: Connection) -> Iterator[None]:
        """Whatever a step of one session raises ends that session and no other."""
        try:
            yield
        except VerbsError as error:
            self._fail(connection, f"the NIC refused work of this session: {error}")
        except Exception:
            _log.exception("sessions/%d: fault of the agent", connection.session_id)
            self._fail(connection, "fault of the agent; its log has the details")

    def _fail(self, connection: Connection, reason: str) -> None:
        _log.warning("sessions/%d ends: %s", connection.session_id, reason)
        self.close(connection.session_id)
        self._on_failure(connection.session_id, reason)

    def _completed(
        self, connection: Connection, kind: WorkKind, slot: int, nbytes: int, now: int
    ) -> None:
        if kind is WorkKind.RECEIVE:
            connection.arrived.append((slot, nbytes))
        else:
            connection.send_queue.retire()
            if kind is WorkKind.RESPONSE:
                connection.free_slots.append(slot)
            elif kind is WorkKind.TRANSFER:
                self._transferred(connection, slot, now)
        while connection.arrived and connection.free_slots:
            buffer, length = connection.arrived.popleft()
            capsule = connection.ring.capsule(buffer, length)
            self._execute(connection, connection.free_slots.pop(), capsule, now)
            connection.ring.give_back(buffer)

    def _execute(
        self, connection: Connection, slot: int, capsule: NDArray[np.uint8], now: int
    ) -> None:
        """Run one command: send its response, or start the transfer that will send it."""
        command_id, opcode = 0, 0
        try:
            command = parse_command(capsule)
            command_id, opcode = command.command_id, int(command.opcode)
            _require_admissible(connection, command)
            outcome = self._run(connection, command, now)
            self._executed[command.opcode.name] += 1
        except CapsuleError as error:
            _log.debug("sessions/%d: command refused: %s", connection.session_id, error)
            outcome = _Reply(error.opcode, error.command_id, error.status)
        except Exception:
            _log.exception("sessions/%d: command %d failed", connection.session_id, command_id)
            outcome = _Reply(opcode, command_id, CommandStatus.INTERNAL)
        # Beyond this point a command may be half posted and cannot be answered otherwise, so
        # what fails here is not caught: it ends the session.
        if isinstance(outcome, _Reply):
            self._respond(connection, slot, outcome)
        else:
            connection.start(slot, *outcome)

    def _run(
        self, connection: Connection, command: Command, now: int
    ) -> _Reply | tuple[Transfer, RecordArray]:
        """The reply to a command, or the transfer that it needs and its requests."""
        if command.opcode not in TRANSFERS:
            result, statuses = answer(command, self._blocks.store)
            opcode = int(command.opcode)
            return _Reply(opcode, command.command_id, CommandStatus.OK, result, statuses)
        transfer = TRANSFERS[command.opcode](command, connection.regions, self._blocks)
        try:
            transfer.begin(command, now)
            requests = transfer.requests()
            if len(requests):
                return transfer, requests
            transfer.finish(now)
        except Exception:
            transfer.give_up()
            raise
        return _success(transfer)

    def _transferred(self, connection: Connection, slot: int, now: int) -> None:
        """All READs or WRITEs of a command are done; only now may its response leave."""
        transfer = connection.ended(slot)
        try:
            transfer.finish(now)
            reply = _success(transfer)
        except Exception:
            command_id = transfer.command_id
            _log.exception("sessions/%d: command %d failed", connection.session_id, command_id)
            transfer.give_up()
            reply = _Reply(int(transfer.opcode), command_id, CommandStatus.INTERNAL)
        self._respond(connection, slot, reply)

    def _respond(self, connection: Connection, slot: int, reply: _Reply) -> None:
        """Send the one response of a command."""
        nbytes = emit_response(
            connection.responses.buffer(slot),
            opcode=reply.opcode,
            status=reply.status,
            command_id=reply.command_id,
            session=connection.session_id,
            boot_id=self._boot_id,
            result=reply.result,
            results=reply.results,
        )
        connection.respond(slot, nbytes)


def _success(transfer: Transfer) -> _Reply:
    return _Reply(
        int(transfer.opcode),
        transfer.command_id,
        CommandStatus.OK,
        transfer.count_done(),
        transfer.results,
    )


def _require_admissible(connection: Connection, command: Command) -> None:
    """``CapsuleError`` for a command of another session, or one beyond the credits."""
    if command.session != connection.session_id:
        raise CapsuleError(
            CommandStatus.BAD_SESSION,
            command.command_id,
            command.opcode,
            f"session {command.session} on the queue pair of {connection.session_id}",
        )
    if len(connection.transfers) >= connection.queue_depth:
        raise CapsuleError(
            CommandStatus.TOO_MANY_IN_FLIGHT,
            command.command_id,
            command.opcode,
            f"{connection.queue_depth} commands are in flight, as many as were granted",
        )


def _columns(batch: RecordArray) -> Iterator[tuple[int, int, int, int]]:
    """wr_id, status, byte_len and qp_num of each completion, as Python integers."""
    names = ("wr_id", "status", "byte_len", "qp_num")
    return zip(*(batch[name].tolist() for name in names), strict=True)
