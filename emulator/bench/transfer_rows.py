"""The rows of a benchmark that moves blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.bench.peers.nixl import NixlPath
from emulator.bench.report import BenchResult, Goal, summarise
from emulator.bench.rounds import Rounds, best
from emulator.bench.transfer import GBPS, OURS, OURS_CONCURRENT


@dataclass(frozen=True, slots=True)
class MoveGoals:
    """What our rate is to be, as a multiple."""

    limit: Goal
    stores: Goal
    nixl: Goal


def transfer_rows(
    name: str, values: Rounds, limit: str, stores: Sequence[str], goals: MoveGoals
) -> list[BenchResult]:
    """Ours against the limit, the best store, and NIXL; then what else was measured."""
    ours = values[OURS]
    rows = [summarise(name, GBPS, ours, limit, values[limit], goals.limit)]
    winner = best(values, stores)
    if winner is not None:
        reference = f"best store: {winner}"
        rows.append(summarise(name, GBPS, ours, reference, values[winner], goals.stores))
    rows += [
        summarise(name, GBPS, ours, path.value, values[path.value], goals.nixl)
        for path in NixlPath
        if path.value in values
    ]
    rows += [
        summarise(name, GBPS, ours, store, values[store]) for store in stores if store != winner
    ]
    if OURS_CONCURRENT in values:
        concurrent = f"{name}-concurrent"
        rows.append(summarise(concurrent, GBPS, values[OURS_CONCURRENT], limit, values[limit]))
    return rows
