"""The data path's half of a session: queue pair, buffers, regions, commands in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from dpu_agent.control.core import RemoteRegion
from dpu_agent.data.capsule_io import ReceiveRing, ResponseBuffers
from dpu_agent.data.commands import Transfer
from dpu_agent.data.regions import RegionTable
from dpu_agent.data.send_queue import SendQueue
from dpu_agent.data.work_ids import SERIAL_MASK, WorkKind, pack_work_id
from kvlane.limits import CREDIT_SLACK
from kvlane.verbs.enums import SendFlags
from kvlane.verbs.protocols import CompletionQueue, Device, QpEndpoint, QpOptions
from kvlane.verbs.records import RecordArray

SEND_QUEUE_DEPTH = 256


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
        self, device: Device, cq: CompletionQueue, session_id: int, queue_depth: int
    ) -> None:
        count = queue_depth + CREDIT_SLACK
        self.session_id = session_id
        self.serial = session_id & SERIAL_MASK
        self.queue_depth = queue_depth
        self.regions = RegionTable()
        self.transfers: dict[int, Transfer] = {}
        """Commands in flight by command slot."""
        self.free_slots = list(range(count))
        self.arrived: deque[tuple[int, int]] = deque()
        """Receive buffer and bytes of capsules that were not read yet."""
        self._region_waits: list[tuple[set[int], Callable[[], None]]] = []
        with ExitStack() as resources:
            self.ring = ReceiveRing(device, count, self.serial)
            resources.callback(self.ring.close)
            self.responses = ResponseBuffers(device, count, self.serial)
            resources.callback(self.responses.close)
            options = QpOptions(max_send_wr=SEND_QUEUE_DEPTH, max_recv_wr=count)
            self.qp = device.create_qp(cq, options)
            # Last in, first out: the queue pair goes before the memory that it uses.
            resources.callback(self.qp.close)
            self._resources = resources.pop_all()
        self.send_queue = SendQueue(self.qp, SEND_QUEUE_DEPTH)

    def connect(self, remote: QpEndpoint, regions: Sequence[RemoteRegion]) -> QpEndpoint:
        """Connect to the host; commands may arrive as soon as it knows the returned endpoint."""
        self.regions.add(regions)
        self.ring.post(self.qp)
        self.qp.connect(remote)
        return self.qp.endpoint

    def start(self, slot: int, transfer: Transfer, requests: RecordArray) -> None:
        """Put a command in flight by its requests, of which there is at least one."""
        requests["wr_id"] = pack_work_id(WorkKind.PART, self.serial, slot)
        requests["wr_id"][-1] = pack_work_id(WorkKind.TRANSFER, self.serial, slot)
        requests["send_flags"][-1] = SendFlags.SIGNALED
        self.transfers[slot] = transfer
        self.send_queue.submit(requests)

    def respond(self, slot: int, nbytes: int) -> None:
        """Send the response that stands in the slot's buffer."""
        self.send_queue.submit(self.responses.request(slot, nbytes))

    def ended(self, slot: int) -> Transfer:
        """The transfer in this slot touches host memory no more; tell who waits for that."""
        transfer = self.transfers.pop(slot)
        for users, _ in self._region_waits:
            users.discard(slot)
        over = [tell for users, tell in self._region_waits if not users]
        self._region_waits = [wait for wait in self._region_waits if wait[0]]
        for tell in over:
            tell()
        return transfer

    def deregister(self, rkeys: Sequence[int], on_ended: Callable[[], None]) -> None:
        """Refuse the regions to new commands; ``on_ended`` when no present one uses them."""
        self.regions.remove(rkeys)
        users = {slot for slot, transfer in self.transfers.items() if transfer.uses(rkeys)}
        if users:
            self._region_waits.append((users, on_ended))
        else:
            on_ended()

    def close(self) -> None:
        """Destroy the queue pair, and only then let go of what its transfers held.

        After the queue pair is gone no late READ can land in a slot that has a new owner,
        and no late WRITE in memory that the host has been told is its own again.
        """
        self._resources.close()
        for transfer in self.transfers.values():
            transfer.give_up()
        self.transfers.clear()
        waits, self._region_waits = self._region_waits, []
        for _, tell in waits:
            tell()
