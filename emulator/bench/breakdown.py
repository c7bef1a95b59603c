"""``breakdown``: where each microsecond of one Retrieve of one block goes, over each link.

Both ends note when they post requests and poll completions, in a table of verbs that stands
before the device's own; the rest is the clock before and after the call. One call comes right
after the other. An end that waits for longer than its ``spin_us`` sleeps all the same, and its
waking belongs to the stage in which it notices.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import host_driver
from emulator.bench.rounds import Progress
from emulator.bench.showing import markdown_table, terminal_text
from emulator.bench.stamped_agent import start_stamped_agent
from emulator.bench.stamped_backend import LOG_OPTION, NAME, stamped_backend
from emulator.bench.stamps import Moment, StampLog, completed, posted
from emulator.bench.workload import LINKS, MIB, Lanes
from kvlane.errors import KvlaneError
from kvlane.verbs.enums import WcOpcode, WrOpcode

BREAKDOWN = "breakdown"
_WARM_UP_CALLS = 20
_HEADS = ("link", "stage", "us", "percent")

STAGES = (
    "driver: Python, capsule formed",
    "driver: capsule posted",
    "capsule on its way, agent notices",
    "agent: look-up, pin, requests formed",
    "payload moved: WRITE posted to completed",
    "agent: checks, response formed",
    "response on its way, driver notices",
    "driver: wake-up, Python",
)


@dataclass(frozen=True, slots=True)
class BreakdownSize:
    """What is fetched, and how often a round."""

    block_bytes: int = MIB
    stored: int = 64
    calls: int = 50
    """A round."""


SIZE = BreakdownSize()


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the way, the median over all calls."""

    link: str
    name: str
    microseconds: float
    share: float
    """Of the sum of all stages."""


@dataclass(slots=True)
class Breakdown:
    """The stages, in order, of each link."""

    stages: list[Stage] = field(default_factory=list)
    totals_us: dict[str, float] = field(default_factory=dict)
    """By link: the median of whole calls, which differs a little from the sum of medians."""

    def as_json(self) -> str:
        """One object."""
        stages = [asdict(stage) for stage in self.stages]
        return json.dumps({"stages": stages, "totals_us": self.totals_us})

    def as_markdown(self) -> str:
        """One table."""
        return markdown_table(_HEADS, self._rows())

    def as_text(self) -> str:
        """A table for a terminal."""
        table = Table(title="one Retrieve")
        for heading in _HEADS:
            table.add_column(heading, justify="right" if heading in _HEADS[2:] else "left")
        for row in self._rows():
            table.add_row(*row)
        return terminal_text(table)

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for link, total_us in self.totals_us.items():
            rows += [
                (link, stage.name, f"{stage.microseconds:.1f}", f"{stage.share:.1%}")
                for stage in self.stages
                if stage.link == link
            ]
            rows.append((link, "whole call", f"{total_us:.1f}", ""))
        return rows


def run(rounds: int, progress: Progress, size: BreakdownSize = SIZE) -> Breakdown:
    """Measure."""
    result = Breakdown()
    for link in LINKS:
        progress(f"{BREAKDOWN} over {link}")
        calls_ns = np.array(_calls(link, rounds, size))
        medians = [float(value) / 1000 for value in np.median(calls_ns, axis=0)]
        result.totals_us[link] = float(np.median(calls_ns.sum(axis=1))) / 1000
        for name, us in zip(STAGES, medians, strict=True):
            result.stages.append(Stage(link, name, us, us / sum(medians)))
    return result


def _calls(link: str, rounds: int, size: BreakdownSize) -> list[list[int]]:
    """Nanoseconds of every stage, for each call."""
    with ExitStack() as undo:
        undo.enter_context(stamped_backend())
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="kvlane-stamps-")))
        ours, theirs = folder / "driver", folder / "agent"
        control = start_stamped_agent(link, theirs, 2 * size.stored, size.block_bytes, undo)
        config = host_driver.DriverConfig(
            verbs=NAME, device_options={"link": link, LOG_OPTION: str(ours)}
        )
        with host_driver.connect_sync(control, config=config) as dpu:
            spans = _retrieve_singly(Lanes(dpu, size.block_bytes, 1), rounds, size)
        # Only now: the agent notes its last response when the host has it already.
        logs = [StampLog(path).stamps for path in (ours, theirs)]
    return [stage_times(span, *(_within(log, span) for log in logs)) for span in spans]


def _retrieve_singly(lanes: Lanes, rounds: int, size: BreakdownSize) -> list[Moment]:
    """When each call began and ended."""
    lanes.store(lanes.new_keys(size.stored))
    batches = lanes.stored_keys(size.stored)
    spans = []
    for number in range(_WARM_UP_CALLS + rounds * size.calls):
        keys = batches[number % len(batches)]
        begin_ns = time.monotonic_ns()
        lanes.retrieve([keys], 1)
        spans.append(Moment(begin_ns, time.monotonic_ns()))
    return spans[_WARM_UP_CALLS:]


def _within(stamps: np.ndarray[Any, Any], span: Moment) -> np.ndarray[Any, Any]:
    """The stamps of calls that began in a span."""
    return stamps[(stamps["begin_ns"] >= span.begin_ns) & (stamps["begin_ns"] < span.end_ns)]


def stage_times(
    span: Moment, driver: np.ndarray[Any, Any], agent: np.ndarray[Any, Any]
) -> list[int]:
    """Nanoseconds of the stages of one call, from its own times and the stamps of both ends.

    ``KvlaneError`` when a step is missing: then the two ends do it otherwise than we think.
    """
    sent = _first("posted its command", posted(driver, WrOpcode.SEND))
    arrived = _first("got the command", completed(agent, WcOpcode.RECV))
    writes = _first("posted a WRITE", posted(agent, WrOpcode.RDMA_WRITE))
    written = _first("completed a WRITE", completed(agent, WcOpcode.RDMA_WRITE)[-1:])
    answer = _first("posted its response", posted(agent, WrOpcode.SEND)[-1:])
    answered = _first("got the response", completed(driver, WcOpcode.RECV)[-1:])
    moments = [
        span.begin_ns,
        sent.begin_ns,
        sent.end_ns,
        arrived.end_ns,
        writes.begin_ns,
        written.end_ns,
        answer.begin_ns,
        answered.end_ns,
        span.end_ns,
    ]
    # What was noticed before the call that caused it had returned took no time of its own.
    in_order = list(itertools.accumulate(moments, max))
    return [later - earlier for earlier, later in itertools.pairwise(in_order)]


def _first(what: str, moments: Sequence[Moment]) -> Moment:
    if not moments:
        raise KvlaneError(f"breakdown: a call was answered, but no end {what}")
    return moments[0]
