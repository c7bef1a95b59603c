"""What each command answers for each key, and what it leaves in the store."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from kvlane.capsule import CommandFlags, KeyStatus, Opcode
from kvlane.verbs.enums import WrOpcode
from tests.support.capsule_host import BLOCK_BYTES, CapsuleHost, ServerRig, key_array

OK = KeyStatus.OK


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


@pytest.fixture
def host(rig: ServerRig) -> CapsuleHost:
    rig.hosts[0].fill(range(16))
    return rig.hosts[0]


def holds_nothing(rig: ServerRig) -> bool:
    stats = rig.store.stats()
    return stats.pinned == 0 and stats.writing == 0


def test_store_reports_length_checksum_and_generation(rig: ServerRig, host: CapsuleHost) -> None:
    descriptors = host.descriptors(0, 1)
    descriptors["length"][1] = 100
    response = rig.ask(host, Opcode.STORE, key_array(1, 2), descriptors)
    assert response.results["length"].tolist() == [BLOCK_BYTES, 100]
    wanted = [zlib.crc32(host.block(0).tobytes()), zlib.crc32(host.block(1)[:100].tobytes())]
    assert response.results["checksum"].tolist() == wanted
    read = rig.ask(host, Opcode.RETRIEVE, key_array(1, 2), host.descriptors(2, 3))
    assert read.results["generation"].tolist() == response.results["generation"].tolist()


def test_the_first_writer_of_a_key_wins(rig: ServerRig, host: CapsuleHost) -> None:
    rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0))
    again = rig.ask(host, Opcode.STORE, key_array(1, 2), host.descriptors(1, 2))
    assert again.results["status"].tolist() == [KeyStatus.EXISTS, OK]
    assert again.result == 2
    rig.ask(host, Opcode.RETRIEVE, key_array(1), host.descriptors(9))
    assert np.array_equal(host.block(9), host.block(0))


def test_a_key_twice_in_one_store_is_stored_once(rig: ServerRig, host: CapsuleHost) -> None:
    response = rig.ask(host, Opcode.STORE, key_array(1, 1), host.descriptors(0, 1))
    assert response.results["status"].tolist() == [OK, KeyStatus.EXISTS]
    assert rig.store.stats().blocks == 1


@pytest.mark.parametrize("length", [0, BLOCK_BYTES + 1])
def test_a_length_that_fits_no_slot(rig: ServerRig, host: CapsuleHost, length: int) -> None:
    response = rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0, length=length))
    assert response.results["status"].tolist() == [KeyStatus.BAD_LENGTH]
    assert (response.result, rig.store.stats().blocks) == (0, 0)


def test_no_space_while_every_slot_is_being_read(host: CapsuleHost, rig: ServerRig) -> None:
    keys = key_array(*range(16))
    rig.ask(host, Opcode.STORE, keys, host.descriptors(*range(16)))
    rig.fabric.hold(WrOpcode.RDMA_WRITE)
    host.send(Opcode.RETRIEVE, keys, host.descriptors(*range(16)))
    host.send(Opcode.STORE, key_array(99), host.descriptors(0))
    rig.run()
    rig.fabric.release()
    rig.run()
    read, refused = host.responses()
    if read.opcode == Opcode.STORE:
        read, refused = refused, read
    assert read.results["status"].tolist() == [OK] * 16
    assert refused.results["status"].tolist() == [KeyStatus.NO_SPACE]


def test_a_bad_range_costs_its_key_only(rig: ServerRig, host: CapsuleHost) -> None:
    descriptors = host.descriptors(0, 1, 2, 3)
    descriptors["rkey"][0] ^= 1
    descriptors["addr"][1] += host.memory.nbytes
    descriptors["addr"][2] -= 3 * BLOCK_BYTES
    for opcode in (Opcode.STORE, Opcode.RETRIEVE):
        response = rig.ask(host, opcode, key_array(1, 2, 3, 4), descriptors)
        bad = KeyStatus.BAD_REGION
        assert response.results["status"].tolist() == [bad, bad, bad, OK]
        assert response.result == 1
    assert rig.failures == []
    assert holds_nothing(rig)


def test_a_wrong_checksum_is_not_published(rig: ServerRig, host: CapsuleHost) -> None:
    descriptors = host.descriptors(0, 1, 2)
    descriptors["checksum"] = [zlib.crc32(host.block(i).tobytes()) for i in range(3)]
    descriptors["checksum"][1] ^= 1
    response = rig.ask(host, Opcode.STORE, key_array(1, 2, 3), descriptors, CommandFlags.CHECKSUM)
    mismatch = KeyStatus.CHECKSUM_MISMATCH
    assert response.results["status"].tolist() == [OK, mismatch, OK]
    assert response.results["checksum"][2] == descriptors["checksum"][2]
    found = rig.ask(host, Opcode.EXIST, key_array(1, 2, 3))
    assert found.results.tolist() == [OK, KeyStatus.NOT_FOUND, OK]
    assert holds_nothing(rig)
    assert rig.ask(host, Opcode.STORE, key_array(2), host.descriptors(1)).result == 1


def test_without_the_flag_the_checksum_is_not_compared(rig: ServerRig, host: CapsuleHost) -> None:
    descriptors = host.descriptors(0)
    descriptors["checksum"] = 1
    assert rig.ask(host, Opcode.STORE, key_array(1), descriptors).result == 1


def test_retrieve_of_absent_keys_moves_nothing_for_them(rig: ServerRig, host: CapsuleHost) -> None:
    rig.ask(host, Opcode.STORE, key_array(2), host.descriptors(0))
    before = host.memory.copy()
    response = rig.ask(host, Opcode.RETRIEVE, key_array(1, 2, 3), host.descriptors(4, 5, 6))
    missing = KeyStatus.NOT_FOUND
    assert response.results["status"].tolist() == [missing, OK, missing]
    assert np.array_equal(host.block(5), host.block(0))
    host.block(5)[:] = before[5 * BLOCK_BYTES : 6 * BLOCK_BYTES]
    assert np.array_equal(host.memory, before)


def test_a_short_buffer_is_told_what_it_needs(rig: ServerRig, host: CapsuleHost) -> None:
    for _ in range(2):  # so that the slots differ in their generations
        rig.ask(host, Opcode.DELETE, key_array(1))
        rig.ask(host, Opcode.STORE, key_array(1, 2), host.descriptors(0, 1))
    before = host.block(4).copy()
    descriptors = host.descriptors(4, 5)
    descriptors["length"][0] = BLOCK_BYTES - 1
    response = rig.ask(host, Opcode.RETRIEVE, key_array(1, 2), descriptors)
    assert response.results["status"].tolist() == [KeyStatus.BAD_LENGTH, OK]
    assert response.results["length"].tolist() == [BLOCK_BYTES, BLOCK_BYTES]
    assert np.array_equal(host.block(4), before)
    assert holds_nothing(rig)


def test_a_larger_buffer_gets_the_stored_bytes_only(rig: ServerRig, host: CapsuleHost) -> None:
    rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0, length=10))
    rest = host.block(4)[10:].copy()
    response = rig.ask(host, Opcode.RETRIEVE, key_array(1), host.descriptors(4))
    assert response.results["length"].tolist() == [10]
    assert np.array_equal(host.block(4)[:10], host.block(0)[:10])
    assert np.array_equal(host.block(4)[10:], rest)


def test_a_block_deleted_under_a_reader_is_still_read_whole(
    rig: ServerRig, host: CapsuleHost
) -> None:
    rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0))
    rig.fabric.hold(WrOpcode.RDMA_WRITE)
    host.send(Opcode.RETRIEVE, key_array(1), host.descriptors(4), command_id=1)
    host.send(Opcode.DELETE, key_array(1), command_id=2)
    host.send(Opcode.STORE, key_array(1), host.descriptors(1), command_id=3)
    rig.run()
    rig.fabric.release()
    rig.run()
    statuses = {r.command_id: np.atleast_1d(r.results)[:1] for r in host.responses()}
    assert statuses[1]["status"].tolist() == [OK]
    assert statuses[2].tolist() == [OK]
    assert np.array_equal(host.block(4), host.block(0))
    assert holds_nothing(rig)


def test_a_slot_that_changed_under_its_reader_is_aborted(
    rig: ServerRig, host: CapsuleHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask(host, Opcode.STORE, key_array(1, 2), host.descriptors(0, 1))
    unpin = rig.store.unpin

    def first_is_stale(slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
        held = unpin(slots, generations)
        held[:1] = False
        return held

    monkeypatch.setattr(rig.store, "unpin", first_is_stale)
    response = rig.ask(host, Opcode.RETRIEVE, key_array(1, 2), host.descriptors(4, 5))
    # The empty batch of refused buffers is unpinned as well, and has no first slot.
    assert response.results["status"].tolist() == [KeyStatus.ABORTED, OK]
    assert response.results["length"].tolist() == [0, BLOCK_BYTES]
    assert response.result == 1


def test_exist_match_and_delete(rig: ServerRig, host: CapsuleHost) -> None:
    rig.ask(host, Opcode.STORE, key_array(1, 2, 4), host.descriptors(0, 1, 2))
    missing = KeyStatus.NOT_FOUND
    found = rig.ask(host, Opcode.EXIST, key_array(1, 2, 3, 4))
    assert (found.results.tolist(), found.result) == ([OK, OK, missing, OK], 3)
    assert rig.ask(host, Opcode.MATCH, key_array(1, 2, 3, 4)).result == 2
    gone = rig.ask(host, Opcode.DELETE, key_array(1, 3))
    assert (gone.results.tolist(), gone.result) == ([OK, missing], 1)
    assert rig.ask(host, Opcode.MATCH, key_array(1, 2, 3, 4)).result == 0
    assert holds_nothing(rig)
