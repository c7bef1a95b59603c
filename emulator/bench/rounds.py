"""Rounds in which ours and the others take turns, so that a slow moment strikes all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from emulator.bench.peers.interface import PeerFailedError
from emulator.bench.report import MissingPeer, Report

Measure = Callable[[], float]
"""Does a side's work once and says how much it did in a unit of time, or how long it took."""

Progress = Callable[[str], None]

Rounds = dict[str, list[float]]
"""A value a round, by side."""


def alternate(
    rounds: int, sides: Mapping[str, Measure], progress: Progress, report: Report
) -> Rounds:
    """Measure every side once a round, the order reversed every other round.

    One turn of each comes first and does not count. A peer that fails is left out from then on,
    with all that it did before, and ``report`` says why; whatever else fails ends the benchmark.
    """
    values: Rounds = {name: [] for name in sides}
    for number in range(rounds + 1):
        names = list(values) if number % 2 == 0 else list(values)[::-1]
        progress(f"round {number} of {rounds}: {', '.join(names)}" if number else "warming up")
        for name in names:
            try:
                value = sides[name]()
            except PeerFailedError as error:
                report.miss([MissingPeer(error.name, error.why)])
                del values[name]
            else:
                values[name] += [value] if number else []
    return values


def best(values: Rounds, names: Sequence[str], *, lowest: bool = False) -> str | None:
    """The side with the best median among ``names``; None where there is none."""
    present = [name for name in names if name in values]
    choose = min if lowest else max
    return choose(present, key=lambda name: statistics.median(values[name]), default=None)
