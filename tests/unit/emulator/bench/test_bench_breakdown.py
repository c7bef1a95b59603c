from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.bench._stamp_kernels import COMPLETED, POSTED, STAMP
from emulator.bench.breakdown import STAGES, Breakdown, BreakdownSize, Stage, run, stage_times
from emulator.bench.stamped_backend import NAME, stamped_backend
from emulator.bench.stamps import CAPACITY, Moment, StampLog
from kvlane.errors import KvlaneError
from kvlane.verbs.backends import BACKENDS
from kvlane.verbs.enums import WcOpcode, WrOpcode

SPAN = Moment(0, 100)


def _stamps(*rows: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    return np.array(list(rows), STAMP)


def _driver(answered_ns: int = 90) -> np.ndarray[Any, Any]:
    return _stamps(
        (POSTED, int(WrOpcode.SEND), 10, 13),
        (COMPLETED, int(WcOpcode.SEND), 20, 21),
        (COMPLETED, int(WcOpcode.RECV), 85, answered_ns),
    )


def _agent(*more: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    return _stamps(
        (COMPLETED, int(WcOpcode.RECV), 15, 20),
        (POSTED, int(WrOpcode.RDMA_WRITE), 25, 30),
        (COMPLETED, int(WcOpcode.RDMA_WRITE), 60, 65),
        *more,
    )


RESPONSE = (POSTED, int(WrOpcode.SEND), 70, 72)


def test_stages_follow_each_other_from_call_to_return() -> None:
    times = stage_times(SPAN, _driver(), _agent(RESPONSE))
    assert times == [10, 3, 7, 5, 40, 5, 20, 10]
    assert len(times) == len(STAGES)


def test_what_was_noticed_early_takes_no_time_and_the_sum_stays() -> None:
    early = (POSTED, int(WrOpcode.SEND), 62, 64)
    times = stage_times(SPAN, _driver(), _agent(early))
    assert times[5] == 0
    assert sum(times) == 100


def test_a_step_that_is_missing_is_named() -> None:
    with pytest.raises(KvlaneError, match="posted its response"):
        stage_times(SPAN, _driver(), _agent())


def test_a_log_is_read_by_whoever_opens_its_file(tmp_path: Path) -> None:
    log = StampLog(tmp_path / "log")
    assert len(log.stamps) == 0
    head = log._bytes[:16].view("i8")
    assert head[1] == CAPACITY
    log._stamps[0] = (POSTED, 3, 1, 2)
    head[0] = 1
    assert StampLog(tmp_path / "log").stamps.tolist() == [(POSTED, 3, 1, 2)]


def test_the_backend_is_in_the_table_only_meanwhile() -> None:
    assert NAME not in BACKENDS
    with stamped_backend():
        assert NAME in BACKENDS
    assert NAME not in BACKENDS


def test_all_forms_have_every_stage_and_the_whole_call() -> None:
    result = Breakdown([Stage("udp", name, 2.5, 0.125) for name in STAGES], {"udp": 20.0})
    assert json.loads(result.as_json())["totals_us"] == {"udp": 20.0}
    for text in (result.as_markdown(), result.as_text()):
        assert "whole call" in text
        for name in STAGES:
            assert name in text
        assert text.count("12.5%") == len(STAGES)


def test_retrieves_are_taken_apart_over_both_links() -> None:
    result = run(1, lambda _: None, BreakdownSize(block_bytes=16384, stored=2, calls=3))
    assert [stage.link for stage in result.stages] == ["pcie"] * 8 + ["udp"] * 8
    assert all(stage.microseconds >= 0 for stage in result.stages)
    for link, total_us in result.totals_us.items():
        assert sum(s.share for s in result.stages if s.link == link) == pytest.approx(1)
        assert total_us > 0
