"""``host-cpu``: processor time of the host that retrieves, against the client of Redis."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from emulator.bench.clock import cpu_seconds_per_gb
from emulator.bench.lookup import against_best
from emulator.bench.peers.redis import REDIS
from emulator.bench.peers.registry import Shape, start_stores
from emulator.bench.peers.turns import turn
from emulator.bench.report import Better, Goal, Report
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import OURS, Size, StoreTurns, open_lanes

NAME = "host-cpu"
GOAL = Goal(0.15, Better.LOWER)
SIZE = Size()


def run(rounds: int, progress: Progress, link: str, size: Size = SIZE) -> Report:
    """Measure."""
    report = Report()
    with ExitStack() as undo:
        lanes = open_lanes(link, size, undo)
        batches = lanes.stored_keys(size.stored)
        sides: dict[str, Measure] = {
            OURS: lambda: cpu_seconds_per_gb(lambda: lanes.retrieve(batches, size.repeat))
        }
        for store in start_stores(Shape(size.block_bytes, size.depth), undo, report, (REDIS,)):
            sides[store.name] = turn(
                store, partial(cpu_seconds_per_gb, StoreTurns(store, size).get)
            )
        values = alternate(rounds, sides, progress, report)
    report.results += against_best(f"{NAME}-{link}", "CPU s/GB", values, [REDIS], GOAL)
    return report
