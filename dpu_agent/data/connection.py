"""The data path's half of a session: queue pair, buffers, regions, and its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from dpu_agent.data._posting_kernels import post_receives
from dpu_agent.data._region_use_kernels import transfers_by
from dpu_agent.data._transfer_kernels import give_up_transfers
from dpu_agent.data._work_id_kernels import SERIAL_MASK
from dpu_agent.data.capsule_io import CapsuleBuffers
from dpu_agent.data.regions import RegionTable
from dpu_agent.data.state import (
    ARRIVAL_WORDS,
    COMMAND,
    POSTED,
    RESPONSE_BYTES,
    SEND_QUEUE_DEPTH,
    CommandState,
    Serving,
)
from kvlane.errors import VerbsError
from kvlane.limits import CREDIT_SLACK, MAX_CAPSULE_BYTES, MAX_KEYS_PER_CAPSULE
from kvlane.verbs.enums import AccessFlags
from kvlane.verbs.protocols import CompletionQueue, Device, QpOptions
from kvlane.verbs.records import new_records

_RUNNING = (CommandState.TRANSFER, CommandState.AWAITING)


def completions_max(queue_depth: int) -> int:
    """Completions that one session can have queued: its whole queues, flushed."""
    return SEND_QUEUE_DEPTH + queue_depth + CREDIT_SLACK


class Connection:
    """A session on the data path.

    A command occupies a *command slot* from when it is read until its response is known
    to be delivered, and the slot's response buffer with it, so a command that has started
    can always be answered. A host that does not let responses be delivered runs out of
    slots; its further capsules wait unread (``arrived``), and then it runs out of receive
    buffers. It never costs more memory than at the start.
    """

    def __init__(
        self,
        device: Device,
        cq: CompletionQueue,
        record: Any,
        session_id: int,
        queue_depth: int,
    ) -> None:
        """``record`` is the connection's own in the CONNECTION table, all zero but its index and
        its tenant."""
        self.session_id = session_id
        self._record = record
        self._arrays: list[Any] = []
        self._region_waits: list[tuple[set[int], Callable[[], None]]] = []
        count = queue_depth + CREDIT_SLACK
        with ExitStack() as resources:
            self._capsules = CapsuleBuffers(
                device, count, MAX_CAPSULE_BYTES, AccessFlags.LOCAL_WRITE
            )
            resources.callback(self._capsules.close)
            self._responses = CapsuleBuffers(device, count, RESPONSE_BYTES, AccessFlags(0))
            resources.callback(self._responses.close)
            options = QpOptions(max_send_wr=SEND_QUEUE_DEPTH, max_recv_wr=count)
            self.qp = device.create_qp(cq, options)
            # Last in, first out: the queue pair goes before the memory that it uses.
            resources.callback(self.qp.close)
            self._fill_record(session_id, queue_depth, count)
            self.regions = RegionTable(record)
            self._resources = resources.pop_all()

    def _fill_record(self, session_id: int, queue_depth: int, count: int) -> None:
        record = self._record
        record.serial = session_id & SERIAL_MASK
        record.session = session_id
        record.qp = self.qp.handle
        record.queue_depth = queue_depth
        record.slot_count = count
        record.capsules, record.receive_lkey = self._capsules.addr, self._capsules.lkey
        record.responses, record.response_lkey = self._responses.addr, self._responses.lkey
        self._commands = new_records(COMMAND, count)
        record.commands = self._commands.ctypes.data
        record.block_slots = self._keep(np.zeros(count * MAX_KEYS_PER_CAPSULE, np.int64))
        record.arrived = self._keep(np.zeros(ARRIVAL_WORDS * count, np.int64))
        record.free = self._keep(np.arange(count))
        record.free_count = count
        record.returned = self._keep(np.arange(count))
        record.returned_count = count
        record.outgoing = self._keep(np.zeros(count, np.int64))
        record.room = SEND_QUEUE_DEPTH
        record.posted = self._keep(new_records(POSTED, SEND_QUEUE_DEPTH))
        record.in_use = 1

    def _keep(self, array: Any) -> int:
        """The address of an array, which lives as long as the connection."""
        self._arrays.append(array)
        return int(array.ctypes.data)

    def post_first_receives(self, serving: Serving, index: int) -> None:
        """Post all receive buffers; commands may arrive as soon as the host is connected."""
        post_receives(serving, index, self._record)
        if self._record.trouble:
            raise VerbsError("the NIC takes no receive buffers; open the session again")

    def settle_waits(self) -> None:
        """Tell those who wait for transfers that have ended."""
        running = self._running()
        for users, _ in self._region_waits:
            users &= running
        over = [tell for users, tell in self._region_waits if not users]
        self._region_waits = [wait for wait in self._region_waits if wait[0]]
        self._record.is_awaited = int(bool(self._region_waits))
        for tell in over:
            tell()

    def deregister(self, rkeys: Sequence[int], on_ended: Callable[[], None]) -> None:
        """Refuse the regions to new commands; ``on_ended`` when no present one uses them."""
        self.regions.remove(rkeys)
        users = set(transfers_by(self._record, np.array(rkeys, np.int64)).tolist())
        self._region_waits.append((users, on_ended))
        self.settle_waits()

    def _running(self) -> set[int]:
        """The numbers of the transfers that have not ended."""
        commands = self._commands
        return set(commands["number"][np.isin(commands["state"], _RUNNING)].tolist())

    def close(self, serving: Serving) -> None:
        """Destroy the queue pair, and only then let go of what its transfers held.

        After the queue pair is gone no late READ can land in a slot that has a new owner,
        and no late WRITE in memory that the host has been told is its own again.
        """
        record = self._record
        try:
            self._close_queue_pair_and_give_up(serving)
        finally:
            record.in_use = 0
            waits, self._region_waits = self._region_waits, []
            for _, tell in waits:
                tell()

    def _close_queue_pair_and_give_up(self, serving: Serving) -> None:
        # The capsules are read for the last time when their transfers are given up.
        self.qp.close()
        give_up_transfers(serving, self._record)
        self._resources.close()
