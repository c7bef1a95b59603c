"""A host for tests of the agent's data path: sends capsules over verbs, collects responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpu_agent.cache.policy.base import EvictionPolicy
from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore, empty_store
from dpu_agent.control.core import RemoteRegion
from dpu_agent.data.awaited import AwaitedBlocks
from dpu_agent.data.blocks import Blocks
from dpu_agent.data.counting import OTHER_TENANTS
from dpu_agent.data.pool import PayloadPool
from dpu_agent.data.server import CapsuleServer
from dpu_agent.data.state import Notices
from kvlane.capsule import (
    DESCRIPTOR,
    CommandFlags,
    KeyArray,
    Opcode,
    Response,
    emit_command,
    parse_response,
)
from kvlane.limits import MAX_CAPSULE_BYTES
from kvlane.verbs.enums import AccessFlags, SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import Device, QpEndpoint, QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records
from tests.support.loopback_verbs import LoopbackDevice, LoopbackFabric

BLOCK_BYTES = 256
BOOT_ID = bytes(range(16))
HOST_BLOCKS = 1024
NO_FLAGS = CommandFlags(0)
_SEND_BUFFERS = 64


def key_array(*numbers: int) -> KeyArray:
    """Distinct keys by number, shape (n, 32)."""
    return np.array([list(number.to_bytes(32, "little")) for number in numbers], np.uint8)


class CapsuleHost:
    """One queue pair of a host with ``HOST_BLOCKS`` registered buffers of ``BLOCK_BYTES``."""

    def __init__(self, device: Device, receives: int = 64) -> None:
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
        self.device = device
        self.cq = device.create_cq(4096)
        self.qp = device.create_qp(self.cq, QpOptions(max_send_wr=256, max_recv_wr=256))
        self.memory = device.alloc(HOST_BLOCKS * BLOCK_BYTES)
        self.region = device.register(self.memory, access)
        self._capsules = device.alloc(_SEND_BUFFERS * MAX_CAPSULE_BYTES)
        self._capsules_region = device.register(self._capsules, AccessFlags.LOCAL_WRITE)
        self._inbox = device.alloc(receives * MAX_CAPSULE_BYTES)
        self._inbox_region = device.register(self._inbox, AccessFlags.LOCAL_WRITE)
        self.session = 0
        self.statuses: list[WcStatus] = []
        """Failed completions seen."""
        self._sent = 0
        for index in range(receives):
            self._post_receive(index)

    @property
    def remote_region(self) -> RemoteRegion:
        """The payload memory as the agent is to know it."""
        return RemoteRegion(self.region.addr, self.region.length, self.region.rkey)

    def attach(self, endpoint: QpEndpoint, session: int) -> None:
        """Connect to the agent's queue pair."""
        self.qp.connect(endpoint)
        self.session = session

    def block(self, index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Buffer ``index``."""
        return self.memory[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]

    def fill(self, indices: Sequence[int], seed: int = 0) -> None:
        """Put different bytes into each of the buffers."""
        for index in indices:
            rng = np.random.default_rng(seed * HOST_BLOCKS + index)
            self.block(index)[:] = rng.integers(0, 256, BLOCK_BYTES, np.uint8)

    def descriptors(self, *indices: int, length: int = BLOCK_BYTES) -> Any:
        """Descriptors of the buffers; a test may change them."""
        records = new_records(DESCRIPTOR, len(indices))
        records["addr"] = [self.region.addr + index * BLOCK_BYTES for index in indices]
        records["rkey"] = self.region.rkey
        records["length"] = length
        return records

    def send(
        self,
        opcode: Opcode,
        keys: KeyArray,
        descriptors: Any = None,
        *,
        command_id: int = 1,
        flags: CommandFlags = NO_FLAGS,
        session: int | None = None,
    ) -> None:
        """Send a command."""
        out = np.zeros(MAX_CAPSULE_BYTES, np.uint8)
        nbytes = emit_command(
            out,
            opcode=opcode,
            command_id=command_id,
            session=self.session if session is None else session,
            keys=keys,
            descriptors=descriptors,
            flags=flags,
        )
        self.send_bytes(out[:nbytes])

    def send_bytes(self, capsule: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Send any bytes as a capsule."""
        start = (self._sent % _SEND_BUFFERS) * MAX_CAPSULE_BYTES
        self._sent += 1
        self._capsules[start : start + len(capsule)] = capsule
        request = new_records(SEND_WR, 1)
        request["opcode"] = WrOpcode.SEND
        request["send_flags"] = SendFlags.SIGNALED
        request["local_addr"] = self._capsules_region.addr + start
        request["length"] = len(capsule)
        request["lkey"] = self._capsules_region.lkey
        self.qp.post_send(request)

    def responses(self) -> list[Response]:
        """Responses that have arrived since the last call, in order of arrival."""
        found: list[Response] = []
        batch = new_records(WC, 64)
        while count := self.cq.poll(batch):
            for completion in batch[:count]:
                status = WcStatus(int(completion["status"]))
                if status is not WcStatus.SUCCESS:
                    self.statuses.append(status)
                elif completion["opcode"] == WcOpcode.RECV:
                    index = int(completion["wr_id"])
                    start, nbytes = index * MAX_CAPSULE_BYTES, int(completion["byte_len"])
                    found.append(parse_response(self._inbox[start : start + nbytes].copy()))
                    self._post_receive(index)
        return found

    def _post_receive(self, index: int) -> None:
        request = new_records(RECV_WR, 1)
        request["wr_id"] = index
        request["local_addr"] = self._inbox_region.addr + index * MAX_CAPSULE_BYTES
        request["length"] = MAX_CAPSULE_BYTES
        request["lkey"] = self._inbox_region.lkey
        self.qp.post_recv(request)


class NotedTier:
    """Remembers what was handed over."""

    def __init__(self, low_water_blocks: int, notices: Notices) -> None:
        self.low_water_blocks = low_water_blocks
        self.notices = notices
        self.noticed: list[KeyArray] = []
        self.awaited: list[AwaitedBlocks] = []
        self.pressed = 0

    def take(self, awaited: AwaitedBlocks) -> None:
        self.awaited.append(awaited)

    def notice(self, chain: KeyArray) -> None:
        self.noticed.append(chain)

    def press(self) -> None:
        self.pressed += 1


class ServerRig:
    """A capsule server and its hosts on a loopback fabric, moved by hand."""

    def __init__(
        self,
        *,
        hosts: int = 1,
        capacity_blocks: int = 16,
        queue_depth: int = 4,
        policy: EvictionPolicy | None = None,
        cold: BlockStore | None = None,
        low_water_blocks: int = 0,
        notices: Notices = Notices.NONE,
    ) -> None:
        self.fabric = LoopbackFabric(devices=1 + hosts)
        self.agent_device: LoopbackDevice = self.fabric.devices[0]
        self.store = BlockStore(
            capacity_blocks=capacity_blocks,
            block_bytes=BLOCK_BYTES,
            policy=policy or make_policy("lru", capacity_blocks),
            seed=1,
        )
        self.pool = PayloadPool(
            self.agent_device, self.agent_device.alloc(capacity_blocks * BLOCK_BYTES)
        )
        self.failures: list[tuple[int, str]] = []
        self.colder = NotedTier(low_water_blocks, notices)
        self.cold = cold or empty_store()
        self.server = CapsuleServer(
            self.agent_device,
            Blocks(self.store, self.pool, self.cold),
            boot_id=BOOT_ID,
            max_sessions=8,
            max_queue_depth=64,
            on_failure=lambda session_id, reason: self.failures.append((session_id, reason)),
            colder=self.colder,
        )
        self.queue_depth = queue_depth
        self.hosts = [self.attach(n, device=n) for n in range(1, 1 + hosts)]
        self._now = 0

    def attach(
        self,
        session: int,
        *,
        device: int = 1,
        receives: int = 64,
        tenant: int = OTHER_TENANTS,
    ) -> CapsuleHost:
        """A host with an open session."""
        host = CapsuleHost(self.fabric.devices[device], receives)
        endpoint = self.server.open(
            session, host.qp.endpoint, [host.remote_region], self.queue_depth, tenant
        )
        host.attach(endpoint, session)
        return host

    def resume(self, awaited: AwaitedBlocks) -> None:
        """What a command awaits has come, or will not; then move everything."""
        self.server.resume(awaited, self._now)
        self.run()

    def run(self) -> None:
        """Move everything that can move."""
        worked = True
        while worked:
            self._now += 1000
            worked = self.fabric.progress()
            worked = self.server.poll(self._now) or worked

    def ask(
        self,
        host: CapsuleHost,
        opcode: Opcode,
        keys: KeyArray,
        descriptors: Any = None,
        flags: CommandFlags = NO_FLAGS,
    ) -> Response:
        """Send a command, move everything, return the one response."""
        host.send(opcode, keys, descriptors, flags=flags)
        self.run()
        (response,) = host.responses()
        return response
