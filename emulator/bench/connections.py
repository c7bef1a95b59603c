"""``connections``: Retrieve over 64 connections at once, against one alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import host_driver
from emulator.bench.report import Goal, Report, summarise
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import GBPS
from emulator.bench.workload import MIB, bench_keys, driver_config, require_moved, start_agent

NAME = "connections"
GOAL_TOTAL = Goal(0.8)
GOAL_SLOWEST = Goal(0.5)
_ONE, _ALL = "one connection", "all connections"


@dataclass(frozen=True, slots=True)
class ConnectionsSize:
    """How many, and what each has in flight."""

    connections: int = 64
    block_bytes: int = MIB
    call_blocks: int = 4
    seconds: float = 2.0
    """Length of a turn; what is moved in it counts."""


SIZE = ConnectionsSize()


class Fleet:
    """Connections on one loop, each with lanes of its own, to one agent."""

    def __init__(self, control: str, link: str, size: ConnectionsSize, undo: ExitStack) -> None:
        self._size = size
        self._loop = asyncio.new_event_loop()
        undo.callback(self._loop.close)
        self._keys = bench_keys(0, size.call_blocks)
        self._dpus = [self._connect(control, link, undo) for _ in range(size.connections)]
        self._lanes = [dpu.alloc(size.call_blocks * size.block_bytes) for dpu in self._dpus]
        self._rows = [lane.reshape(size.call_blocks, size.block_bytes) for lane in self._lanes]
        stored = self._loop.run_until_complete(self._dpus[0].store(self._keys, self._rows[0]))
        require_moved(stored.statuses)

    def _connect(self, control: str, link: str, undo: ExitStack) -> host_driver.Dpu:
        config = driver_config(link, self._size.call_blocks)
        dpu = self._loop.run_until_complete(host_driver.connect(control, config=config))
        undo.callback(lambda: self._loop.run_until_complete(dpu.close()))
        return dpu

    def rates_gbps(self, connections: int) -> Sequence[float]:
        """Of each connection, with so many at work."""
        return self._loop.run_until_complete(self._turn(connections))

    async def _turn(self, connections: int) -> Sequence[float]:
        stop_s = time.perf_counter() + self._size.seconds
        return await asyncio.gather(*(self._rate(index, stop_s) for index in range(connections)))

    async def _rate(self, index: int, stop_s: float) -> float:
        start_s, moved = time.perf_counter(), 0
        while time.perf_counter() < stop_s:
            rows = self._rows[index]
            require_moved((await self._dpus[index].retrieve(self._keys, rows)).statuses)
            moved += rows.nbytes
        return moved / (time.perf_counter() - start_s) / 1e9


def run(rounds: int, progress: Progress, link: str, size: ConnectionsSize = SIZE) -> Report:
    """Measure."""
    report = Report()
    slowest: list[float] = []
    means: list[float] = []
    with ExitStack() as undo:
        agent = start_agent(link, 4 * size.call_blocks, size.block_bytes)
        undo.callback(agent.close)
        fleet = Fleet(agent.control, link, size, undo)

        def measure_all() -> float:
            rates = fleet.rates_gbps(size.connections)
            slowest.append(min(rates))
            means.append(sum(rates) / len(rates))
            return sum(rates)

        sides: dict[str, Measure] = {
            _ALL: measure_all,
            _ONE: lambda: sum(fleet.rates_gbps(1)),
        }
        values = alternate(rounds, sides, progress, report)
    name = f"{NAME}-{link}"
    # The first turn warms up and counts for neither.
    fair = summarise(f"{name}-slowest", GBPS, slowest[1:], "their mean", means[1:], GOAL_SLOWEST)
    report.results += [summarise(name, GBPS, values[_ALL], _ONE, values[_ONE], GOAL_TOTAL), fair]
    return report
