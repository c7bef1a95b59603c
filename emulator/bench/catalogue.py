"""The benchmarks by name, in the order in which ``kvlane bench all`` runs them, and studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from emulator.bench import (
    breakdown,
    charts,
    compression,
    connections,
    engine,
    exist,
    host_cpu,
    idle,
    index,
    latency,
    match,
    moves,
    nvme,
    policy,
)
from emulator.bench.report import Report
from emulator.bench.rounds import Progress
from emulator.bench.showing import Tellable

Run = Callable[[int, Progress, str], Report]
"""Measures so many rounds over a link, and says meanwhile what it does."""


def _of_its_own_link(run: Callable[[int, Progress], Report]) -> Run:
    """A benchmark whose name says the link, or that has none."""
    return lambda rounds, progress, _link: run(rounds, progress)


BENCHES: Mapping[str, Run] = {
    **{move.name: _of_its_own_link(partial(moves.run, move)) for move in moves.MOVES},
    exist.NAME: exist.run,
    match.NAME: match.run,
    latency.NAME: latency.run,
    host_cpu.NAME: host_cpu.run,
    connections.NAME: connections.run,
    idle.NAME: idle.run,
    index.NAME: index.run,
    engine.NAME: _of_its_own_link(engine.run),
    policy.NAME: _of_its_own_link(policy.run),
    nvme.NAME: _of_its_own_link(nvme.run),
    compression.NAME: _of_its_own_link(compression.run),
}

STUDIES: Mapping[str, Callable[[int, Progress], Tellable]] = {
    charts.NAME: charts.run,
    breakdown.BREAKDOWN: breakdown.run,
}
"""What is no comparison with a goal, and so no part of all."""
