"""``match``: chains of 128 keys, 64 in flight, against a pipeline of EXISTS at Redis."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

import host_driver
from emulator.bench.clock import per_second
from emulator.bench.lookup import (
    BLOCK_BYTES,
    KEYS_PER_SECOND,
    StoreLookups,
    against_best,
    require_all,
    store_all,
)
from emulator.bench.peers.redis import REDIS
from emulator.bench.peers.registry import Shape, start_stores
from emulator.bench.peers.turns import turn
from emulator.bench.report import Goal, Report
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import OURS
from emulator.bench.workload import bench_keys, driver_config, emulated_target

NAME = "match"
GOAL = Goal(6)


@dataclass(frozen=True, slots=True)
class MatchSize:
    """Chains and their length."""

    chain_keys: int = 128
    chains: int = 64
    """In flight at once."""
    repeat: int = 100
    """Times that a turn asks for all chains."""


SIZE = MatchSize()


def run(rounds: int, progress: Progress, link: str, size: MatchSize = SIZE) -> Report:
    """Measure."""
    report = Report()
    stored = size.chain_keys * size.chains
    chains = [bench_keys(first, size.chain_keys) for first in range(0, stored, size.chain_keys)]
    with ExitStack() as undo:
        target = emulated_target(link, 2 * stored, BLOCK_BYTES)
        config = driver_config(link, size.chains)
        dpu = undo.enter_context(host_driver.connect_sync(target, config=config))
        store_all(dpu, chains)

        def ask() -> int:
            found = sum(int(dpu.match_each(chains).sum()) for _ in range(size.repeat))
            require_all(found, stored * size.repeat)
            return found

        sides: dict[str, Measure] = {OURS: lambda: per_second(ask)}
        for store in start_stores(Shape(BLOCK_BYTES, stored), undo, report, (REDIS,)):
            # All chains in one pipeline, as often as ours are asked for.
            everything = [np.concatenate(chains)]
            lookups = StoreLookups(store, everything, everything, stored)
            sides[store.name] = turn(store, partial(_median_rate, lookups, size.repeat))
        values = alternate(rounds, sides, progress, report)
    report.results += against_best(f"{NAME}-{link}", KEYS_PER_SECOND, values, [REDIS], GOAL)
    return report


def _median_rate(lookups: StoreLookups, repeat: int) -> float:
    return float(np.median([lookups.keys_per_second() for _ in range(repeat)]))
