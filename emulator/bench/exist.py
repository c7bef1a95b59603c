"""``exist``: 1,000 keys a capsule over a million stored blocks, against the best store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from emulator.bench.peers.registry import Shape, start_stores
from emulator.bench.peers.turns import turn
from emulator.bench.report import Goal, Report
from emulator.bench.rounds import Measure, Progress, alternate
from emulator.bench.transfer import OURS
from emulator.bench.workload import bench_keys, driver_config, emulated_target

NAME = "exist"
GOAL = Goal(6)


@dataclass(frozen=True, slots=True)
class ExistSize:
    """How much there is, and how much of it a turn asks for."""

    batch_keys: int = 1000
    stored_batches: int = 1000
    asked_batches: int = 200


SIZE = ExistSize()


def run(rounds: int, progress: Progress, link: str, size: ExistSize = SIZE) -> Report:
    """Measure."""
    report = Report()
    starts = range(0, size.stored_batches * size.batch_keys, size.batch_keys)
    batches = [bench_keys(first, size.batch_keys) for first in starts]
    with ExitStack() as undo:
        target = emulated_target(link, 2 * starts.stop, BLOCK_BYTES)
        dpu = undo.enter_context(host_driver.connect_sync(target, config=driver_config(link, 32)))
        store_all(dpu, batches)

        asked = _anywhere(batches, size.asked_batches)

        def ask() -> int:
            count = len(asked) * size.batch_keys
            require_all(sum(int(dpu.exist(keys).sum()) for keys in asked), count)
            return count

        sides: dict[str, Measure] = {OURS: lambda: per_second(ask)}
        stores = start_stores(Shape(BLOCK_BYTES, size.batch_keys), undo, report)
        for store in stores:
            lookups = StoreLookups(store, batches, asked, size.batch_keys)
            sides[store.name] = turn(store, lookups.keys_per_second)
        values = alternate(rounds, sides, progress, report)
    names = [store.name for store in stores]
    report.results += against_best(f"{NAME}-{link}", KEYS_PER_SECOND, values, names, GOAL)
    return report


def _anywhere(batches: Sequence[NDArray[np.uint8]], count: int) -> list[NDArray[np.uint8]]:
    """So many batches of keys drawn from all, in no order: no neighbours of each other."""
    keys = np.random.default_rng(1).permutation(np.concatenate(batches))
    return list(keys[: count * len(batches[0])].reshape(count, *batches[0].shape))
