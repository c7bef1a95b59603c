"""``latency``: one Retrieve of 4 KiB at a time, against a GET at Redis over a Unix socket."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from emulator.bench.clock import median_us
from emulator.bench.lookup import against_best
from emulator.bench.peers.nixl import NixlPath
from emulator.bench.peers.redis import REDIS, RedisStore
from emulator.bench.peers.registry import Shape, start, start_nixl
from emulator.bench.peers.turns import turn
from emulator.bench.report import Better, Goal, Report, summarise
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import OURS, Size, open_lanes
from emulator.bench.workload import UDP, bench_keys

NAME = "latency"
MICROSECONDS = "us"
GOAL_SPINNING = Goal(0.5, Better.LOWER)
GOAL_SLEEPING = Goal(1.2, Better.LOWER)
SIZE = Size(block_bytes=4096, depth=1, stored=16)
CALLS = 2000


@dataclass(frozen=True, slots=True)
class RedisGets:
    """Single GETs of one key."""

    store: RedisStore
    row: np.ndarray[tuple[int], np.dtype[np.uint8]]
    key: bytes

    def median_us(self, calls: int) -> float:
        """Median of GETs of the block, which is put before."""
        self.store.put([self.key], self.row[None])
        return median_us(lambda: self.store.get_one(self.key, self.row), calls)


def run(rounds: int, progress: Progress, link: str, calls: int = CALLS) -> Report:
    """Measure."""
    report = Report()
    with ExitStack() as undo:
        lanes = open_lanes(link, SIZE, undo)
        keys = lanes.stored_keys(1)
        sides: dict[str, Measure] = {
            OURS: lambda: median_us(lambda: lanes.retrieve(keys, 1), calls)
        }
        redis = start(REDIS, RedisStore, undo, report)
        if redis is not None:
            row = np.ones(SIZE.block_bytes, np.uint8)
            gets = RedisGets(redis, row, bytes(bench_keys(0, 1)[0]))
            sides[REDIS] = turn(redis, lambda: gets.median_us(calls))
        path = NixlPath.TCP if link == UDP else NixlPath.SHARED_MEMORY
        nixl = start_nixl(path, Shape(SIZE.block_bytes, 1), 1, undo, report)
        if nixl is not None:
            sides[nixl.name] = turn(nixl, lambda: nixl.read_latency_us(calls))
        values = alternate(rounds, sides, progress, report)
    name = f"{NAME}-{link}"
    report.results += against_best(name, MICROSECONDS, values, [REDIS], GOAL_SLEEPING)
    if path.value in values:
        row_of = summarise(name, MICROSECONDS, values[OURS], path.value, values[path.value])
        report.results.append(row_of)
    return report
