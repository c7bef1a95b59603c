"""``plan``: hit rates that a trace would have, by policy and capacity."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dpu_agent.planning.accesses import flatten
from dpu_agent.planning.planner import PlannedRate, plan_rates, policy_names
from kvlane.errors import ConfigError
from kvlane.trace import read_trace

MAX_CAPACITY_BLOCKS = 1 << 28
"""Beyond what one agent keeps, and what the slots' 4-byte links can count."""


@click.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policies",
    default="all",
    show_default=True,
    help="Names with commas between them; all includes Belady's optimum and the unbounded cache.",
)
@click.option("--capacities", required=True, help="Blocks, with commas: 1000,3000,10000.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def plan(trace: Path, policies: str, capacities: str, as_json: bool) -> None:
    """Simulate a cache over TRACE (JSON lines with hash_ids) and print its hit rates.

    hit_rate counts every block that was there; prefix_hit_rate only those that no missing block
    of the same request precedes, since what follows a gap must be computed again.
    """
    names, sizes = policy_names(policies), parse_capacities(capacities)
    errors = Console(stderr=True)
    with errors.status(f"reading {trace.name}"):
        accesses = flatten(read_trace(trace))
    with Progress(console=errors, transient=True) as progress:
        task = progress.add_task("simulating", total=None)

        def show(rate: PlannedRate, total: int) -> None:
            text = f"{rate.policy}, {rate.capacity_blocks:,} blocks"
            progress.update(task, description=text, advance=1, total=total)

        rates = plan_rates(accesses, names, sizes, show)
    if as_json:
        click.echo(json.dumps([asdict(rate) for rate in rates], indent=2))
    else:
        Console().print(_table(rates))


def parse_capacities(text: str) -> list[int]:
    """Numbers of blocks from a list with commas; ``ConfigError`` for anything else."""
    sizes: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and 1 <= int(word[:20]) <= MAX_CAPACITY_BLOCKS):
            raise ConfigError(
                f"--capacities: {word!r} is no number of blocks from 1 to {MAX_CAPACITY_BLOCKS}; "
                f"an example: 1000,3000,10000"
            )
        sizes.append(int(word))
    return list(dict.fromkeys(sizes))


def _table(rates: list[PlannedRate]) -> Table:
    table = Table("policy", title="Share of block accesses")
    for heading in ("capacity, blocks", "hit rate", "prefix hit rate"):
        table.add_column(heading, justify="right")
    for rate in rates:
        table.add_row(
            rate.policy,
            f"{rate.capacity_blocks:,}",
            f"{rate.hit_rate:.4f}",
            f"{rate.prefix_hit_rate:.4f}",
        )
    return table
