"""The page of counters is about the counters that there are."""

from __future__ import annotations

import re

from emulator.roce.state import COUNTER_NAMES
from emulator.trace.tracer import DROP_COUNTERS
from tests.support.repository import ROOT

_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.M)


def test_every_counter_is_described_once_and_no_other() -> None:
    rows = _ROW.findall((ROOT / "docs" / "counters.md").read_text())
    assert sorted(name for name, *_ in rows) == sorted(COUNTER_NAMES)


def test_a_counter_that_mlx5_has_bears_its_name_except_where_one_is_split() -> None:
    rows = _ROW.findall((ROOT / "docs" / "counters.md").read_text())
    named = {name: mlx5 for name, _, mlx5, _ in rows if mlx5.startswith("`")}
    other = {name for name, mlx5 in named.items() if not mlx5.startswith(f"`{name}`")}
    split = {"rx_no_receive", "rnr_nak_sent"}
    port = {name for name, mlx5 in named.items() if mlx5.startswith("`counters/")}
    assert other == split | port


def test_the_tracer_knows_only_counters_that_there_are() -> None:
    assert set(DROP_COUNTERS) <= set(COUNTER_NAMES)
