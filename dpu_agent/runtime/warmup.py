"""One round of every command over the device to itself, before the agent says it is ready.

It makes every kernel compile or load now, where no host waits for it with a timeout, and it
shows at once when the device does not carry data even to itself. The blocks go into a small
store of their own, so the agent's store and its counters start empty.
"""

from __future__ import annotations

import logging
import zlib

import numpy as np

from dpu_agent.cache.policy.registry import make_policy
from dpu_agent.cache.store import BlockStore, empty_store
from dpu_agent.control.core import RemoteRegion
from dpu_agent.data.blocks import Blocks
from dpu_agent.data.pool import PayloadPool
from dpu_agent.data.server import CapsuleServer
from dpu_agent.runtime.tier_rehearsal import TierRehearsal
from kvlane.capsule import (
    BOOT_ID_BYTES,
    DESCRIPTOR,
    CommandFlags,
    CommandStatus,
    KeyArray,
    Opcode,
    Response,
    emit_command,
    parse_response,
)
from kvlane.errors import VerbsError
from kvlane.limits import KEY_BYTES, MAX_CAPSULE_BYTES
from kvlane.seams import Clock
from kvlane.verbs.enums import AccessFlags, SendFlags, WcOpcode, WcStatus, WrOpcode
from kvlane.verbs.protocols import Device, QpOptions
from kvlane.verbs.records import RECV_WR, SEND_WR, WC, new_records

_SESSION = 1
_CAPACITY_BLOCKS = 2
_BLOCK_BYTES = 16384
"""More than one packet, so that first, middle and last packets occur."""
_NO_FLAGS = CommandFlags(0)
_TURN_NS = 1_000_000
_LIMIT_NS = 300 * 1_000_000_000
_log = logging.getLogger(__name__)


def warm_up(device: Device, policy: str, *, clock: Clock, colder: bool = False) -> bool:
    """Run every command once, if wanted with a ``colder`` tier too; True when all have succeeded. A
    failure is logged, not raised: a device that is told to lose packets may fail here and still be
    what its user wants."""
    pool = PayloadPool(device, device.alloc(_CAPACITY_BLOCKS * _BLOCK_BYTES))
    store = BlockStore(
        capacity_blocks=_CAPACITY_BLOCKS,
        block_bytes=_BLOCK_BYTES,
        policy=make_policy(policy, _CAPACITY_BLOCKS),
        seed=0,
    )
    failures: list[str] = []
    rehearsal = TierRehearsal(store, pool.addr, clock) if colder else None
    server = CapsuleServer(
        device,
        Blocks(store, pool, rehearsal.store if rehearsal else empty_store()),
        boot_id=bytes(BOOT_ID_BYTES),
        max_sessions=1,
        max_queue_depth=1,
        on_failure=lambda _, reason: failures.append(reason),
        colder=rehearsal,
    )
    client = _Client(device, server, failures, clock, rehearsal)
    try:
        client.run_all()
        store.stats()
    except VerbsError as error:
        _log.warning("the device could not carry a command to itself: %s", error)
        return False
    finally:
        client.close()
        server.close_all()
        pool.close()
    return True


class _Client:
    """The host's end: one queue pair, one command at a time."""

    def __init__(
        self,
        device: Device,
        server: CapsuleServer,
        failures: list[str],
        clock: Clock,
        rehearsal: TierRehearsal | None,
    ) -> None:
        self._device = device
        self._server = server
        self._failures = failures
        self._clock = clock
        self._rehearsal = rehearsal
        self._deadline = clock() + _LIMIT_NS
        access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
        self._memory = device.alloc(2 * MAX_CAPSULE_BYTES + _BLOCK_BYTES)
        self._region = device.register(self._memory, access)
        self._payload_addr = self._region.addr + 2 * MAX_CAPSULE_BYTES
        self._cq = device.create_cq(16)
        self._completions = new_records(WC, 16)
        self._qp = device.create_qp(self._cq, QpOptions(max_send_wr=4, max_recv_wr=2))

    def run_all(self) -> None:
        """Store, evict, look up, retrieve, delete, and take the memory back; ``VerbsError`` when a
        step fails."""
        payload = RemoteRegion(self._payload_addr, _BLOCK_BYTES, self._region.rkey)
        self._qp.connect(self._server.open(_SESSION, self._qp.endpoint, [payload], 1))
        count = _CAPACITY_BLOCKS + 1
        keys = np.arange(count * KEY_BYTES, dtype=np.uint8).reshape(count, KEY_BYTES)
        for index in range(count):
            self._command(Opcode.STORE, keys[index : index + 1])
        for opcode in (Opcode.RETRIEVE, Opcode.EXIST, Opcode.MATCH, Opcode.DELETE):
            self._command(opcode, keys[-1:])
        if self._rehearsal is not None:
            self._run_colder(self._rehearsal)
        self._server.deregister(_SESSION, [self._region.rkey], lambda: None)

    def _run_colder(self, rehearsal: TierRehearsal) -> None:
        """Store so that it survives, have it leave memory, retrieve and delete it."""
        keys = np.full((1, KEY_BYTES), 0xFF, np.uint8)
        self._command(Opcode.STORE, keys, CommandFlags.PERSISTENT)
        rehearsal.forget(keys)
        for opcode in (Opcode.EXIST, Opcode.MATCH):
            self._command(opcode, keys)
        # The MATCH has had it brought back.
        rehearsal.forget(keys)
        for opcode in (Opcode.RETRIEVE, Opcode.DELETE):
            self._command(opcode, keys)

    def close(self) -> None:
        """Give everything back."""
        self._qp.close()
        self._cq.close()
        self._region.close()

    def _command(self, opcode: Opcode, keys: KeyArray, flags: CommandFlags = _NO_FLAGS) -> None:
        """Send one command and wait for the response, which must be a success."""
        descriptors = None
        if opcode in (Opcode.STORE, Opcode.RETRIEVE):
            descriptors = new_records(DESCRIPTOR, len(keys))
            descriptors["addr"] = self._payload_addr
            descriptors["rkey"] = self._region.rkey
            descriptors["length"] = _BLOCK_BYTES
            descriptors["checksum"] = zlib.crc32(bytes(_BLOCK_BYTES))
        nbytes = emit_command(
            self._memory[:MAX_CAPSULE_BYTES],
            opcode=opcode,
            command_id=1,
            session=_SESSION,
            keys=keys,
            descriptors=descriptors,
            flags=flags | CommandFlags.CHECKSUM if opcode is Opcode.STORE else flags,
        )
        self._post(nbytes)
        response = self._await_response()
        if response.status is not CommandStatus.OK or response.result != len(keys):
            raise VerbsError(f"{opcode.name} ended {response.status.name}, {response.result} keys")

    def _post(self, nbytes: int) -> None:
        receive = new_records(RECV_WR, 1)
        receive["local_addr"] = self._region.addr + MAX_CAPSULE_BYTES
        receive["length"] = MAX_CAPSULE_BYTES
        receive["lkey"] = self._region.lkey
        self._qp.post_recv(receive)
        send = new_records(SEND_WR, 1)
        send["opcode"] = WrOpcode.SEND
        send["send_flags"] = SendFlags.SIGNALED
        send["local_addr"] = self._region.addr
        send["length"] = nbytes
        send["lkey"] = self._region.lkey
        self._qp.post_send(send)

    def _await_response(self) -> Response:
        while not self._failures and self._clock() < self._deadline:
            # The very loop that the agent runs: what it calls is compiled with it.
            self._server.run(0, _TURN_NS, -1)
            if self._rehearsal is not None:
                self._rehearsal.step(self._server)
            for completion in self._completions[: self._cq.poll(self._completions)]:
                if completion["status"] != WcStatus.SUCCESS:
                    raise VerbsError(f"a capsule ended {WcStatus(int(completion['status'])).name}")
                if completion["opcode"] == WcOpcode.RECV:
                    start, nbytes = MAX_CAPSULE_BYTES, int(completion["byte_len"])
                    return parse_response(self._memory[start : start + nbytes])
        raise VerbsError(self._failures[0] if self._failures else "no response came in time")
