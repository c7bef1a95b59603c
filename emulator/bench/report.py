"""What every benchmark prints: medians, spreads and ratios, as a table or as one object."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One measured quantity beside what it is compared with."""

    name: str
    value: float
    unit: str
    reference: str
    """What ``reference_value`` is of."""
    reference_value: float
    ratio: float
    """Median of the rounds' own ratios, so that a slow moment strikes both sides."""
    target: float | None
    met: bool | None
    rounds: int
    spread: float
    """(largest - smallest) / median of the value over the rounds."""


def summarise(
    name: str,
    unit: str,
    values: Sequence[float],
    reference: str,
    reference_values: Sequence[float],
    target: float | None = None,
) -> BenchResult:
    """Fold the rounds of a value and of its reference, taken in pairs, into a result."""
    ratio = statistics.median(
        value / other for value, other in zip(values, reference_values, strict=True)
    )
    median = statistics.median(values)
    return BenchResult(
        name=name,
        value=round(median, 3),
        unit=unit,
        reference=reference,
        reference_value=round(statistics.median(reference_values), 3),
        ratio=round(ratio, 3),
        target=target,
        met=None if target is None else ratio >= target,
        rounds=len(values),
        spread=round((max(values) - min(values)) / median, 3),
    )


def show(results: Sequence[BenchResult], as_json: bool) -> None:
    """Print results on standard output."""
    if as_json:
        click.echo(json.dumps({"benches": [asdict(result) for result in results]}))
        return
    table = Table(title="kvlane bench")
    for heading in ("name", "median", "unit", "reference", "its median", "ratio", "spread"):
        table.add_column(heading)
    for result in results:
        table.add_row(
            result.name,
            f"{result.value:.3f}",
            result.unit,
            result.reference,
            f"{result.reference_value:.3f}",
            f"{result.ratio:.3f}",
            f"{result.spread:.0%}",
        )
    Console().print(table)
