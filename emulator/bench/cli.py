"""``kvlane bench NAME``: the benchmarks by name."""

from __future__ import annotations

import click

from emulator.bench import engine, wire
from emulator.bench.report import show


@click.group()
def bench() -> None:
    """Measure against a limit or a peer in the same run."""


_rounds = click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Rounds; the median counts.",
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")


def _say(text: str) -> None:
    click.echo(text, err=True)


@bench.command("wire")
@_rounds
@_json
def wire_command(rounds: int, as_json: bool) -> None:
    """Retrieve and Store of 1 MiB blocks, 16 in flight, over RoCEv2 on UDP."""
    show(wire.run(rounds, _say), as_json)


@bench.command("engine")
@_rounds
@_json
def engine_command(rounds: int, as_json: bool) -> None:
    """Packets a second of the transport engine alone, both ends on one core."""
    show(engine.run(rounds, _say), as_json)
