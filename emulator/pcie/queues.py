"""Queue pairs, completion queues and regions as agent and driver hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from emulator.driving._sleep_kernels import load_word, store_word
from emulator.driving.faults import fault_error
from emulator.pcie import _entry_kernels as kernels
from emulator.pcie.layout import CHANNEL_BYTES, CHANNEL_VERDICT
from emulator.pcie.mapping import Mapping, SharedFile
from emulator.pcie.state import index_of
from kvlane.errors import QueueFullError, VerbsError
from kvlane.limits import ROCE_V2_UDP_PORT
from kvlane.verbs.calls import FAULT, PostResult
from kvlane.verbs.enums import QpState, WcStatus
from kvlane.verbs.protocols import QpEndpoint, QpOptions
from kvlane.verbs.records import RecordArray

if TYPE_CHECKING:
    from emulator.pcie.device import PcieDevice
    from emulator.pcie.peers import Peer

_MTU_BYTES = 4096
"""There are no packets: MTU and UDP port are there because the control plane wants some."""


class PcieRegion:
    """Registered memory."""

    def __init__(self, device: PcieDevice, buffer: NDArray[np.uint8], key: int) -> None:
        self._device = device
        self._buffer: NDArray[np.uint8] | None = buffer
        self.addr = int(buffer.ctypes.data)
        self.length = int(buffer.nbytes)
        self.lkey = self.rkey = key

    def close(self) -> None:
        """Deregister: no access after this returns."""
        if self._buffer is not None:
            self._device.deregister(self, self._buffer)
            self._buffer = None


class PcieCq:
    """A completion queue."""

    def __init__(self, device: PcieDevice, handle: int) -> None:
        self._device = device
        self.handle = handle

    def poll(self, out: RecordArray) -> int:
        """Move completions into ``out``."""
        with self._device.lock:
            return self._device.check(
                kernels.poll_cq(self._device.state.address, self.handle, out.ctypes.data, len(out))
            )

    def close(self) -> None:
        """Destroy."""
        with self._device.lock:
            self._device.remove_cq(self)


class PcieQp:
    """A reliable connected queue pair."""

    def __init__(self, device: PcieDevice, cq: PcieCq, options: QpOptions) -> None:
        self._device = device
        self.cq = cq
        self.channel = SharedFile("kvlane-channel", CHANNEL_BYTES)
        """Into this queue pair."""
        self.outbound: Mapping | None = None
        """Into the peer's."""
        self.peer: Peer | None = None
        try:
            self.handle = device.state.add_qp(cq.handle, options, self.channel.mapping.address)
        except BaseException:
            self.channel.close()
            raise
        self.remote: QpEndpoint | None = None
        self.awaits_peer = False
        """Whether it is connected, and its peer has not answered yet."""
        self.endpoint = QpEndpoint(
            gid=device.gid,
            udp_port=ROCE_V2_UDP_PORT,
            qp_num=self.handle,
            psn=0,
            mtu_bytes=_MTU_BYTES,
        )
        self.is_open = True

    @property
    def state(self) -> QpState:
        """The state now."""
        with self._device.lock:
            if not self.is_open:
                return QpState.RESET
            return QpState(int(self._device.state.qps.state[index_of(self.handle)]))

    def connect(self, remote: QpEndpoint) -> None:
        """INIT to RTS; the peer may connect before or after."""
        with self._device.lock:
            self._require_open()
            if self.state is not QpState.INIT:
                raise VerbsError("the queue pair is connected already, or has failed")
            self._device.connect(self, remote)

    def post_recv(self, requests: RecordArray) -> None:
        """Post receives."""
        self._post(kernels.post_recv, requests)

    def post_send(self, requests: RecordArray) -> None:
        """Post sends; the first of them are carried out before this returns."""
        self._post(kernels.post_send, requests)

    def _post(self, kernel: object, requests: RecordArray) -> None:
        assert callable(kernel)
        requests = np.ascontiguousarray(requests)
        with self._device.lock:
            self._require_open()
            posted = self._device.check(
                kernel(self._device.state.address, self.handle, requests.ctypes.data, len(requests))
            )
        if posted == PostResult.QUEUE_FULL:
            raise QueueFullError(f"the queue has no room for {len(requests)} requests")

    def _require_open(self) -> None:
        if not self.is_open:
            raise VerbsError("the queue pair is closed")

    def awaits(self, gid: bytes, number: int) -> bool:
        """Whether it waits for an answer of that queue pair."""
        return self.awaits_peer and self._is_remote(gid, number)

    def may_take(self, gid: bytes, number: int) -> bool:
        """Whether it is, or could be, connected with that queue pair, and waits for it."""
        return self.remote is None or self.awaits(gid, number)

    def is_attached_to(self, gid: bytes, number: int) -> bool:
        """Whether that queue pair is at the other end."""
        return self.outbound is not None and self._is_remote(gid, number)

    def _is_remote(self, gid: bytes, number: int) -> bool:
        remote = self.remote
        return remote is not None and (remote.gid, remote.qp_num) == (gid, number)

    def tell_closed(self) -> None:
        """Let nobody begin to use this queue pair from the other end."""
        address = self.channel.mapping.address + CHANNEL_VERDICT
        if load_word(address) == int(WcStatus.SUCCESS):
            store_word(address, int(WcStatus.RETRY_EXC_ERR))

    def abandon(self) -> None:
        """In a child of the device's process: it is none of ours."""
        self.is_open = False
        self.channel.close()
        if self.outbound is not None:
            self.outbound.close()

    def close(self) -> None:
        """Destroy: no late write can land after this."""
        self._device.remove_qp(self)


def raise_fault(result: int, fault: int) -> int:
    """``result``, unless it says that there was a fault: then that, as an exception."""
    if result == FAULT:
        raise fault_error(fault)
    return result
