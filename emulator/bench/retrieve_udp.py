"""``retrieve-udp``: Retrieve over RoCEv2, against a bare UDP blast, Mooncake and NIXL over TCP."""

from __future__ import annotations

from contextlib import ExitStack

from emulator.bench.blast import blast
from emulator.bench.peers.mooncake import MOONCAKE
from emulator.bench.peers.nixl import NixlPath
from emulator.bench.peers.registry import Shape, start_nixl, start_stores
from emulator.bench.peers.turns import turn
from emulator.bench.report import Goal, Report
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import (
    BLAST,
    OURS,
    OURS_CONCURRENT,
    ConcurrentLanes,
    Size,
    StoreTurns,
    open_lanes,
    our_retrieve,
)
from emulator.bench.transfer_rows import MoveGoals, transfer_rows
from emulator.bench.workload import UDP

NAME = "retrieve-udp"
GOALS = MoveGoals(limit=Goal(0.7), stores=Goal(1.5), nixl=Goal(1.5))
SIZE = Size(repeat=4)


def run(rounds: int, progress: Progress, size: Size = SIZE) -> Report:
    """Measure."""
    report = Report()
    with ExitStack() as undo:
        lanes = open_lanes(UDP, size, undo)
        sides: dict[str, Measure] = {
            OURS: our_retrieve(lanes, size),
            BLAST: lambda: blast(size.turn_bytes).gigabytes_per_second,
            OURS_CONCURRENT: ConcurrentLanes(UDP, size, undo).measure,
        }
        shape = Shape(size.block_bytes, size.depth)
        stores = start_stores(shape, undo, report, (MOONCAKE,))
        for store in stores:
            sides[store.name] = turn(store, StoreTurns(store, size).get_gbps)
        nixl = start_nixl(NixlPath.TCP, shape, size.stored, undo, report)
        if nixl is not None:
            sides[nixl.name] = turn(nixl, lambda: nixl.read_gbps(size.repeat))
        values = alternate(rounds, sides, progress, report)
    names = [store.name for store in stores]
    report.results += transfer_rows(NAME, values, BLAST, names, GOALS)
    return report
