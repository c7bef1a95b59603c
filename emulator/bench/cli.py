"""``kvlane bench NAME``: the benchmarks by name, or all of them; and studies, one by one."""

from __future__ import annotations

from pathlib import Path

import click

from emulator.bench import policy
from emulator.bench.catalogue import BENCHES, STUDIES, Run
from emulator.bench.charts import Curves
from emulator.bench.report import Failure, Report
from emulator.bench.showing import Form, show
from emulator.bench.workload import LINKS, PCIE
from kvlane.errors import KvlaneError

ALL = "all"


@click.command()
@click.argument("name", type=click.Choice([ALL, *BENCHES, *STUDIES]))
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
    help="Of the benchmarks whose name does not say it; studies are of all links.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requests for policy, JSON lines with hash_ids; by itself synthetic chat.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown tables, to paste.")
@click.option(
    "--charts-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/charts"),
    show_default=True,
    help="Where charts writes its SVG files.",
)
def bench(
    name: str,
    rounds: int,
    link: str,
    trace: Path | None,
    as_json: bool,
    as_markdown: bool,
    charts_folder: Path,
) -> None:
    """Measure against a limit or a peer in the same run.

    Peers that are not installed are named; make bench-peers installs them. Two studies are not
    part of all: charts (block sizes and queue depths) and breakdown (where the time of one
    Retrieve goes).
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    form = Form.JSON if as_json else Form.MARKDOWN if as_markdown else Form.TEXT
    if name in STUDIES:
        _study(name, rounds, form, charts_folder)
        return
    report = Report()
    for each in BENCHES if name == ALL else [name]:
        _say(each)
        report.extend(_outcome(each, _benchmark(each, trace), rounds, link))
    show(report, form)
    if report.failed:
        raise click.exceptions.Exit(1)


def _study(name: str, rounds: int, form: Form, charts_folder: Path) -> None:
    study = STUDIES[name](rounds, _say)
    if isinstance(study, Curves):
        for path in study.write_svg(charts_folder):
            _say(f"written: {path}")
    show(study, form)


def _benchmark(name: str, trace: Path | None) -> Run:
    """The benchmark of a name; that of policies replays a trace, if one is given."""
    if name == policy.NAME and trace is not None:
        return lambda rounds, progress, _link: policy.run(rounds, progress, trace)
    return BENCHES[name]


def _outcome(name: str, run: Run, rounds: int, link: str) -> Report:
    """What a benchmark reports, or that it failed: the others are to run all the same."""
    try:
        return run(rounds, _say, link)
    except Exception as error:
        reason = (
            str(error) if isinstance(error, KvlaneError) else f"{type(error).__name__}: {error}"
        )
        _say(f"{name} failed: {reason}")
        return Report(failed=[Failure(name, reason)])


def _say(text: str) -> None:
    click.echo(text, err=True)
