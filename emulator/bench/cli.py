"""``kvlane bench NAME``: the benchmarks by name, or all of them."""

from __future__ import annotations

import click

from emulator.bench.catalogue import BENCHES
from emulator.bench.report import Failure, Report, show
from emulator.bench.workload import LINKS, PCIE
from kvlane.errors import KvlaneError

ALL = "all"


@click.command()
@click.argument("name", type=click.Choice([ALL, *BENCHES]))
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Rounds; the median counts.",
)
@click.option(
    "--link",
    type=click.Choice(LINKS),
    default=PCIE,
    show_default=True,
    help="Of the benchmarks whose name does not say it.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def bench(name: str, rounds: int, link: str, as_json: bool) -> None:
    """Measure against a limit or a peer in the same run.

    Peers that are not installed are named; make bench-peers installs them.
    """
    report = Report()
    for each in BENCHES if name == ALL else [name]:
        _say(each)
        report.extend(_outcome(each, rounds, link))
    show(report, as_json)
    if report.failed:
        raise click.exceptions.Exit(1)


def _outcome(name: str, rounds: int, link: str) -> Report:
    """What a benchmark reports, or that it failed: the others are to run all the same."""
    try:
        return BENCHES[name](rounds, _say, link)
    except Exception as error:
        reason = (
            str(error) if isinstance(error, KvlaneError) else f"{type(error).__name__}: {error}"
        )
        _say(f"{name} failed: {reason}")
        return Report(failed=[Failure(name, reason)])


def _say(text: str) -> None:
    click.echo(text, err=True)
