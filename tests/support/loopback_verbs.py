"""NICs in memory behind the verbs protocols, for tests of what is built on top of verbs.

Nothing happens by itself: posting only queues, ``LoopbackFabric.progress`` executes, on
every device at once and in the order of posting. The strict reading of the verbs is
kept where drivers like to rely on luck: a send queue entry is free only when a signaled
completion at or behind it has been polled, a queue pair that is closed or broken flushes
all it holds into the completion queue, and an access outside a region is an error of
both ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvlane.errors import QueueFullError, VerbsError
from kvlane.verbs.calls import DeviceOfMethods
from kvlane.verbs.enums import AccessFlags, QpState, SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import CompletionQueue, QpEndpoint, QpOptions
from kvlane.verbs.records import WC, RecordArray

_WC_OPCODE = {
    WrOpcode.SEND: WcOpcode.SEND,
    WrOpcode.RDMA_WRITE: WcOpcode.RDMA_WRITE,
    WrOpcode.RDMA_READ: WcOpcode.RDMA_READ,
}
_REMOTE_ACCESS = {
    WrOpcode.RDMA_WRITE: AccessFlags.REMOTE_WRITE,
    WrOpcode.RDMA_READ: AccessFlags.REMOTE_READ,
}

_FIRST_QP_NUM = 16
_OPCODE = (WC.names or ()).index("opcode")


@dataclass(frozen=True)
class SendRequest:
    """One posted send work request."""

    wr_id: int
    opcode: WrOpcode
    signaled: bool
    local_addr: int
    length: int
    lkey: int
    remote_addr: int
    rkey: int


@dataclass(frozen=True)
class RecvRequest:
    """One posted receive work request."""

    wr_id: int
    local_addr: int
    length: int
    lkey: int


class LoopbackRegion:
    """A registered array."""

    def __init__(
        self, device: LoopbackDevice, buffer: NDArray[np.uint8], access: AccessFlags, key: int
    ) -> None:
        self._device = device
        self._buffer = buffer
        self.access = access
        self._key = key

    @property
    def addr(self) -> int:
        return int(self._buffer.ctypes.data)

    @property
    def length(self) -> int:
        return int(self._buffer.nbytes)

    @property
    def lkey(self) -> int:
        return self._key

    @property
    def rkey(self) -> int:
        return self._key

    def close(self) -> None:
        with self._device.fabric.lock:
            self._device.regions.pop(self._key, None)

    def covers(self, addr: int, length: int) -> bool:
        """True when the range lies inside the region."""
        return self.addr <= addr and addr + length <= self.addr + self.length


class LoopbackCq:
    """A completion queue; ``depth`` is a promise to its user that a test can read back."""

    def __init__(self, device: LoopbackDevice, depth: int) -> None:
        self._device = device
        self.depth = depth
        self.handle = device.methods.add_cq(self)
        self._entries: deque[tuple[LoopbackQp, tuple[int, ...], int]] = deque()
        self.hold_sends = False
        """Keep the completions of SENDs back, as lost acknowledgements do."""

    def push(self, qp: LoopbackQp, entry: tuple[int, ...], retired: int) -> None:
        """Add a completion that, once polled, frees ``retired`` send queue entries."""
        if len(self._entries) == self.depth:
            raise AssertionError(f"completion queue of {self.depth} entries overflowed")
        self._entries.append((qp, entry, retired))
        self._device.notify()

    def poll(self, out: RecordArray) -> int:
        with self._device.fabric.lock:
            held = [entry for entry in self._entries if self._is_held(entry[1])]
            ready = [entry for entry in self._entries if not self._is_held(entry[1])]
            for index, (qp, entry, retired) in enumerate(ready[: len(out)]):
                out[index] = np.array(entry, WC)
                qp.retire(retired)
            self._entries = deque(held + ready[len(out) :])
            return min(len(ready), len(out))

    def close(self) -> None:
        self._entries.clear()

    def _is_held(self, entry: tuple[int, ...]) -> bool:
        return self.hold_sends and entry[_OPCODE] == WcOpcode.SEND


class LoopbackQp:
    """An RC queue pair."""

    def __init__(
        self, device: LoopbackDevice, cq: LoopbackCq, options: QpOptions, qp_num: int
    ) -> None:
        self.device = device
        self.handle = device.methods.add_qp(self)
        self.cq = cq
        self.options = options
        self._endpoint = QpEndpoint(device.gid, 4791, qp_num, psn=qp_num * 7, mtu_bytes=4096)
        self._state = QpState.INIT
        self.remote: QpEndpoint | None = None
        self.sends: deque[SendRequest] = deque()
        self.recvs: deque[RecvRequest] = deque()
        self.sq_used = 0
        self._unsignaled = 0

    @property
    def endpoint(self) -> QpEndpoint:
        return self._endpoint

    @property
    def state(self) -> QpState:
        return self._state

    def connect(self, remote: QpEndpoint) -> None:
        with self.device.fabric.lock:
            if self._state is not QpState.INIT:
                raise VerbsError(f"connect in {self._state.name}")
            if len(remote.gid) != 16:
                raise VerbsError(f"a GID has 16 bytes, not {len(remote.gid)}")
            self.remote = remote
            self._state = QpState.RTS
            self.device.fabric.notify()

    def post_recv(self, requests: RecordArray) -> None:
        with self.device.fabric.lock:
            self._require_open()
            if len(self.recvs) + len(requests) > self.options.max_recv_wr:
                raise QueueFullError(f"receive queue of {self.options.max_recv_wr} entries")
            for request in requests:
                self.recvs.append(
                    RecvRequest(
                        int(request["wr_id"]),
                        int(request["local_addr"]),
                        int(request["length"]),
                        int(request["lkey"]),
                    )
                )
            if self._state is QpState.ERR:
                self.flush()
            self.device.fabric.notify()

    def post_send(self, requests: RecordArray) -> None:
        with self.device.fabric.lock:
            self._require_open()
            if self._state not in (QpState.RTS, QpState.ERR):
                raise VerbsError(f"post_send in {self._state.name}")
            if self.sq_used + len(requests) > self.options.max_send_wr:
                raise QueueFullError(f"send queue of {self.options.max_send_wr} entries")
            for request in requests:
                self.sends.append(
                    SendRequest(
                        int(request["wr_id"]),
                        WrOpcode(int(request["opcode"])),
                        bool(int(request["send_flags"]) & SendFlags.SIGNALED),
                        int(request["local_addr"]),
                        int(request["length"]),
                        int(request["lkey"]),
                        int(request["remote_addr"]),
                        int(request["rkey"]),
                    )
                )
            self.sq_used += len(requests)
            if self._state is QpState.ERR:
                self.flush()
            self.device.fabric.notify()

    def close(self) -> None:
        with self.device.fabric.lock:
            if self.device.fabric.qps.pop(self._endpoint.qp_num, None) is not None:
                self.break_down()
                self._state = QpState.RESET

    def _require_open(self) -> None:
        if self._endpoint.qp_num not in self.device.fabric.qps:
            raise VerbsError("the queue pair is closed")

    def complete_send(self, request: SendRequest, status: WcStatus) -> None:
        """Take the head of the send queue off, with a completion where one is due."""
        self.sends.popleft()
        self._unsignaled += 1
        if status is WcStatus.SUCCESS and not request.signaled:
            return
        retired, self._unsignaled = self._unsignaled, 0
        opcode = _WC_OPCODE[request.opcode]
        self.cq.push(
            self,
            (request.wr_id, status, opcode, request.length, self._endpoint.qp_num, 0, 0, 0),
            retired,
        )

    def complete_recv(self, request: RecvRequest, status: WcStatus, length: int) -> None:
        """Take the head of the receive queue off, with its completion."""
        self.recvs.popleft()
        source = self.remote.qp_num if self.remote else 0
        self.cq.push(
            self,
            (request.wr_id, status, WcOpcode.RECV, length, self._endpoint.qp_num, source, 0, 0),
            0,
        )

    def retire(self, count: int) -> None:
        """Free send queue entries."""
        self.sq_used -= count

    def break_down(self) -> None:
        """To ERR, as after a fatal completion."""
        self._state = QpState.ERR
        self.flush()

    def flush(self) -> None:
        """Complete all that is queued with WR_FLUSH_ERR."""
        while self.sends:
            self.complete_send(self.sends[0], WcStatus.WR_FLUSH_ERR)
        while self.recvs:
            self.complete_recv(self.recvs[0], WcStatus.WR_FLUSH_ERR, 0)


class LoopbackDevice(DeviceOfMethods):
    """A NIC of a fabric."""

    def __init__(self, fabric: LoopbackFabric, number: int) -> None:
        super().__init__()
        self.fabric = fabric
        self.gid = b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, number])
        self.name = f"loopback{number}"
        self.max_message_bytes = 1 << 30
        self.alive = True
        self.regions: dict[int, LoopbackRegion] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def register(self, buffer: NDArray[np.uint8], access: AccessFlags) -> LoopbackRegion:
        with self.fabric.lock:
            region = LoopbackRegion(self, buffer, access, self.fabric.next_key())
            self.regions[region.lkey] = region
            return region

    def create_cq(self, depth: int) -> LoopbackCq:
        return LoopbackCq(self, depth)

    def create_qp(self, cq: CompletionQueue, options: QpOptions) -> LoopbackQp:
        if not isinstance(cq, LoopbackCq):
            raise VerbsError("the completion queue is of another kind of device")
        with self.fabric.lock:
            qp = LoopbackQp(self, cq, options, self.fabric.next_qp_num())
            self.fabric.qps[qp.endpoint.qp_num] = qp
            return qp

    def progress(self) -> bool:
        return self.fabric.progress()

    def wait(self, timeout_ms: float, wake_fd: int = -1) -> None:
        watched = [self._wake_fd] + ([wake_fd] if wake_fd >= 0 else [])
        ready, _, _ = select.select(watched, [], [], timeout_ms / 1000)
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)

    def notify(self) -> None:
        """End a ``wait`` of this device."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def counters(self) -> dict[str, int]:
        return {"rx_write_requests": 0}

    def close(self) -> None:
        with self.fabric.lock:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1


class LoopbackFabric:
    """The wire between loopback devices."""

    def __init__(self, devices: int = 2) -> None:
        self.lock = threading.RLock()
        self.qps: dict[int, LoopbackQp] = {}
        self.held: set[WrOpcode] = set()
        """Operations that wait, with all that is behind them in their queue pair."""
        self._keys = 0x100
        self._qp_nums = _FIRST_QP_NUM
        self.devices = [LoopbackDevice(self, number + 1) for number in range(devices)]

    def hold(self, *opcodes: WrOpcode) -> None:
        """Execute none of these operations until ``release``."""
        with self.lock:
            self.held.update(opcodes)

    def release(self) -> None:
        """Execute everything again."""
        with self.lock:
            self.held.clear()
            self.notify()

    def kill(self, device: LoopbackDevice) -> None:
        """A device falls silent: requests to it end with RETRY_EXC_ERR, it sends nothing."""
        with self.lock:
            device.alive = False
            self.notify()

    def progress(self) -> bool:
        """Execute all that can be; True when there was any."""
        with self.lock:
            worked = False
            while self._execute_heads():
                worked = True
            return worked

    def notify(self) -> None:
        """End every ``wait``."""
        for device in self.devices:
            device.notify()

    def next_key(self) -> int:
        """A key that no region had before."""
        self._keys += 0x11
        return self._keys

    def restart_qp_nums(self) -> None:
        """Give out the same queue pair numbers again, as a NIC does sooner or later."""
        self._qp_nums = _FIRST_QP_NUM

    def next_qp_num(self) -> int:
        """The next queue pair number."""
        self._qp_nums += 1
        return self._qp_nums

    def _execute_heads(self) -> bool:
        executed = [self._execute_head(qp) for qp in list(self.qps.values())]
        return any(executed)

    def _execute_head(self, qp: LoopbackQp) -> bool:
        if qp.state is not QpState.RTS or not qp.sends or not qp.device.alive:
            return False
        request = qp.sends[0]
        if request.opcode in self.held:
            return False
        peer = self._peer(qp)
        if peer is None:
            self._fail(qp, request, WcStatus.RETRY_EXC_ERR)
            return True
        local = qp.device.regions.get(request.lkey)
        if local is None or not local.covers(request.local_addr, request.length):
            self._fail(qp, request, WcStatus.LOC_PROT_ERR)
            return True
        if request.opcode is WrOpcode.SEND:
            return self._send(qp, peer, request)
        return self._access(qp, peer, request)

    def _peer(self, qp: LoopbackQp) -> LoopbackQp | None:
        """The connected other end, when it is there to answer."""
        assert qp.remote is not None
        peer = self.qps.get(qp.remote.qp_num)
        if peer is None or peer.device.gid != qp.remote.gid or not peer.device.alive:
            return None
        return peer if peer.state is QpState.RTS else None

    def _send(self, qp: LoopbackQp, peer: LoopbackQp, request: SendRequest) -> bool:
        if not peer.recvs:
            return False  # RNR; the requester tries again for ever
        receive = peer.recvs[0]
        region = peer.device.regions.get(receive.lkey)
        if (
            receive.length < request.length
            or region is None
            or not region.covers(receive.local_addr, receive.length)
        ):
            peer.complete_recv(receive, WcStatus.LOC_LEN_ERR, 0)
            peer.break_down()
            self._fail(qp, request, WcStatus.REM_INV_REQ_ERR)
            return True
        ctypes.memmove(receive.local_addr, request.local_addr, request.length)
        peer.complete_recv(receive, WcStatus.SUCCESS, request.length)
        qp.complete_send(request, WcStatus.SUCCESS)
        return True

    def _access(self, qp: LoopbackQp, peer: LoopbackQp, request: SendRequest) -> bool:
        region = peer.device.regions.get(request.rkey)
        if (
            region is None
            or not region.access & _REMOTE_ACCESS[request.opcode]
            or not region.covers(request.remote_addr, request.length)
        ):
            # The responder's queue pair fails with it (IBTA 1.7 section 9.9.3, class C).
            peer.break_down()
            self._fail(qp, request, WcStatus.REM_ACCESS_ERR)
            return True
        if request.opcode is WrOpcode.RDMA_WRITE:
            ctypes.memmove(request.remote_addr, request.local_addr, request.length)
        else:
            ctypes.memmove(request.local_addr, request.remote_addr, request.length)
        qp.complete_send(request, WcStatus.SUCCESS)
        return True

    def _fail(self, qp: LoopbackQp, request: SendRequest, status: WcStatus) -> None:
        qp.complete_send(request, status)
        qp.break_down()


def connect(ends: Iterable[LoopbackQp]) -> None:
    """Connect two queue pairs with each other."""
    first, second = ends
    first.connect(second.endpoint)
    second.connect(first.endpoint)
