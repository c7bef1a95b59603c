"""What a connection holds of its NIC: queue pair, capsule buffers, staging."""

from __future__ import annotations

from contextlib import ExitStack

from host_driver.config import DriverConfig
from host_driver.memory import REMOTE_ACCESS, Region
from host_driver.queue import CommandQueue, Peer
from host_driver.rings import CapsuleRing
from host_driver.staging import Staging
from kvlane.verbs.backends import open_device
from kvlane.verbs.protocols import QpEndpoint, QpOptions


class DataPath:
    """An opened NIC with an RC queue pair, first unconnected."""

    def __init__(self, config: DriverConfig) -> None:
        depth = config.queue_depth
        with ExitStack() as undo:
            self.device = open_device(config.verbs, config.device_options)
            undo.callback(self.device.close)
            # Room for every entry of both queues, so that a flush cannot overflow it.
            self._completion_queue = self.device.create_cq(2 * depth)
            undo.callback(self._completion_queue.close)
            memory = self.device.alloc(config.staging_bytes)
            region = Region(self.device.register(memory, REMOTE_ACCESS), memory, announced=True)
            undo.callback(region.memory_region.close)
            self.staging = Staging(region)
            self._send_ring = CapsuleRing(self.device, depth)
            undo.callback(self._send_ring.close)
            self._receive_ring = CapsuleRing(self.device, depth)
            undo.callback(self._receive_ring.close)
            options = QpOptions(max_send_wr=depth, max_recv_wr=depth)
            self._queue_pair = self.device.create_qp(self._completion_queue, options)
            self._undo = undo.pop_all()
        self._queue: CommandQueue | None = None

    @property
    def endpoint(self) -> QpEndpoint:
        """What the agent must know to connect."""
        return self._queue_pair.endpoint

    def connect(self, remote: QpEndpoint, peer: Peer, depth: int) -> CommandQueue:
        """Connect with the agent's queue pair and make the queue of commands over it."""
        self._queue_pair.connect(remote)
        self._queue = CommandQueue(
            self.device,
            self._queue_pair,
            self._completion_queue,
            self._send_ring,
            self._receive_ring,
            peer,
            depth,
        )
        return self._queue

    def close(self) -> None:
        """Release everything; a queue that was made has closed the queue pair as it failed."""
        if self._queue is None:
            self._queue_pair.close()
        self._undo.close()
