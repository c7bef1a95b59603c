"""Blocks of a colder tier: seen by lookups, awaited by a RETRIEVE that sends the others at once."""

from __future__ import annotations

import numpy as np
import pytest

from kvlane.capsule import CommandFlags, CommandStatus, KeyStatus, Opcode, Response
from kvlane.verbs.enums import WrOpcode
from tests.support.capsule_host import BLOCK_BYTES, CapsuleHost, ServerRig, key_array
from tests.support.cold_blocks import cold_rig, content, promote


def only_response(host: CapsuleHost) -> Response:
    (response,) = host.responses()
    return response


def test_exist_and_match_see_what_lies_colder() -> None:
    rig, host = cold_rig(2, 3, hot_keys=(1, 4))
    exist = rig.ask(host, Opcode.EXIST, key_array(1, 2, 9, 3))
    assert exist.results.tolist() == [0, 0, KeyStatus.NOT_FOUND, 0]
    assert rig.ask(host, Opcode.MATCH, key_array(1, 2, 3, 4, 9, 1)).result == 4
    assert rig.ask(host, Opcode.MATCH, key_array(9, 1)).result == 0


def test_what_is_in_memory_is_sent_before_the_rest_has_come() -> None:
    rig, host = cold_rig(2, hot_keys=(1, 3))
    host.send(Opcode.RETRIEVE, key_array(1, 2, 3), host.descriptors(10, 11, 12))
    rig.run()
    assert np.array_equal(host.block(10), host.block(0))
    assert np.array_equal(host.block(12), host.block(1))
    assert host.responses() == []
    (awaited,) = rig.colder.awaited
    assert awaited.keys.tolist() == key_array(2).tolist()
    assert rig.store.stats().pinned == 0
    promote(rig, 2)
    rig.resume(awaited)
    response = only_response(host)
    assert (response.status, response.result) == (CommandStatus.OK, 3)
    assert np.array_equal(host.block(11), content(2))
    assert response.results["length"].tolist() == [BLOCK_BYTES] * 3
    assert rig.store.stats().pinned == 0


def test_blocks_that_come_early_wait_for_those_that_are_being_sent() -> None:
    rig, host = cold_rig(2, hot_keys=(1,))
    rig.fabric.hold(WrOpcode.RDMA_WRITE)
    host.send(Opcode.RETRIEVE, key_array(1, 2), host.descriptors(10, 11))
    rig.run()
    promote(rig, 2)
    rig.resume(rig.colder.awaited[0])
    assert host.responses() == []
    rig.fabric.release()
    rig.run()
    assert only_response(host).result == 2
    assert np.array_equal(host.block(10), host.block(0))
    assert np.array_equal(host.block(11), content(2))


def test_what_does_not_come_is_not_found() -> None:
    rig, host = cold_rig(2, 5, hot_keys=(1,))
    host.send(Opcode.RETRIEVE, key_array(2, 1, 5, 9), host.descriptors(10, 11, 12, 13))
    rig.run()
    promote(rig, 5)
    rig.resume(rig.colder.awaited[0])
    response = only_response(host)
    absent, found = KeyStatus.NOT_FOUND, KeyStatus.OK
    assert response.results["status"].tolist() == [absent, found, found, absent]
    assert response.results["length"].tolist() == [0, BLOCK_BYTES, BLOCK_BYTES, 0]


def test_a_buffer_that_is_too_short_is_told_when_the_block_has_come() -> None:
    rig, host = cold_rig(2)
    descriptors = host.descriptors(10)
    descriptors["length"] = BLOCK_BYTES - 1
    host.send(Opcode.RETRIEVE, key_array(2), descriptors)
    rig.run()
    promote(rig, 2)
    rig.resume(rig.colder.awaited[0])
    (result,) = only_response(host).results
    assert (result["status"], result["length"]) == (KeyStatus.BAD_LENGTH, BLOCK_BYTES)
    assert rig.store.stats().pinned == 0


def test_a_command_is_resumed_once() -> None:
    rig, host = cold_rig(2, 3)
    host.send(Opcode.RETRIEVE, key_array(2), host.descriptors(10), command_id=1)
    rig.run()
    first = rig.colder.awaited[0]
    rig.resume(first)
    host.send(Opcode.RETRIEVE, key_array(3), host.descriptors(11), command_id=2)
    rig.run()
    rig.resume(first)
    assert [response.command_id for response in host.responses()] == [1]
    rig.resume(rig.colder.awaited[1])
    assert [response.command_id for response in host.responses()] == [2]


def test_a_session_that_ends_meanwhile_is_left_alone() -> None:
    rig, host = cold_rig(2)
    host.send(Opcode.RETRIEVE, key_array(2), host.descriptors(10))
    rig.run()
    rig.server.close(host.session)
    promote(rig, 2)
    rig.resume(rig.colder.awaited[0])
    successor = rig.attach(99)
    rig.resume(rig.colder.awaited[0])
    assert rig.failures == []
    assert rig.ask(successor, Opcode.EXIST, key_array(2)).result == 1
    assert rig.store.stats().pinned == 0


def test_awaited_commands_count_as_in_flight() -> None:
    rig, host = cold_rig(2)
    for number in range(rig.queue_depth + 1):
        host.send(Opcode.RETRIEVE, key_array(2), host.descriptors(10), command_id=number)
    rig.run()
    assert only_response(host).status == CommandStatus.TOO_MANY_IN_FLIGHT
    promote(rig, 2)
    for awaited in list(rig.colder.awaited):
        rig.resume(awaited)
    assert [response.result for response in host.responses()] == [1] * rig.queue_depth


@pytest.mark.parametrize("comes", [True, False])
def test_a_region_is_not_given_back_while_blocks_for_it_are_awaited(comes: bool) -> None:
    rig, host = cold_rig(2)
    host.send(Opcode.RETRIEVE, key_array(2), host.descriptors(10))
    rig.run()
    ended: list[bool] = []
    rig.server.deregister(host.session, [host.remote_region.rkey], lambda: ended.append(True))
    assert ended == []
    if comes:
        promote(rig, 2)
    rig.resume(rig.colder.awaited[0])
    assert ended == [True]
    assert only_response(host).result == int(comes)


def test_a_delete_is_answered_when_the_colder_tier_has_forgotten_too() -> None:
    rig, host = cold_rig(2, hot_keys=(1,))
    host.send(Opcode.DELETE, key_array(1, 2, 9, 2))
    rig.run()
    assert host.responses() == []
    (awaited,) = rig.colder.awaited
    assert (awaited.opcode, awaited.keys.tolist()) == (
        Opcode.DELETE,
        key_array(1, 2, 9, 2).tolist(),
    )
    rig.cold.delete(key_array(2))
    rig.resume(awaited)
    response = only_response(host)
    absent = KeyStatus.NOT_FOUND
    assert (response.results.tolist(), response.result) == ([0, 0, absent, 0], 3)
    assert rig.ask(host, Opcode.EXIST, key_array(1, 2)).result == 0


def test_a_delete_of_what_is_in_memory_alone_waits_too() -> None:
    """A copy may be on its way, which must not come back."""
    rig, host = cold_rig(2, hot_keys=(1,))
    host.send(Opcode.DELETE, key_array(1, 9))
    rig.run()
    assert host.responses() == []
    rig.resume(rig.colder.awaited[0])
    assert only_response(host).result == 1


def test_a_delete_of_what_is_nowhere_is_answered_at_once() -> None:
    rig, host = cold_rig(2, hot_keys=(1,))
    assert rig.ask(host, Opcode.DELETE, key_array(8, 9)).result == 0
    assert rig.colder.awaited == []


@pytest.mark.parametrize(("low_water", "pressed"), [(0, 0), (14, 0), (15, 1)])
def test_a_store_that_leaves_few_slots_free_is_told(low_water: int, pressed: int) -> None:
    rig = ServerRig(capacity_blocks=16, low_water_blocks=low_water)
    (host,) = rig.hosts
    host.fill([0, 1])
    rig.ask(host, Opcode.STORE, key_array(1, 2), host.descriptors(0, 1))
    assert rig.colder.pressed == pressed


def keep(rig: ServerRig, *keys: int) -> None:
    """Copy blocks into the colder tier."""
    slots, _ = rig.cold.reserve(key_array(*keys), np.full(len(keys), BLOCK_BYTES))
    rig.cold.publish(slots[slots >= 0], np.zeros(int((slots >= 0).sum()), np.uint32), 0)


def test_a_persistent_store_is_answered_when_its_blocks_survive() -> None:
    cold, _ = cold_rig(7)
    rig = ServerRig(cold=cold.cold, low_water_blocks=1)
    (host,) = rig.hosts
    host.fill([0, 1, 2])
    rig.ask(host, Opcode.STORE, key_array(2), host.descriptors(1))
    keys, flags = key_array(1, 2, 3), CommandFlags.PERSISTENT
    host.send(Opcode.STORE, keys, host.descriptors(0, 1, 2), flags=flags)
    rig.run()
    assert host.responses() == []
    (awaited,) = rig.colder.awaited
    assert (awaited.opcode, awaited.keys.tolist()) == (Opcode.STORE, keys.tolist())
    keep(rig, 1, 2)
    rig.resume(awaited)
    response = only_response(host)
    wanted = [KeyStatus.OK, KeyStatus.EXISTS, KeyStatus.NOT_PERSISTENT]
    assert response.results["status"].tolist() == wanted
    assert response.result == 2
    assert rig.ask(host, Opcode.EXIST, keys).result == 3


def test_without_a_colder_tier_nothing_is_persistent() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    host.fill([0])
    flags = CommandFlags.PERSISTENT
    response = rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0), flags)
    assert response.results["status"].tolist() == [KeyStatus.NOT_PERSISTENT]
    assert rig.ask(host, Opcode.EXIST, key_array(1)).result == 1


def test_a_persistent_store_of_which_nothing_is_there_is_answered_at_once() -> None:
    rig = ServerRig(low_water_blocks=1)
    (host,) = rig.hosts
    descriptors = host.descriptors(0)
    descriptors["rkey"] += 1
    response = rig.ask(host, Opcode.STORE, key_array(1), descriptors, CommandFlags.PERSISTENT)
    assert response.results["status"].tolist() == [KeyStatus.BAD_REGION]
    assert rig.colder.awaited == []


def test_a_delete_that_may_come_back_says_so() -> None:
    rig, host = cold_rig(2, hot_keys=(1,))
    host.send(Opcode.DELETE, key_array(1, 2, 9))
    rig.run()
    rig.server.resume(rig.colder.awaited[0], 0, succeeded=False)
    rig.run()
    response = only_response(host)
    aborted, absent = KeyStatus.ABORTED, KeyStatus.NOT_FOUND
    assert (response.results.tolist(), response.result) == ([aborted, aborted, absent], 0)
