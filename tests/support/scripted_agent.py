"""The other end of a driver's queue pair, which answers what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from host_driver.memory import REMOTE_ACCESS, Region
from host_driver.queue import CommandQueue, Peer
from host_driver.rings import CapsuleRing
from host_driver.staging import Staging
from kvlane.capsule import (
    KEY_RESULT,
    Command,
    CommandStatus,
    KeyStatus,
    Opcode,
    emit_response,
    parse_command,
)
from kvlane.verbs.enums import WcOpcode, WcStatus
from kvlane.verbs.protocols import QpOptions
from kvlane.verbs.records import WC, RecordArray, new_records
from tests.support.loopback_verbs import LoopbackFabric, connect

SESSION = 5
BOOT_ID = bytes(range(16))
RING = 64


@dataclass(frozen=True)
class Received:
    """A command as it came."""

    command: Command

    def results(self, status: KeyStatus, length: int, checksum: int) -> Any:
        """The same result for every key, in the form of the opcode."""
        count = len(self.command.keys)
        if self.command.opcode is Opcode.MATCH:
            return None
        if self.command.opcode in (Opcode.EXIST, Opcode.DELETE):
            return np.full(count, status, np.uint8)
        records = new_records(KEY_RESULT, count)
        records.status, records.length, records.checksum = status, length, checksum
        return records


@dataclass(frozen=True)
class Forgery:
    """What the header of an answer says instead of the truth."""

    command_id: int | None = None
    opcode: int | None = None
    boot_id: bytes = BOOT_ID
    session: int = SESSION


class ScriptedAgent:
    """A peer on a device of its own: receives command capsules, sends what it is told."""

    def __init__(self, fabric: LoopbackFabric) -> None:
        self.device = fabric.devices[1]
        self._cq = self.device.create_cq(4 * RING)
        self.qp = self.device.create_qp(self._cq, QpOptions(max_send_wr=RING, max_recv_wr=RING))
        self._received = CapsuleRing(self.device, RING)
        self._sent = CapsuleRing(self.device, RING)
        self._next_slot = 0
        self._received.post_recv(self.qp, range(RING))
        self._fabric = fabric

    def commands(self) -> list[Received]:
        """The commands that came since the last call, in their order."""
        self._fabric.progress()
        completions = new_records(WC, 4 * RING)
        listed = []
        for completion in completions[: self._cq.poll(completions)]:
            if completion.opcode == WcOpcode.RECV and completion.status == WcStatus.SUCCESS:
                slot = int(completion.wr_id)
                data = self._received[slot][: int(completion.byte_len)].copy()
                self._received.post_recv(self.qp, [slot])
                listed.append(Received(parse_command(data)))
        return listed

    def answer(
        self,
        received: Received,
        *,
        status: CommandStatus = CommandStatus.OK,
        key_status: KeyStatus = KeyStatus.OK,
        result: int = 0,
        results: Any = None,
        length: int = 0,
        checksum: int = 0,
        forged: Forgery | None = None,
    ) -> None:
        """Answer a command: well, unless the arguments say otherwise."""
        header = forged or Forgery()
        command = received.command
        if results is None and status is CommandStatus.OK:
            results = received.results(key_status, length, checksum)
        self.send(
            lambda out: emit_response(
                out,
                opcode=command.opcode if header.opcode is None else header.opcode,
                status=status,
                command_id=command.command_id if header.command_id is None else header.command_id,
                session=header.session,
                boot_id=header.boot_id,
                result=result,
                results=results,
            )
        )

    def send(self, write: Callable[[Any], int]) -> None:
        """Send what ``write`` puts into a buffer."""
        slot = self._next_slot
        self._next_slot = (slot + 1) % RING
        self._sent.post_send(self.qp, [slot], [write(self._sent[slot])])
        self._fabric.progress()

    def garble(self) -> None:
        """Send bytes that are no response."""

        def write(out: RecordArray) -> int:
            out[:100] = 0xA5
            return 100

        self.send(write)


class Rig:
    """A command queue on one loopback device, a scripted agent on the other; no thread."""

    def __init__(self, *, depth: int = 4, granted: int | None = None, staging: int = 4096) -> None:
        self.fabric = LoopbackFabric()
        self.device = self.fabric.devices[0]
        self.agent = ScriptedAgent(self.fabric)
        self.now_ns = 0
        cq = self.device.create_cq(2 * depth)
        self.completions = cq
        self.qp = self.device.create_qp(cq, QpOptions(max_send_wr=depth, max_recv_wr=depth))
        connect([self.qp, self.agent.qp])
        memory = self.device.alloc(staging)
        self.staging = Staging(Region(self.device.register(memory, REMOTE_ACCESS), memory))
        self.queue = CommandQueue(
            self.device,
            self.qp,
            self.completions,
            CapsuleRing(self.device, depth),
            CapsuleRing(self.device, depth),
            Peer(SESSION, BOOT_ID),
            depth if granted is None else granted,
        )

    def pump(self, later_ms: int = 0) -> None:
        """Let ``later_ms`` pass, then drive the queue and the wire until both rest."""
        self.now_ns += later_ms * 1_000_000
        self.fabric.progress()
        while self.queue.pump(self.now_ns) or self.fabric.progress():
            pass
