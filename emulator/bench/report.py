"""What every benchmark prints: medians, spreads and ratios, as a table or as one object."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

from rich.markup import escape
from rich.table import Table

from emulator.bench.showing import markdown_table, terminal_text

_COLUMNS = ("bench", "median", "unit", "against", "its median", "ratio", "target", "met", "spread")


class Better(str, Enum):
    """Which way a ratio is good."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio is to reach."""

    ratio: float
    better: Better = Better.HIGHER

    def met_by(self, ratio: float) -> bool:
        """Whether a ratio reaches it."""
        return ratio >= self.ratio if self.better is Better.HIGHER else ratio <= self.ratio


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One measured quantity beside what it is compared with."""

    name: str
    value: float
    unit: str
    reference: str
    """What ``reference_value`` is of."""
    reference_value: float | None
    """None when nobody was there to compare with; then there is no ratio either."""
    ratio: float | None
    """Median of the rounds' own ratios, so that a slow moment strikes both sides."""
    target: float | None
    better: Better
    met: bool | None
    rounds: int
    spread: float
    """(largest - smallest) / median of the ratio over the rounds."""


@dataclass(frozen=True, slots=True)
class MissingPeer:
    """A peer that was not measured; never left out in silence."""

    name: str
    needs: str
    """What to do to have it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A benchmark that could not be run."""

    name: str
    reason: str


@dataclass(slots=True)
class Report:
    """Results of some benchmarks, and who was absent."""

    results: list[BenchResult] = field(default_factory=list)
    missing: dict[str, MissingPeer] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)

    def miss(self, peers: Sequence[MissingPeer]) -> None:
        """Note absent peers, each once."""
        self.missing |= {peer.name: peer for peer in peers}

    def extend(self, other: Report) -> None:
        """Take in what another benchmark reports."""
        self.results += other.results
        self.missing |= other.missing
        self.failed += other.failed

    def as_json(self) -> str:
        """One object."""
        benches = [asdict(result) for result in self.results]
        missing = [asdict(peer) for peer in self.missing.values()]
        failed = [asdict(failure) for failure in self.failed]
        return json.dumps({"benches": benches, "failed": failed, "missing_peers": missing})

    def as_text(self, width: int | None = None) -> str:
        """A table for a terminal, and the absent peers below."""
        table = Table(title="kvlane bench")
        for heading in _COLUMNS:
            table.add_column(heading, overflow="fold")
        for row in self._rows():
            table.add_row(*map(escape, row))
        absent = (f"not measured: {peer.name} ({peer.needs})\n" for peer in self.missing.values())
        return terminal_text(table, width=width) + "".join(absent)

    def as_markdown(self) -> str:
        """A table, and the absent peers below."""
        table = markdown_table(_COLUMNS, self._rows())
        if not self.missing:
            return table
        absent = (f"{peer.name} ({peer.needs})" for peer in self.missing.values())
        return table + "\nNot measured: " + "; ".join(absent) + ".\n"

    def _rows(self) -> list[tuple[str, ...]]:
        """Results, then what failed and why."""
        blank = ("",) * (len(_COLUMNS) - 4)
        failed = [(failure.name, "failed", "", failure.reason, *blank) for failure in self.failed]
        return [*map(cells, self.results), *failed]


def summarise(
    name: str,
    unit: str,
    values: Sequence[float],
    reference: str,
    reference_values: Sequence[float],
    goal: Goal | None = None,
) -> BenchResult:
    """Fold the rounds of a value and of its reference, taken in pairs, into a result."""
    ratios = [value / other for value, other in zip(values, reference_values, strict=True)]
    ratio = statistics.median(ratios)
    return BenchResult(
        name=name,
        value=_rounded(statistics.median(values)),
        unit=unit,
        reference=reference,
        reference_value=_rounded(statistics.median(reference_values)),
        ratio=_rounded(ratio),
        target=None if goal is None else goal.ratio,
        better=Better.HIGHER if goal is None else goal.better,
        met=None if goal is None else goal.met_by(ratio),
        rounds=len(values),
        spread=_rounded((max(ratios) - min(ratios)) / ratio if ratio else 0.0),
    )


def unrivalled(
    name: str, unit: str, values: Sequence[float], reference: str, goal: Goal
) -> BenchResult:
    """A value whose reference could not be measured."""
    middle = statistics.median(values)
    return BenchResult(
        name=name,
        value=_rounded(middle),
        unit=unit,
        reference=f"{reference} (not measured)",
        reference_value=None,
        ratio=None,
        target=goal.ratio,
        better=goal.better,
        met=None,
        rounds=len(values),
        spread=_rounded((max(values) - min(values)) / middle if middle else 0.0),
    )


def _rounded(number: float) -> float:
    """Four significant digits."""
    return float(f"{number:.4g}")


def cells(result: BenchResult) -> tuple[str, ...]:
    """A result as the cells of a row."""
    sign = ">=" if result.better is Better.HIGHER else "<="
    return (
        result.name,
        f"{result.value:,.5g}",
        result.unit,
        result.reference,
        "" if result.reference_value is None else f"{result.reference_value:,.5g}",
        "" if result.ratio is None else f"{result.ratio:.3g}",
        "" if result.target is None else f"{sign} {result.target:g}",
        {None: "", True: "yes", False: "no"}[result.met],
        f"{result.spread:.0%}",
    )
