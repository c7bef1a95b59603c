"""Latencies by class, sum and jitter: against a plain model, and as commands are answered."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpu_agent.data._latency_kernels import class_of, count_latency
from dpu_agent.data.counting import (
    BOUNDS_NS,
    JITTER_SUM_NS,
    JITTERS,
    LATENCY_CLASSES,
    LATENCY_ROWS,
    LATENCY_WORDS,
    NEVER,
    OPERATIONS,
    SUM_NS,
    TIERS,
    latency_row,
)
from kvlane.capsule import Opcode
from kvlane.limits import CREDIT_SLACK
from kvlane.verbs.enums import WrOpcode
from tests.support.capsule_host import ServerRig, key_array

BOUNDS = BOUNDS_NS.tolist()
LATENCIES = st.one_of(
    st.integers(0, 20 * 10**9),
    st.sampled_from(BOUNDS),
    st.sampled_from(BOUNDS).map(lambda bound: bound + 1),
)


def counted(rig: ServerRig, operation: Opcode, tier: str = "memory") -> np.ndarray:
    return rig.server.counts.latencies[latency_row(operation, TIERS.index(tier))]


def turn(rig: ServerRig, now: int) -> None:
    """One turn of the loop, at a time of our choice."""
    rig.fabric.progress()
    rig.server.poll(now)


def test_bounds_are_round_and_close() -> None:
    assert (BOUNDS[0], BOUNDS[-1]) == (1_000, 10_000_000_000)
    assert all(1 < after / before < 1.7 for before, after in pairwise(BOUNDS))


def test_every_operation_has_a_row_a_tier() -> None:
    rows = [latency_row(operation, tier) for operation in OPERATIONS for tier in range(len(TIERS))]
    assert rows == list(range(LATENCY_ROWS))


@given(LATENCIES)
def test_a_bound_belongs_to_its_class(latency_ns: int) -> None:
    assert class_of(latency_ns) == bisect_left(BOUNDS, latency_ns)


@given(st.lists(LATENCIES, max_size=40))
def test_a_row_is_what_a_plain_model_says(latencies: list[int]) -> None:
    row, latest = np.zeros(LATENCY_WORDS, np.int64), np.full(1, NEVER, np.int64)
    for latency_ns in latencies:
        count_latency(row, latest, latency_ns)
    classes = [0] * LATENCY_CLASSES
    for latency_ns in latencies:
        classes[bisect_left(BOUNDS, latency_ns)] += 1
    assert row[:LATENCY_CLASSES].tolist() == classes
    assert row[SUM_NS] == sum(latencies)
    assert row[JITTER_SUM_NS] == sum(abs(after - before) for before, after in pairwise(latencies))
    assert row[JITTERS] == max(0, len(latencies) - 1)


def test_latency_runs_from_arrival_to_response() -> None:
    rig = ServerRig()
    (host,) = rig.hosts
    rig.ask(host, Opcode.STORE, key_array(1), host.descriptors(0))
    rig.fabric.hold(WrOpcode.RDMA_WRITE)
    now = 10**9
    for length_ns in (50_000, 20_000, 90_000):
        host.send(Opcode.RETRIEVE, key_array(1), host.descriptors(1))
        turn(rig, now)
        turn(rig, now + 1_000)
        rig.fabric.release()
        now += length_ns
        turn(rig, now)
        rig.fabric.hold(WrOpcode.RDMA_WRITE)
        now += 10**6
        turn(rig, now)
    row = counted(rig, Opcode.RETRIEVE)
    assert len(host.responses()) == 3
    assert row[:LATENCY_CLASSES].sum() == 3
    assert row[class_of(50_000)] == row[class_of(20_000)] == row[class_of(90_000)] == 1
    assert row[SUM_NS] == 160_000
    assert (row[JITTERS], row[JITTER_SUM_NS]) == (2, 30_000 + 70_000)


def test_what_waits_for_a_command_slot_has_arrived_already() -> None:
    rig = ServerRig(queue_depth=2)
    host = rig.attach(7, receives=1)
    count = 2 * (2 + CREDIT_SLACK)
    for _ in range(count):
        host.send(Opcode.EXIST, key_array(1))
    now = 10**9
    turn(rig, now)
    turn(rig, now)
    unread = rig.server.unread
    assert unread > 0
    while rig.server.unread:
        assert len(host.responses()) == 1
        turn(rig, now + 7_000)
    row = counted(rig, Opcode.EXIST)
    assert row[:LATENCY_CLASSES].sum() == count
    assert row[SUM_NS] == unread * 7_000


def test_sessions_are_not_compared_with_each_other() -> None:
    rig = ServerRig(hosts=2)
    for host in rig.hosts:
        rig.ask(host, Opcode.EXIST, key_array(1))
    row = counted(rig, Opcode.EXIST)
    assert (row[:LATENCY_CLASSES].sum(), row[JITTERS]) == (2, 0)
    rig.server.close(1)
    successor = rig.attach(3)
    rig.ask(successor, Opcode.EXIST, key_array(1))
    assert (row[:LATENCY_CLASSES].sum(), row[JITTERS]) == (3, 0)
    rig.ask(successor, Opcode.EXIST, key_array(1))
    assert row[JITTERS] == 1


@pytest.mark.parametrize("session", [None, 99])
def test_a_refused_command_has_no_latency(session: int | None) -> None:
    rig = ServerRig(queue_depth=1)
    (host,) = rig.hosts
    if session is None:
        host.send_bytes(np.zeros(64, np.uint8))
    else:
        host.send(Opcode.EXIST, key_array(1), session=session)
    rig.run()
    assert len(host.responses()) == 1
    assert not rig.server.counts.latencies.any()
    assert rig.server.executed == {}
