"""Hits and misses by tier, and bytes, of each tenant: what its sessions looked up and moved."""

from __future__ import annotations

import numpy as np

from dpu_agent.data.counting import (
    LATENCY_CLASSES,
    MAX_TENANTS,
    OTHER_TENANTS,
    TENANT_WORDS,
    TIERS,
    Found,
    TenantWord,
    latency_row,
)
from dpu_agent.metrics.tenants import OTHER, TenantRows
from kvlane.capsule import CommandFlags, KeyStatus, Opcode
from tests.support.capsule_host import BLOCK_BYTES, ServerRig, key_array
from tests.support.cold_blocks import cold_rig, promote

FOUND = {
    Opcode.RETRIEVE: TenantWord.RETRIEVE_KEYS,
    Opcode.EXIST: TenantWord.EXIST_KEYS,
    Opcode.MATCH: TenantWord.MATCH_KEYS,
}


def found(rig: ServerRig, operation: Opcode, tenant: int = OTHER_TENANTS) -> list[int]:
    """Keys found in memory, in the colder tier, nowhere."""
    first = FOUND[operation]
    counts: list[int] = rig.server.counts.tenants[tenant, first : first + 3].tolist()
    return counts


def moved(rig: ServerRig, tenant: int = OTHER_TENANTS) -> list[int]:
    """Bytes stored and retrieved."""
    row = rig.server.counts.tenants[tenant]
    return [int(row[TenantWord.STORED_BYTES]), int(row[TenantWord.RETRIEVED_BYTES])]


def test_words_do_not_overlap() -> None:
    assert max(TenantWord) < TENANT_WORDS
    words = [first + offset for first in FOUND.values() for offset in Found]
    assert len({*words, TenantWord.STORED_BYTES, TenantWord.RETRIEVED_BYTES}) == len(words) + 2


def test_memory_alone() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    rig.ask(host, Opcode.STORE, key_array(1, 2), host.descriptors(0, 1))
    rig.ask(host, Opcode.STORE, key_array(2, 3), host.descriptors(1, 2))
    rig.ask(host, Opcode.RETRIEVE, key_array(1, 9, 2), host.descriptors(5, 6, 7))
    rig.ask(host, Opcode.EXIST, key_array(9, 8, 1))
    rig.ask(host, Opcode.MATCH, key_array(1, 2, 9, 3))
    assert found(rig, Opcode.RETRIEVE) == [2, 0, 1]
    assert found(rig, Opcode.EXIST) == [1, 0, 2]
    assert found(rig, Opcode.MATCH) == [2, 0, 2]
    assert moved(rig) == [3 * BLOCK_BYTES, 2 * BLOCK_BYTES]


def test_lookups_tell_the_tiers_apart() -> None:
    rig, host = cold_rig(1, 2, 3, hot_keys=(1, 4))
    rig.ask(host, Opcode.EXIST, key_array(1, 2, 9, 3))
    rig.ask(host, Opcode.MATCH, key_array(1, 2, 4, 3, 9, 1))
    assert found(rig, Opcode.EXIST) == [1, 2, 1]
    assert found(rig, Opcode.MATCH) == [2, 2, 2]


def test_a_retrieve_counts_cold_keys_when_they_have_come_or_have_not() -> None:
    rig, host = cold_rig(2, 3, hot_keys=(1,))
    host.send(Opcode.RETRIEVE, key_array(1, 2, 3, 9), host.descriptors(1, 2, 3, 4))
    rig.run()
    assert found(rig, Opcode.RETRIEVE) == [1, 0, 1]
    promote(rig, 2)
    rig.resume(rig.colder.awaited[0])
    assert found(rig, Opcode.RETRIEVE) == [1, 1, 2]
    assert moved(rig)[1] == 2 * BLOCK_BYTES
    (response,) = host.responses()
    assert response.results["status"].tolist() == [0, 0, *[KeyStatus.NOT_FOUND] * 2]
    latencies = rig.server.counts.latencies
    waited = latencies[latency_row(Opcode.RETRIEVE, TIERS.index("nvme"))]
    assert waited[:LATENCY_CLASSES].sum() == 1
    assert not latencies[latency_row(Opcode.RETRIEVE, TIERS.index("memory"))].any()


def test_what_is_in_no_region_is_not_looked_for() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    descriptors = host.descriptors(0, 1)
    descriptors["rkey"][0] += 1
    rig.ask(host, Opcode.RETRIEVE, key_array(1, 2), descriptors)
    assert found(rig, Opcode.RETRIEVE) == [0, 0, 1]


def test_a_block_that_was_not_as_its_checksum_says_is_not_stored() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    descriptors = host.descriptors(0)
    response = rig.ask(host, Opcode.STORE, key_array(1), descriptors, CommandFlags.CHECKSUM)
    assert response.results["status"].tolist() == [KeyStatus.CHECKSUM_MISMATCH]
    assert moved(rig) == [0, 0]


def test_sessions_of_a_tenant_are_counted_together_and_outlived() -> None:
    rig = ServerRig()
    for session, tenant in ((10, 4), (11, 4), (12, 5)):
        rig.ask(rig.attach(session, tenant=tenant), Opcode.EXIST, key_array(1))
    assert (found(rig, Opcode.EXIST, 4), found(rig, Opcode.EXIST, 5)) == ([0, 0, 2], [0, 0, 1])
    rig.server.close(10)
    rig.server.close(11)
    assert found(rig, Opcode.EXIST, 4) == [0, 0, 2]
    assert not rig.server.counts.tenants[OTHER_TENANTS].any()


def test_names_keep_their_rows() -> None:
    rows = TenantRows()
    first = [rows.row_of(name) for name in ("a", "b", "a", "b")]
    assert first == [0, 1, 0, 1]
    assert rows.names() == {0: "a", 1: "b"}


def test_names_without_end_share_a_row() -> None:
    rows = TenantRows()
    own = [rows.row_of(f"tenant {number}") for number in range(MAX_TENANTS)]
    assert own == list(range(MAX_TENANTS))
    assert OTHER not in rows.names().values()
    late = {rows.row_of(f"late {number}") for number in range(1000)}
    assert late == {OTHER_TENANTS}
    assert len(rows.names()) == MAX_TENANTS + 1
    assert rows.names()[OTHER_TENANTS] == OTHER
    assert rows.row_of("tenant 3") == 3


def test_a_tenant_that_is_called_other_is_counted_among_them() -> None:
    rows = TenantRows()
    assert rows.row_of(OTHER) == OTHER_TENANTS
    assert rows.row_of("a") == 0
    assert rows.names() == {OTHER_TENANTS: OTHER, 0: "a"}


def test_rows_are_there_for_all() -> None:
    tenants = ServerRig().server.counts.tenants
    assert tenants.shape == (OTHER_TENANTS + 1, TENANT_WORDS)
    assert tenants.dtype == np.int64
