"""The registered buffers that capsules are sent from and received into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvlane.limits import MAX_CAPSULE_BYTES
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import Device, MemoryRegion, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, RecordArray, new_records


class CapsuleRing:
    """``depth`` buffers of a capsule each, in one region that no peer can reach."""

    def __init__(self, device: Device, depth: int) -> None:
        self._memory = device.alloc(depth * MAX_CAPSULE_BYTES)
        self._region: MemoryRegion = device.register(self._memory, AccessFlags.LOCAL_WRITE)
        self._buffers = self._memory.reshape(depth, MAX_CAPSULE_BYTES)
        slots = np.arange(depth, dtype=np.int64)
        addrs = self._region.addr + slots * MAX_CAPSULE_BYTES
        # All but the length of a SEND is known from here on; a post only picks its slots.
        self._sends = new_records(SEND_WR, depth)
        self._sends.wr_id = slots
        self._sends.opcode = WrOpcode.SEND
        self._sends.send_flags = SendFlags.SIGNALED
        self._sends.local_addr = addrs
        self._sends.lkey = self._region.lkey
        self._receives = new_records(RECV_WR, depth)
        self._receives.wr_id = slots
        self._receives.local_addr = addrs
        self._receives.length = MAX_CAPSULE_BYTES
        self._receives.lkey = self._region.lkey

    @property
    def addr(self) -> int:
        """Of the first buffer."""
        return self._region.addr

    @property
    def sends(self) -> RecordArray:
        """A SEND_WR for each slot, which is the ``wr_id``; only the length is to be set."""
        return self._sends

    @property
    def receives(self) -> RecordArray:
        """A RECV_WR for each slot, which is the ``wr_id``."""
        return self._receives

    def __len__(self) -> int:
        return len(self._buffers)

    def __getitem__(self, slot: int) -> NDArray[np.uint8]:
        buffer: NDArray[np.uint8] = self._buffers[slot]
        return buffer

    def post_send(self, queue_pair: QueuePair, slots: Sequence[int], lengths: list[int]) -> None:
        """Send the first ``lengths[i]`` bytes of each slot; the slot is the ``wr_id``."""
        requests = self._sends[np.asarray(slots, np.int64)]
        requests["length"] = lengths
        queue_pair.post_send(requests)

    def post_recv(self, queue_pair: QueuePair, slots: Sequence[int]) -> None:
        """Receive into these slots; the slot is the ``wr_id``."""
        queue_pair.post_recv(self._receives[np.asarray(slots, np.int64)])

    def close(self) -> None:
        """Deregister; the queue pair is closed first."""
        self._region.close()
