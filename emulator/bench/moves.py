"""``retrieve-pcie``, ``store-pcie``, ``retrieve-udp`` and ``store-udp``: moving blocks.

Each is one direction over one link, against what limits that link, the stores that people would
use instead, and NIXL over the like of the link.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from emulator.bench.limits import LIMIT_NAMES, limit_of
from emulator.bench.peers.mooncake import MOONCAKE
from emulator.bench.peers.nixl import NixlPath
from emulator.bench.peers.registry import STORES, Shape, start_nixl, start_stores
from emulator.bench.peers.turns import turn
from emulator.bench.report import Goal, Report
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import (
    OURS,
    OURS_CONCURRENT,
    ConcurrentLanes,
    Size,
    StoreTurns,
    open_lanes,
    our_retrieve,
    our_store,
)
from emulator.bench.transfer_rows import MoveGoals, transfer_rows
from emulator.bench.workload import PCIE, UDP


class Direction(Enum):
    """Which way the blocks go."""

    RETRIEVE = "retrieve"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Move:
    """One of these benchmarks."""

    direction: Direction
    link: str
    goals: MoveGoals
    size: Size
    nixl: NixlPath
    stores: tuple[str, ...] = tuple(STORES)
    """Peers that it is compared with, where they are installed."""

    @property
    def name(self) -> str:
        """Of the benchmark and its rows."""
        return f"{self.direction.value}-{self.link}"

    @property
    def limit(self) -> str:
        """Name of what limits the link."""
        return LIMIT_NAMES[self.link]


_UDP_SIZE = Size(repeat=8)
_UDP_GOALS = MoveGoals(limit=Goal(0.7), stores=Goal(1.5), nixl=Goal(1.5))

MOVES = (
    Move(
        direction=Direction.RETRIEVE,
        link=PCIE,
        goals=MoveGoals(limit=Goal(0.75), stores=Goal(2), nixl=Goal(1.3)),
        size=Size(),
        nixl=NixlPath.SHARED_MEMORY,
    ),
    Move(
        direction=Direction.STORE,
        link=PCIE,
        goals=MoveGoals(limit=Goal(0.6), stores=Goal(2), nixl=Goal(1)),
        size=Size(),
        nixl=NixlPath.SHARED_MEMORY,
    ),
    Move(
        direction=Direction.RETRIEVE,
        link=UDP,
        goals=_UDP_GOALS,
        size=_UDP_SIZE,
        nixl=NixlPath.TCP,
        stores=(MOONCAKE,),
    ),
    Move(
        direction=Direction.STORE,
        link=UDP,
        goals=_UDP_GOALS,
        size=_UDP_SIZE,
        nixl=NixlPath.TCP,
        stores=(MOONCAKE,),
    ),
)
"""In the order in which they run."""


def run(move: Move, rounds: int, progress: Progress) -> Report:
    """Measure."""
    report, size = Report(), move.size
    retrieves = move.direction is Direction.RETRIEVE
    with ExitStack() as undo:
        lanes = open_lanes(move.link, size, undo)
        sides: dict[str, Measure] = {
            OURS: our_retrieve(lanes, size) if retrieves else our_store(lanes, size),
            move.limit: limit_of(move.link, size, undo, stores=not retrieves),
        }
        if retrieves:
            sides[OURS_CONCURRENT] = ConcurrentLanes(move.link, size, undo).measure
        shape = Shape(size.block_bytes, size.depth)
        stores = start_stores(shape, undo, report, move.stores)
        for store in stores:
            turns = StoreTurns(store, size)
            sides[store.name] = turn(store, turns.get_gbps if retrieves else turns.put_gbps)
        nixl = start_nixl(move.nixl, shape, size.stored, undo, report)
        if nixl is not None:
            rate = nixl.retrieve_gbps if retrieves else nixl.store_gbps
            sides[nixl.name] = turn(nixl, lambda: rate(size.repeat))
        values = alternate(rounds, sides, progress, report)
    names = [store.name for store in stores]
    report.results += transfer_rows(move.name, values, move.limit, names, move.goals)
    return report
