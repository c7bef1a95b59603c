"""The capsule server: turns completions into work on the block store and into responses.

Kernels do all that (``_serve_kernels``); this class owns their state, opens and closes
sessions, and looks after the ones that are in trouble. It starts no thread; its owner calls
all methods but ``interrupt`` from one, which therefore owns queue pairs and sessions without a
lock. The store it may share with other servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from dpu_agent.control.core import RemoteRegion
from dpu_agent.data._awaited_kernels import copy_awaited
from dpu_agent.data._notice_kernels import NOTICED_CHAINS, NOTICED_KEYS, take_chain
from dpu_agent.data._serve_kernels import ResumedCommand, resume, run, serve_once
from dpu_agent.data.awaited import AwaitedBlocks, ColderTier
from dpu_agent.data.blocks import Blocks
from dpu_agent.data.connection import Connection, completions_max
from dpu_agent.data.counting import OTHER_TENANTS, LaneCounts
from dpu_agent.data.failures import explain
from dpu_agent.data.state import (
    CHUNK_REQUESTS,
    CONNECTION,
    POLL_BATCH,
    SERVER,
    Serving,
    Trouble,
)
from kvlane._clock_kernels import SCRATCH_WORDS
from kvlane.capsule import Opcode
from kvlane.errors import CapacityError, ConfigError, SessionNotFoundError, VerbsError
from kvlane.limits import CREDIT_SLACK, KEY_BYTES, MAX_KEYS_PER_CAPSULE, MAX_QUEUE_DEPTH
from kvlane.verbs.calls import FAULT
from kvlane.verbs.protocols import CompletionQueue, Device, QpEndpoint
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records

_OPCODES = 256
_OVERLAP = 2
"""A session may close and its successor open before the first one's flushed completions are
polled."""
_log = logging.getLogger(__name__)


def _create_cq(device: Device, max_sessions: int, max_queue_depth: int) -> CompletionQueue:
    """One for all sessions; ``ConfigError`` where the device has none so large."""
    try:
        return device.create_cq(_OVERLAP * max_sessions * completions_max(max_queue_depth))
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
        colder: ColderTier | None = None,
    ) -> None:
        """``on_failure(session id, reason)`` tells of a session that ended by itself; whoever
        gives blocks with a colder tier says who looks after that."""
        self._device = device
        self._blocks = blocks
        self._on_failure = on_failure
        self._colder = colder
        self._cq = _create_cq(device, max_sessions, max_queue_depth)
        self._connections = new_records(CONNECTION, max_sessions)
        self._executed = np.zeros(_OPCODES, np.int64)
        self._completions = new_records(WC, POLL_BATCH)
        self._requests = new_records(SEND_WR, CHUNK_REQUESTS)
        self._receives = new_records(RECV_WR, MAX_QUEUE_DEPTH + CREDIT_SLACK)
        self._boot_id = np.frombuffer(boot_id, np.uint8).copy()
        self._clock = np.zeros(SCRATCH_WORDS, np.int64)
        slots = max_sessions * (max_queue_depth + CREDIT_SLACK)
        self.counts = LaneCounts(max_sessions, slots)
        """Written by the kernels; any thread may read them."""
        self._awaiting = np.zeros((slots, 2), np.int64)
        self._told_keys = np.zeros((MAX_KEYS_PER_CAPSULE, KEY_BYTES), np.uint8)
        self._noticed = np.zeros(NOTICED_CHAINS, np.int64)
        self._noticed_keys = np.zeros((NOTICED_KEYS, KEY_BYTES), np.uint8)
        self._server = new_records(SERVER, 1)
        self._fill_server_record()
        self._by_id: dict[int, Connection] = {}
        self._by_index: dict[int, Connection] = {}
        self._serving = Serving(
            store=blocks.store.arrays,
            cold=blocks.cold.arrays,
            calls=device.calls,
            server=int(self._server.ctypes.data),
            connections=int(self._connections.ctypes.data),
            connection_count=max_sessions,
        )

    def _fill_server_record(self) -> None:
        record = self._server[0]
        record.cq = self._cq.handle
        record.completions = self._completions.ctypes.data
        record.requests = self._requests.ctypes.data
        record.receives = self._receives.ctypes.data
        record.pool_addr, record.pool_lkey = self._blocks.pool.addr, self._blocks.pool.lkey
        record.boot_id = self._boot_id.ctypes.data
        record.executed = self._executed.ctypes.data
        record.latencies = self.counts.latencies.ctypes.data
        record.latest = self.counts.latest.ctypes.data
        record.answers = self.counts.answers.ctypes.data
        record.clock = self._clock.ctypes.data
        record.awaiting = self._awaiting.ctypes.data
        record.awaiting_size = len(self._awaiting)
        record.noticed = self._noticed.ctypes.data
        record.noticed_keys = self._noticed_keys.ctypes.data
        if self._colder is not None:
            record.low_water = self._colder.low_water_blocks
            record.notices = self._colder.notices

    @property
    def executed(self) -> dict[str, int]:
        """Commands executed, by name of opcode."""
        counts = {opcode.name: int(self._executed[opcode]) for opcode in Opcode}
        return {name: count for name, count in counts.items() if count}

    @property
    def in_flight(self) -> int:
        """Commands whose payload moves or that await something; any thread may ask."""
        return int(self._connections["in_flight"][self._connections["in_use"] != 0].sum())

    @property
    def unread(self) -> int:
        """Commands that have arrived and wait for a command slot; any thread may ask."""
        table = self._connections[self._connections["in_use"] != 0]
        return int((table["arrived_tail"] - table["arrived_head"]).sum())

    def open(
        self,
        session_id: int,
        remote: QpEndpoint,
        regions: Sequence[RemoteRegion],
        queue_depth: int,
        tenant: int = OTHER_TENANTS,
    ) -> QpEndpoint:
        """Connect a session's queue pair; return the agent's end of it.

        ``tenant`` is the row of ``counts.tenants`` that the session is counted in.
        """
        index = self._free_index()
        self._connections[index] = np.zeros(1, CONNECTION)[0]
        self._connections[index].index = index
        self._connections[index].tenant = self.counts.tenants[tenant].ctypes.data
        self.counts.begin_session(index)
        connection = Connection(
            self._device, self._cq, self._connections[index], session_id, queue_depth
        )
        try:
            connection.regions.add(regions)
            connection.post_first_receives(self._serving, index)
            connection.qp.connect(remote)
        except BaseException:
            connection.close(self._serving)
            raise
        self._by_id[session_id] = connection
        self._by_index[index] = connection
        return connection.qp.endpoint

    def close(self, session_id: int) -> None:
        """End a session, if it is there; afterwards no transfer of it runs."""
        connection = self._by_id.pop(session_id, None)
        if connection is not None:
            self._by_index = {i: c for i, c in self._by_index.items() if c is not connection}
            connection.close(self._serving)

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
        """Handle the completions that are there now; True when there were any."""
        with self._device.hold():
            count = serve_once(self._serving, now)
        self._look_after(count)
        return count > 0

    def run(self, spin_ns: int, limit_ns: int, wake_fd: int) -> None:
        """Serve for up to ``limit_ns``; less when ``interrupt`` is called and ``wake_fd`` is
        readable, or another thread wants the device. Without work it spins for ``spin_ns`` and
        then sleeps."""
        with self._device.hold():
            result = run(self._serving, spin_ns, limit_ns, wake_fd)
        self._look_after(result)

    def resume(self, awaited: AwaitedBlocks, now: int, *, succeeded: bool = True) -> None:
        """What a command awaits has come about, as far as it will; ``succeeded`` says of a DELETE
        whether its blocks are gone for good. A session that has ended is no error."""
        which = ResumedCommand(awaited.connection, awaited.serial, awaited.slot, awaited.number)
        with self._device.hold():
            resume(self._serving, which, succeeded, now)
        self._look_after(0)

    def interrupt(self, wanted: bool) -> None:
        """Let ``run`` return, or go on. Any thread may call."""
        self._server[0].interrupt = int(wanted)

    def _free_index(self) -> int:
        for index in range(len(self._connections)):
            if index not in self._by_index:
                return index
        raise CapacityError(f"all {len(self._connections)} sessions are taken; close one")

    def _require(self, session_id: int) -> Connection:
        try:
            return self._by_id[session_id]
        except KeyError:
            raise SessionNotFoundError(
                f"sessions/{session_id} is not open; open a new session"
            ) from None

    def _look_after(self, result: int) -> None:
        """Raise what the device failed with, end sessions in trouble, tell who waits."""
        if result == FAULT:
            raise self._device.take_fault() or VerbsError("the device failed; open it anew")
        self._tell_policy_fault()
        self._tell_chains()
        if not self._server[0].attention:
            return
        self._server[0].attention = 0
        self._hand_over()
        for index, connection in list(self._by_index.items()):
            record = self._connections[index]
            if record.trouble != Trouble.NONE:
                self._fail(connection, self._reason(record.trouble, int(record.cause)))
            else:
                connection.settle_waits()

    def _hand_over(self) -> None:
        """Tell of what concerns the colder tier since the last time."""
        colder, record = self._colder, self._server[0]
        if colder is None:
            return
        if record.is_short:
            record.is_short = 0
            colder.press()
        while record.awaiting_head < record.awaiting_tail:
            index, slot = self._awaiting[record.awaiting_head % record.awaiting_size].tolist()
            record.awaiting_head += 1
            connection = self._connections[index]
            opcode, number, count = copy_awaited(connection, slot, self._told_keys)
            if count == 0:
                continue
            keys = self._told_keys[:count].copy()
            serial = int(connection.serial)
            colder.take(AwaitedBlocks(Opcode(opcode), keys, index, serial, slot, number))

    def _tell_chains(self) -> None:
        """Tell of the chains that were asked for since the last time."""
        colder, record = self._colder, self._server[0]
        if colder is None:
            return
        while record.noticed_head != record.noticed_tail:
            count = take_chain(self._serving.server, self._told_keys)
            colder.notice(self._told_keys[:count].copy())

    def _tell_policy_fault(self) -> None:
        """Log why the eviction policy has failed, once an agent."""
        fault = self._blocks.store.take_policy_fault()
        if fault is not None:
            _log.error(
                "the eviction policy %s failed and is not used any more; until the agent is "
                "started anew, blocks are evicted in the order of slots",
                type(self._blocks.store.policy).__name__,
                exc_info=fault,
            )

    def _reason(self, trouble: int, cause: int) -> str:
        """Why a session has to end, for people."""
        if trouble == Trouble.BROKEN:
            return explain(cause)
        if trouble == Trouble.REFUSED:
            error = self._device.take_fault()
            if error is None or isinstance(error, VerbsError):
                return f"the NIC refused work of this session: {error or 'its queue is full'}"
            _log.error("the NIC failed", exc_info=error)
        else:
            policy = type(self._blocks.store.policy).__name__
            _log.error("%s: slot %d, policy %s", Trouble(trouble).name, cause, policy)
        return "fault of the agent; its log has the details"

    def _fail(self, connection: Connection, reason: str) -> None:
        _log.warning("sessions/%d ends: %s", connection.session_id, reason)
        self.close(connection.session_id)
        self._on_failure(connection.session_id, reason)
