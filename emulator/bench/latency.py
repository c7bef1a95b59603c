"""``latency``: one Retrieve of 4 KiB at a time, against a GET at Redis over a Unix socket.

Once with both ends looking for work all the time, once with the agent asleep until it is woken, and
once with both asleep.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

import host_driver
from emulator.bench.clock import median_us
from emulator.bench.lookup import against_best
from emulator.bench.peers.nixl import NixlPath
from emulator.bench.peers.redis import REDIS, RedisStore
from emulator.bench.peers.registry import Shape, start, start_nixl
from emulator.bench.peers.turns import turn
from emulator.bench.report import Better, Goal, Report, summarise
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import OURS
from emulator.bench.workload import (
    UDP,
    bench_keys,
    driver_config,
    emulated_target,
    require_moved,
)

NAME = "latency"
MICROSECONDS = "us"
BLOCK_BYTES = 4096
STORED = 16
CALLS = 2000


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long both ends look for work before they sleep, and what that is to reach."""

    agent_spin_us: int
    host_spin_us: int
    goal: Goal | None


WAYS: Mapping[str, Waiting] = MappingProxyType(
    {
        # Longer than any call, and over soon when it is the turn of others.
        "spinning": Waiting(1000, 1000, Goal(0.5, Better.LOWER)),
        "agent-sleeping": Waiting(0, 1000, None),
        "sleeping": Waiting(0, 0, Goal(1.2, Better.LOWER)),
    }
)


class OurGets:
    """Single Retrieves of one block, into registered memory."""

    def __init__(self, link: str, waiting: Waiting, undo: ExitStack) -> None:
        target = emulated_target(link, 2 * STORED, BLOCK_BYTES, waiting.agent_spin_us)
        config = replace(driver_config(link, 1), spin_us=waiting.host_spin_us)
        self._dpu = undo.enter_context(host_driver.connect_sync(target, config=config))
        self._rows = self._dpu.alloc(BLOCK_BYTES).reshape(1, BLOCK_BYTES)
        self._rows[:] = 1
        for number in range(STORED):
            require_moved(self._dpu.store(bench_keys(number, 1), self._rows).statuses)
        self._key = bench_keys(0, 1)

    def median_us(self, calls: int) -> float:
        """Median of Retrieves of the block."""
        return median_us(self._get, calls)

    def _get(self) -> None:
        require_moved(self._dpu.retrieve(self._key, self._rows).statuses)


@dataclass(frozen=True, slots=True)
class RedisGets:
    """Single GETs of one key."""

    store: RedisStore
    row: NDArray[np.uint8]
    key: bytes

    def median_us(self, calls: int) -> float:
        """Median of GETs of the block, which is put before."""
        self.store.put([self.key], self.row[None])
        return median_us(lambda: self.store.get_one(self.key, self.row), calls)


def run(rounds: int, progress: Progress, link: str, calls: int = CALLS) -> Report:
    """Measure."""
    report = Report()
    with ExitStack() as undo:
        sides: dict[str, Measure] = {
            way: _measure_of(OurGets(link, waiting, undo), calls) for way, waiting in WAYS.items()
        }
        redis = start(REDIS, RedisStore, undo, report)
        if redis is not None:
            gets = RedisGets(redis, np.ones(BLOCK_BYTES, np.uint8), bytes(bench_keys(0, 1)[0]))
            sides[REDIS] = turn(redis, lambda: gets.median_us(calls))
        path = NixlPath.TCP if link == UDP else NixlPath.SHARED_MEMORY
        nixl = start_nixl(path, Shape(BLOCK_BYTES, 1), 1, undo, report)
        if nixl is not None:
            sides[nixl.name] = turn(nixl, lambda: nixl.read_latency_us(calls))
        values = alternate(rounds, sides, progress, report)
    for way, waiting in WAYS.items():
        name = f"{NAME}-{link}-{way}"
        if waiting.goal is not None:
            taken = {**values, OURS: values[way]}
            report.results += against_best(name, MICROSECONDS, taken, [REDIS], waiting.goal)
        elif REDIS in values:
            mine, theirs = values[way], values[REDIS]
            report.results.append(summarise(name, MICROSECONDS, mine, REDIS, theirs))
        if path.value in values:
            others = values[path.value]
            report.results.append(summarise(name, MICROSECONDS, values[way], path.value, others))
    return report


def _measure_of(gets: OurGets, calls: int) -> Measure:
    return lambda: gets.median_us(calls)
