"""The registered buffers of a session: where commands arrive and responses leave from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpu_agent.data.work_ids import WorkKind, pack_work_id
from kvlane.capsule import HEADER_BYTES, KEY_RESULT
from kvlane.limits import MAX_CAPSULE_BYTES, MAX_KEYS_PER_CAPSULE
from kvlane.verbs.enums import AccessFlags, SendFlags, WrOpcode
from kvlane.verbs.protocols import Device, QueuePair
from kvlane.verbs.records import RECV_WR, SEND_WR, RecordArray, new_records

RESPONSE_BYTES = HEADER_BYTES + MAX_KEYS_PER_CAPSULE * KEY_RESULT.itemsize
"""The largest response."""


class ReceiveRing:
    """``count`` receive buffers of one capsule each.

    A buffer is with the NIC, or holds a command that is being read; ``give_back`` and then
    ``post`` return it.
    """

    def __init__(self, device: Device, count: int, serial: int) -> None:
        self._buffer = device.alloc(count * MAX_CAPSULE_BYTES)
        self._region = device.register(self._buffer, AccessFlags.LOCAL_WRITE)
        self._requests = new_records(RECV_WR, count)
        self._requests["wr_id"] = [pack_work_id(WorkKind.RECEIVE, serial, i) for i in range(count)]
        self._requests["local_addr"] = self._region.addr + np.arange(count) * MAX_CAPSULE_BYTES
        self._requests["length"] = MAX_CAPSULE_BYTES
        self._requests["lkey"] = self._region.lkey
        self._returned = list(range(count))

    def capsule(self, index: int, nbytes: int) -> NDArray[np.uint8]:
        """The command in buffer ``index``: a view, valid until the buffer is posted again."""
        start = index * MAX_CAPSULE_BYTES
        return self._buffer[start : start + nbytes]

    def give_back(self, index: int) -> None:
        """The command in this buffer is not needed any more."""
        self._returned.append(index)

    def post(self, qp: QueuePair) -> None:
        """Post all buffers that were given back (at first: all)."""
        if self._returned:
            qp.post_recv(self._requests[self._returned])
            self._returned = []

    def close(self) -> None:
        """Deregister."""
        self._region.close()


class ResponseBuffers:
    """``count`` send buffers, one for each command slot."""

    def __init__(self, device: Device, count: int, serial: int) -> None:
        self._buffer = device.alloc(count * RESPONSE_BYTES)
        self._region = device.register(self._buffer, AccessFlags(0))
        self._serial = serial

    def buffer(self, slot: int) -> NDArray[np.uint8]:
        """The buffer of a command slot."""
        start = slot * RESPONSE_BYTES
        return self._buffer[start : start + RESPONSE_BYTES]

    def request(self, slot: int, nbytes: int) -> RecordArray:
        """The signaled SEND of the first ``nbytes`` of a slot's buffer, one SEND_WR record."""
        request = new_records(SEND_WR, 1)
        request["wr_id"] = pack_work_id(WorkKind.RESPONSE, self._serial, slot)
        request["opcode"] = WrOpcode.SEND
        request["send_flags"] = SendFlags.SIGNALED
        request["local_addr"] = self._region.addr + slot * RESPONSE_BYTES
        request["length"] = nbytes
        request["lkey"] = self._region.lkey
        return request

    def close(self) -> None:
        """Deregister."""
        self._region.close()
