"""``store-pcie``: Store over shared memory, against memcpy, the best store and NIXL."""

from __future__ import annotations

from contextlib import ExitStack

from emulator.bench.clock import rate_gbps
from emulator.bench.memcpy import Memcpy
from emulator.bench.peers.nixl import NixlPath
from emulator.bench.peers.registry import Shape, start_nixl, start_stores
from emulator.bench.peers.turns import turn
from emulator.bench.report import Goal, Report
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import MEMCPY, OURS, Size, StoreTurns, open_lanes, our_store
from emulator.bench.transfer_rows import MoveGoals, transfer_rows
from emulator.bench.workload import PCIE

NAME = "store-pcie"
GOALS = MoveGoals(limit=Goal(0.6), stores=Goal(2), nixl=Goal(1))
SIZE = Size()


def run(rounds: int, progress: Progress, size: Size = SIZE, link: str = PCIE) -> Report:
    """Measure."""
    report = Report()
    with ExitStack() as undo:
        lanes = open_lanes(link, size, undo)
        copies = Memcpy(size.block_bytes, size.stored, size.depth)
        sides: dict[str, Measure] = {
            OURS: our_store(lanes, size),
            MEMCPY: lambda: rate_gbps(lambda: copies.copy(size.repeat)),
        }
        shape = Shape(size.block_bytes, size.depth)
        stores = start_stores(shape, undo, report)
        for store in stores:
            sides[store.name] = turn(store, StoreTurns(store, size).put_gbps)
        nixl = start_nixl(NixlPath.SHARED_MEMORY, shape, size.stored, undo, report)
        if nixl is not None:
            sides[nixl.name] = turn(nixl, lambda: nixl.write_gbps(size.repeat))
        values = alternate(rounds, sides, progress, report)
    names = [store.name for store in stores]
    report.results += transfer_rows(NAME, values, MEMCPY, names, GOALS)
    return report
