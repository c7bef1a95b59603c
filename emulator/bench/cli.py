"""``kvlane bench NAME``: the benchmarks by name."""

from __future__ import annotations

import click

from emulator.bench import wire
from emulator.bench.report import show


@click.group()
def bench() -> None:
    """Measure against a limit or a peer in the same run."""


@bench.command("wire")
@click.option("--rounds", default=5, show_default=True, help="Rounds; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def wire_command(rounds: int, as_json: bool) -> None:
    """Retrieve and Store of 1 MiB blocks, 16 in flight, over RoCEv2 on UDP."""
    show(wire.run(rounds, lambda text: click.echo(text, err=True)), as_json)
