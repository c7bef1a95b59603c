"""A policy that raises is seen, is not asked again, and takes nothing else down with it."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from dpu_agent.cache.invariants import check_invariants
from dpu_agent.cache.store import BlockStore
from kvlane.capsule import KeyStatus, Opcode
from tests.support.blocks import random_keys
from tests.support.capsule_host import BLOCK_BYTES, ServerRig, key_array
from tests.support.failing_policy import FailingPolicy

CAPACITY = 4
KEYS = random_keys(3 * CAPACITY)
every_function = pytest.mark.parametrize(
    "broken", ["inserted", "touched", "removed", "missed", "victim"]
)


def make_store(policy: FailingPolicy) -> BlockStore:
    return BlockStore(capacity_blocks=CAPACITY, block_bytes=BLOCK_BYTES, policy=policy, seed=3)


def put(store: BlockStore, rows: slice) -> list[int]:
    """Store what there is room for; the statuses."""
    keys = KEYS[rows]
    slots, statuses = store.reserve(keys, np.full(len(keys), BLOCK_BYTES))
    granted = slots[slots >= 0]
    store.publish(granted, np.zeros(len(granted), np.uint32), now=0)
    check_invariants(store)
    return [int(status) for status in statuses]


def use(store: BlockStore) -> None:
    """One block in, one read, one out, more than there is room for."""
    assert put(store, slice(0, CAPACITY)) == [KeyStatus.OK] * CAPACITY
    slots = store.pin(KEYS[:1], now=0)
    store.unpin(slots, store.generations(slots))
    store.delete(KEYS[1:2])
    assert put(store, slice(CAPACITY, 2 * CAPACITY)) == [KeyStatus.OK] * CAPACITY
    check_invariants(store)


def test_a_policy_in_python_that_does_not_fail_decides() -> None:
    policy = FailingPolicy()
    store = make_store(policy)
    use(store)
    assert store.stats().policy_faults == 0
    assert store.take_policy_fault() is None
    assert len(policy.ordered()) == CAPACITY


@every_function
def test_the_store_works_without_it(broken: str) -> None:
    policy = FailingPolicy()
    policy.broken = broken
    store = make_store(policy)
    use(store)
    assert store.exist(KEYS[CAPACITY : 2 * CAPACITY]).tolist() == [KeyStatus.OK] * CAPACITY
    assert (policy.asked, store.stats().policy_faults) == (1, 1)
    assert isinstance(store.take_policy_fault(), ZeroDivisionError)
    assert store.take_policy_fault() is None


def test_a_block_that_is_read_or_written_is_not_evicted_without_a_policy() -> None:
    policy = FailingPolicy()
    store = make_store(policy)
    put(store, slice(0, 3))
    store.reserve(KEYS[3:4], np.array([BLOCK_BYTES]))
    pinned = store.pin(KEYS[:2], now=0)
    policy.broken = "victim"
    assert put(store, slice(4, 6)) == [KeyStatus.OK, KeyStatus.NO_SPACE]
    assert store.exist(KEYS[:3]).tolist() == [KeyStatus.OK, KeyStatus.OK, KeyStatus.NOT_FOUND]
    store.unpin(pinned, store.generations(pinned))
    assert put(store, slice(6, 8)) == [KeyStatus.OK, KeyStatus.OK]


@every_function
def test_hosts_are_served_and_the_log_says_once_why(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = FailingPolicy()
    policy.broken = broken
    rig = ServerRig(capacity_blocks=CAPACITY, policy=policy)
    (host,) = rig.hosts
    for number in range(3 * CAPACITY):
        key = key_array(number)
        host.fill([0], seed=number)
        assert rig.ask(host, Opcode.STORE, key, host.descriptors(0)).result == 1
        assert rig.ask(host, Opcode.RETRIEVE, key, host.descriptors(1)).result == 1
        assert np.array_equal(host.block(0), host.block(1))
    assert rig.failures == []
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert "FailingPolicy" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert rig.store.stats().policy_faults == 1


@pytest.mark.parametrize("broken", [None, "victim"])
def test_what_finds_everything_pinned_is_refused_and_the_next_one_is_not(
    broken: str | None,
) -> None:
    policy = FailingPolicy()
    policy.broken = broken
    store = make_store(policy)
    put(store, slice(0, CAPACITY))
    slots = store.pin(KEYS[:CAPACITY], now=0)
    assert put(store, slice(CAPACITY, CAPACITY + 3)) == [KeyStatus.NO_SPACE] * 3
    assert policy.victims_asked_for == (0 if broken else 1)
    assert store.stats().refused == 3
    store.unpin(slots[:1], store.generations(slots[:1]))
    assert put(store, slice(CAPACITY, CAPACITY + 2)) == [KeyStatus.OK, KeyStatus.NO_SPACE]
