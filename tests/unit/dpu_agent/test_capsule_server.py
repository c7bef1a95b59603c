"""The capsule server: one response per command, order of transfer and response, credits,
malformed capsules, sessions that fail or close in the middle, regions taken away."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from dpu_agent.control.core import RemoteRegion
from dpu_agent.data.state import SEND_QUEUE_DEPTH
from kvlane.capsule import (
    COMMAND_HEADER,
    HEADER_BYTES,
    CommandStatus,
    KeyStatus,
    Opcode,
    command_nbytes,
    emit_command,
)
from kvlane.errors import SessionError, VerbsError
from kvlane.limits import CREDIT_SLACK, MAX_CAPSULE_BYTES
from kvlane.verbs.enums import QpState, WrOpcode
from tests.support.capsule_host import BLOCK_BYTES, BOOT_ID, ServerRig, key_array
from tests.support.loopback_verbs import LoopbackCq, LoopbackQp


def agent_qps(rig: ServerRig) -> list[LoopbackQp]:
    return [qp for qp in rig.fabric.qps.values() if qp.device is rig.agent_device]


def capsule(session: int, *, command_id: int = 7) -> np.ndarray:
    out = np.zeros(command_nbytes(2, 0), np.uint8)
    emit_command(
        out, opcode=Opcode.EXIST, command_id=command_id, session=session, keys=key_array(1, 2)
    )
    return out


def test_what_was_stored_is_retrieved_byte_for_byte_into_other_memory() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    host.fill([0, 1, 2])
    stored = rig.ask(host, Opcode.STORE, key_array(1, 2, 3), host.descriptors(0, 1, 2))
    assert (stored.status, stored.result) == (CommandStatus.OK, 3)
    retrieved = rig.ask(host, Opcode.RETRIEVE, key_array(3, 1, 2), host.descriptors(12, 10, 11))
    assert retrieved.results["status"].tolist() == [KeyStatus.OK] * 3
    for index in range(3):
        assert np.array_equal(host.block(10 + index), host.block(index))
    sums = [zlib.crc32(host.block(index).tobytes()) for index in (2, 0, 1)]
    assert retrieved.results["checksum"].tolist() == sums
    assert retrieved.results["length"].tolist() == [BLOCK_BYTES] * 3


def test_priority_changes_neither_order_nor_answer() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    for command_id, priority in enumerate((0, 255, 1)):
        out = np.zeros(command_nbytes(2, 0), np.uint8)
        emit_command(
            out,
            opcode=Opcode.EXIST,
            command_id=command_id,
            session=host.session,
            keys=key_array(1, 2),
            priority=priority,
        )
        host.send_bytes(out)
    rig.run()
    answered = [(response.command_id, response.status) for response in host.responses()]
    assert answered == [(number, CommandStatus.OK) for number in range(3)]


def test_every_response_carries_boot_id_session_and_command_id() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    host.send(Opcode.MATCH, key_array(1), command_id=0xDEADBEEF)
    rig.run()
    (response,) = host.responses()
    assert (response.boot_id, response.session, response.command_id) == (
        BOOT_ID,
        host.session,
        0xDEADBEEF,
    )


@pytest.mark.parametrize("held", [WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE])
def test_no_response_before_the_transfer_has_completed(held: WrOpcode) -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    opcode = Opcode.STORE
    if held is WrOpcode.RDMA_WRITE:
        rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0))
        opcode = Opcode.RETRIEVE
    rig.fabric.hold(held)
    host.send(opcode, key_array(1), host.descriptors(1))
    rig.run()
    assert host.responses() == []
    rig.fabric.release()
    rig.run()
    (response,) = host.responses()
    assert response.results["status"].tolist() == [KeyStatus.OK]


def test_a_block_is_invisible_until_its_last_byte_is_in() -> None:
    rig = ServerRig(hosts=2)
    writer, reader = rig.hosts
    rig.fabric.hold(WrOpcode.RDMA_READ)
    writer.send(Opcode.STORE, key_array(1), writer.descriptors(0))
    rig.run()
    assert rig.ask(reader, Opcode.MATCH, key_array(1)).result == 0
    second = rig.ask(reader, Opcode.STORE, key_array(1), reader.descriptors(0))
    assert second.results["status"].tolist() == [KeyStatus.EXISTS]
    rig.fabric.release()
    rig.run()
    assert rig.ask(reader, Opcode.MATCH, key_array(1)).result == 1


MALFORMED = {
    "magic": CommandStatus.BAD_MAGIC,
    "version": CommandStatus.BAD_VERSION,
    "opcode": CommandStatus.BAD_OPCODE,
    "flags": CommandStatus.BAD_FLAGS,
    "key_count": CommandStatus.BAD_COUNT,
    "length": CommandStatus.BAD_LENGTH,
    "session": CommandStatus.BAD_SESSION,
}


@pytest.mark.parametrize("field", MALFORMED)
def test_a_malformed_capsule_is_answered_once_and_the_session_goes_on(field: str) -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    broken = capsule(host.session)
    broken[:HEADER_BYTES].view(COMMAND_HEADER)[field] = 0xFF if field != "key_count" else 0
    host.send_bytes(broken)
    host.send_bytes(capsule(host.session, command_id=8))
    rig.run()
    refused, answered = host.responses()
    assert (refused.status, refused.command_id) == (MALFORMED[field], 7)
    assert (answered.status, answered.command_id) == (CommandStatus.OK, 8)


@pytest.mark.parametrize("nbytes", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, MAX_CAPSULE_BYTES])
def test_a_capsule_of_any_length_gets_one_response(nbytes: int) -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    host.send_bytes(np.full(nbytes, 0xA5, np.uint8))
    rig.run()
    (response,) = host.responses()
    assert response.status in (CommandStatus.BAD_LENGTH, CommandStatus.BAD_MAGIC)
    assert rig.failures == []


def test_commands_beyond_the_granted_depth_are_refused_and_not_executed() -> None:
    rig = ServerRig(queue_depth=2)
    (host,) = rig.hosts
    rig.fabric.hold(WrOpcode.RDMA_READ)
    for number in range(4):
        host.send(Opcode.STORE, key_array(number), host.descriptors(number), command_id=number)
    rig.run()
    rig.fabric.release()
    rig.run()
    statuses = {response.command_id: response.status for response in host.responses()}
    assert statuses == {
        0: CommandStatus.OK,
        1: CommandStatus.OK,
        2: CommandStatus.TOO_MANY_IN_FLIGHT,
        3: CommandStatus.TOO_MANY_IN_FLIGHT,
    }
    found = rig.ask(host, Opcode.EXIST, key_array(0, 1, 2, 3)).results.tolist()
    assert found == [KeyStatus.OK, KeyStatus.OK, KeyStatus.NOT_FOUND, KeyStatus.NOT_FOUND]


def test_a_credit_is_back_once_the_response_has_been_sent() -> None:
    rig = ServerRig(queue_depth=1)
    (host,) = rig.hosts
    for number in range(50):
        response = rig.ask(host, Opcode.STORE, key_array(number), host.descriptors(number))
        assert response.status is CommandStatus.OK


def test_a_host_that_takes_no_responses_waits_and_loses_none() -> None:
    rig = ServerRig(queue_depth=2)
    host = rig.attach(1, receives=1)
    commands = 3 * (2 + CREDIT_SLACK)
    for number in range(commands):
        host.send(Opcode.MATCH, key_array(1), command_id=number)
    seen: list[int] = []
    while True:
        rig.run()
        arrived = host.responses()
        if not arrived:
            break
        seen += [response.command_id for response in arrived]
    assert seen == list(range(commands))


def test_a_command_of_more_keys_than_the_send_queue_holds() -> None:
    count = 3 * SEND_QUEUE_DEPTH + 1
    rig = ServerRig(capacity_blocks=1024)
    (host,) = rig.hosts
    keys = key_array(*range(count))
    host.fill(range(count))
    before = host.memory[: count * BLOCK_BYTES].copy()
    host.send(Opcode.STORE, keys, host.descriptors(*range(count)), command_id=1)
    host.send(Opcode.MATCH, keys, command_id=2)
    rig.run()
    assert {response.command_id for response in host.responses()} == {1, 2}
    host.memory[:] = 0
    response = rig.ask(host, Opcode.RETRIEVE, keys, host.descriptors(*range(count)))
    assert response.result == count
    assert np.array_equal(host.memory[: count * BLOCK_BYTES], before)


def test_a_dead_host_ends_its_session_and_no_other() -> None:
    rig = ServerRig(hosts=2)
    dying, living = rig.hosts
    rig.ask(living, Opcode.STORE, key_array(1), living.descriptors(0))
    rig.fabric.hold(WrOpcode.RDMA_READ, WrOpcode.RDMA_WRITE)
    dying.send(Opcode.STORE, key_array(2), dying.descriptors(0))
    dying.send(Opcode.RETRIEVE, key_array(1), dying.descriptors(1))
    rig.run()
    assert (rig.store.stats().writing, rig.store.stats().pinned) == (1, 1)
    rig.fabric.kill(rig.fabric.devices[1])
    rig.fabric.release()
    rig.run()
    ((session, reason),) = rig.failures
    assert session == dying.session
    assert "RETRY_EXC_ERR" in reason
    assert (rig.store.stats().writing, rig.store.stats().pinned) == (0, 0)
    retrieved = rig.ask(living, Opcode.RETRIEVE, key_array(1, 2), living.descriptors(4, 5))
    assert retrieved.results["status"].tolist() == [KeyStatus.OK, KeyStatus.NOT_FOUND]
    assert len(agent_qps(rig)) == 1


def test_the_cause_is_told_when_flushed_completions_come_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    poll = LoopbackCq.poll

    def poll_backwards(cq: LoopbackCq, out: np.recarray) -> int:
        count = poll(cq, out)
        out[:count] = out[:count][::-1].copy()
        return count

    monkeypatch.setattr(LoopbackCq, "poll", poll_backwards)
    host.region.close()
    host.send(Opcode.STORE, key_array(1), host.descriptors(0))
    rig.run()
    ((_, reason),) = rig.failures
    assert "REM_ACCESS_ERR" in reason


def test_memory_that_the_hosts_nic_refuses_ends_the_session_with_the_cause() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    host.region.close()
    host.send(Opcode.STORE, key_array(1), host.descriptors(0))
    rig.run()
    ((_, reason),) = rig.failures
    assert "REM_ACCESS_ERR" in reason
    assert rig.store.stats().writing == 0


@pytest.mark.parametrize("error", [VerbsError("refused"), RuntimeError("bug")])
def test_whatever_a_step_of_a_session_raises_ends_that_session_only(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ServerRig(hosts=2)
    unlucky, other = rig.hosts

    post_send = agent_qps(rig)[0].post_send
    failures = [error]

    def fail_once(requests: object) -> None:
        if failures:
            raise failures.pop()
        post_send(requests)

    monkeypatch.setattr(agent_qps(rig)[0], "post_send", fail_once)
    unlucky.send(Opcode.STORE, key_array(1), unlucky.descriptors(0))
    rig.run()
    assert [session for session, _ in rig.failures] == [unlucky.session]
    assert rig.store.stats().writing == 0
    assert rig.ask(other, Opcode.MATCH, key_array(1)).status is CommandStatus.OK


def test_a_message_larger_than_a_capsule_ends_that_session_only() -> None:
    rig = ServerRig(hosts=2)
    hostile, other = rig.hosts
    hostile.send_bytes(np.zeros(MAX_CAPSULE_BYTES + 1, np.uint8))
    rig.run()
    assert [session for session, _ in rig.failures] == [hostile.session]
    assert rig.ask(other, Opcode.MATCH, key_array(1)).status is CommandStatus.OK


def test_close_destroys_the_queue_pair_before_a_slot_can_be_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ServerRig(hosts=2, capacity_blocks=1)
    leaving, next_owner = rig.hosts
    leaving_qp = agent_qps(rig)[0]
    held_when_closed: list[int] = []
    close = leaving_qp.close

    def record_and_close() -> None:
        close()
        held_when_closed.append(rig.store.stats().writing)

    monkeypatch.setattr(leaving_qp, "close", record_and_close)
    leaving.fill([0], seed=1)
    next_owner.fill([0], seed=2)
    rig.fabric.hold(WrOpcode.RDMA_READ)
    leaving.send(Opcode.STORE, key_array(1), leaving.descriptors(0))
    rig.run()
    rig.server.close(leaving.session)
    assert held_when_closed[0] == 1
    assert rig.store.stats().writing == 0
    rig.fabric.release()
    stored = rig.ask(next_owner, Opcode.STORE, key_array(2), next_owner.descriptors(0))
    assert stored.results["status"].tolist() == [KeyStatus.OK]
    assert np.array_equal(rig.pool.buffer, next_owner.block(0))
    assert rig.failures == []


def test_completions_of_a_closed_session_do_not_reach_its_successor() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    (old,) = agent_qps(rig)
    host.send(Opcode.MATCH, key_array(1))
    rig.fabric.progress()
    rig.server.close(host.session)  # its completions, one good and many flushed, are not polled
    rig.fabric.restart_qp_nums()
    successor = rig.attach(2)
    (new,) = agent_qps(rig)
    assert new.endpoint.qp_num == old.endpoint.qp_num
    assert rig.ask(successor, Opcode.MATCH, key_array(1)).status is CommandStatus.OK
    assert rig.failures == []
    assert rig.server.executed == {"MATCH": 1}


def test_a_session_that_cannot_be_opened_leaves_no_queue_pair() -> None:
    rig = ServerRig(hosts=1)
    region = rig.hosts[0].remote_region
    before = len(agent_qps(rig)), len(rig.agent_device.regions)
    with pytest.raises(SessionError):
        rig.server.open(9, rig.hosts[0].qp.endpoint, [region, region], 4)
    assert (len(agent_qps(rig)), len(rig.agent_device.regions)) == before


def test_deregistered_memory_is_refused_at_once_and_released_after_its_last_command() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    rig.fabric.hold(WrOpcode.RDMA_READ)
    host.send(Opcode.STORE, key_array(1), host.descriptors(0), command_id=1)
    rig.run()
    released: list[bool] = []
    rig.server.deregister(host.session, [host.region.rkey], lambda: released.append(True))
    host.send(Opcode.STORE, key_array(2), host.descriptors(1), command_id=2)
    rig.run()
    assert released == []
    rig.fabric.release()
    rig.run()
    assert released == [True]
    statuses = {r.command_id: r.results["status"].tolist() for r in host.responses()}
    assert statuses == {1: [KeyStatus.OK], 2: [KeyStatus.BAD_REGION]}


def test_deregistration_that_waits_is_told_when_the_session_ends() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    rig.fabric.hold(WrOpcode.RDMA_READ)
    host.send(Opcode.STORE, key_array(1), host.descriptors(0))
    rig.run()
    released: list[QpState] = []
    (qp,) = agent_qps(rig)
    rig.server.deregister(host.session, [host.region.rkey], lambda: released.append(qp.state))
    rig.server.close(host.session)
    assert released == [QpState.RESET]


def test_deregistration_does_not_wait_for_other_regions() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    rig.server.register(host.session, [RemoteRegion(4096, 4096, 0x77)])
    rig.fabric.hold(WrOpcode.RDMA_READ)
    host.send(Opcode.STORE, key_array(1), host.descriptors(0))
    rig.run()
    released: list[bool] = []
    rig.server.deregister(host.session, [0x77], lambda: released.append(True))
    assert released == [True]


def test_executed_commands_are_counted_by_name_and_refused_ones_are_not() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    rig.ask(host, Opcode.MATCH, key_array(1))
    rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0))
    host.send(Opcode.MATCH, key_array(1), session=99)
    rig.run()
    assert rig.server.executed == {"MATCH": 1, "STORE": 1}
