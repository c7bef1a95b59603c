from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.bench import cli
from emulator.bench.charts import Curves, Point
from emulator.bench.report import (
    Better,
    Failure,
    Goal,
    MissingPeer,
    Report,
    summarise,
    unrivalled,
)
from emulator.bench.rounds import Progress
from kvlane.errors import ConfigError


def test_the_ratio_is_ours_over_theirs_and_the_median_of_the_rounds() -> None:
    result = summarise("x", "GB/s", [2, 9, 4], "peer", [1, 3, 4], Goal(2))
    assert (result.value, result.reference_value, result.ratio) == (4, 3, 2)
    assert result.met is True
    assert result.spread == 1.0


@pytest.mark.parametrize(
    ("better", "value", "met"),
    [
        (Better.HIGHER, 2, True),
        (Better.HIGHER, 1.9, False),
        (Better.LOWER, 2, True),
        (Better.LOWER, 2.1, False),
    ],
)
def test_a_goal_is_met_on_its_own_side(better: Better, value: float, met: bool) -> None:
    assert summarise("x", "us", [value], "peer", [1], Goal(2, better)).met is met


def test_without_a_goal_nothing_is_met_or_missed() -> None:
    result = summarise("x", "us", [1], "peer", [1])
    assert (result.target, result.met) == (None, None)


def _full_report() -> Report:
    report = Report([summarise("x", "us", [1], "peer", [2], Goal(1))])
    report.results.append(unrivalled("alone", "us", [3], "redis", Goal(1)))
    report.failed.append(Failure("y", "no such [link]"))
    report.miss([MissingPeer("valkey", "install it")])
    return report


def test_json_has_results_failures_and_absent_peers() -> None:
    whole = json.loads(_full_report().as_json())
    assert list(whole) == ["benches", "failed", "missing_peers"]
    assert whole["benches"][0]["better"] == "higher"
    assert whole["benches"][1]["ratio"] is None
    assert whole["failed"] == [{"name": "y", "reason": "no such [link]"}]
    assert whole["missing_peers"] == [{"name": "valkey", "needs": "install it"}]


@pytest.mark.parametrize("text", [_full_report().as_text(200), _full_report().as_markdown()])
def test_tables_name_failures_and_absent_peers(text: str) -> None:
    for part in ("failed", "no such [link]", "valkey (install it)", "redis (not measured)"):
        assert part in text


def test_all_goes_on_after_a_failure_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(rounds: int, progress: Progress, link: str) -> Report:
        raise ConfigError(f"no link {link}")

    def works(rounds: int, progress: Progress, link: str) -> Report:
        return Report([summarise("good", "us", [1.0] * rounds, "peer", [1.0] * rounds)])

    monkeypatch.setattr(cli, "BENCHES", {"bad": fails, "good": works})
    result = CliRunner().invoke(cli.bench, ["all", "--link", "udp", "--json"])
    whole = json.loads(result.stdout)
    assert result.exit_code == 1
    assert whole["failed"] == [{"name": "bad", "reason": "no link udp"}]
    assert [bench["name"] for bench in whole["benches"]] == ["good"]


def test_markdown_is_a_form_and_excludes_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def works(rounds: int, progress: Progress, link: str) -> Report:
        return Report([summarise("good", "us", [1.0], "peer", [1.0])])

    monkeypatch.setattr(cli, "BENCHES", {"good": works})
    result = CliRunner().invoke(cli.bench, ["all", "--markdown"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2].startswith("| good | 1 | us | peer |")
    assert CliRunner().invoke(cli.bench, ["all", "--markdown", "--json"]).exit_code == 2


def test_a_study_is_run_by_name_and_charts_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point = Point("block-size", "udp", 4096, 16, "4 KiB", 1.0, 2.0, 3.0, "limit")
    monkeypatch.setattr(cli, "STUDIES", {"charts": lambda rounds, progress: Curves([point])})
    arguments = ["charts", "--json", "--charts-folder", str(tmp_path)]
    result = CliRunner().invoke(cli.bench, arguments)
    assert json.loads(result.stdout)["points"][0]["store"] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["block-size-udp.svg"]
