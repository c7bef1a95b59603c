"""The registered buffers that capsules are sent from and received into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvlane.limits import MAX_CAPSULE_BYTES
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import Device, MemoryRegion, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, new_records


class CapsuleRing:
    """``depth`` buffers of a capsule each, in one region that no peer can reach."""

    def __init__(self, device: Device, depth: int) -> None:
        self._memory = device.alloc(depth * MAX_CAPSULE_BYTES)
        self._region: MemoryRegion = device.register(self._memory, AccessFlags.LOCAL_WRITE)
        self._buffers = self._memory.reshape(depth, MAX_CAPSULE_BYTES)

    def __len__(self) -> int:
        return len(self._buffers)

    def __getitem__(self, slot: int) -> NDArray[np.uint8]:
        buffer: NDArray[np.uint8] = self._buffers[slot]
        return buffer

    def post_send(self, queue_pair: QueuePair, slots: Sequence[int], lengths: list[int]) -> None:
        """Send the first ``lengths[i]`` bytes of each slot; the slot is the ``wr_id``."""
        requests = new_records(SEND_WR, len(slots))
        requests.wr_id = slots
        requests.opcode = WrOpcode.SEND
        requests.send_flags = SendFlags.SIGNALED
        requests.local_addr = self._addrs(slots)
        requests.length = lengths
        requests.lkey = self._region.lkey
        queue_pair.post_send(requests)

    def post_recv(self, queue_pair: QueuePair, slots: Sequence[int]) -> None:
        """Receive into these slots; the slot is the ``wr_id``."""
        requests = new_records(RECV_WR, len(slots))
        requests.wr_id = slots
        requests.local_addr = self._addrs(slots)
        requests.length = MAX_CAPSULE_BYTES
        requests.lkey = self._region.lkey
        queue_pair.post_recv(requests)

    def close(self) -> None:
        """Deregister; the queue pair is closed first."""
        self._region.close()

    def _addrs(self, slots: Sequence[int]) -> NDArray[np.int64]:
        offsets = np.asarray(slots, np.int64) * MAX_CAPSULE_BYTES
        addrs: NDArray[np.int64] = self._region.addr + offsets
        return addrs
