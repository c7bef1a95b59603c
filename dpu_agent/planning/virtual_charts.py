"""The charts of a virtual replay's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpu_agent.planning.costs import Values, tokens_left
from dpu_agent.planning.planner import BOUNDS
from dpu_agent.planning.sizing import GIB
from dpu_agent.planning.units import amount_text, bytes_text, ms_text
from dpu_agent.planning.virtual_replay import VirtualReplay
from kvlane.report.line_chart import Chart, Line, Points
from kvlane.report.page import figure

_SHARES = (0.01, 0.05, *(step / 20 for step in range(2, 19)), 0.95, 0.99, 0.999)
"""Of requests: where the distributions of the charts have their points."""
_SHOWN_SHARES = (0.5, 0.9, 0.99)


def capacity_chart(replay: VirtualReplay) -> str:
    """Hit rate against capacity, by policy."""
    job = replay.job
    rates: dict[str, list[tuple[float, float]]] = {}
    for point in replay.points:
        place = (point.capacity_blocks * job.block_bytes / GIB, point.hit_rate)
        rates.setdefault(point.policy, []).append(place)
    sizes = sorted({x for name, places in rates.items() if name != "unbounded" for x, _ in places})
    if "unbounded" in rates and sizes:
        # Whatever the capacity: a line across.
        rate = rates["unbounded"][0][1]
        rates["unbounded"] = [(sizes[0], rate), (sizes[-1], rate)]
    chosen = job.tiers[-1].policy
    lines = [
        Line(name, places, is_bound=name in BOUNDS, is_chosen=name == chosen)
        for name, places in sorted(rates.items(), key=lambda each: -each[1][-1][1])
    ]
    chart = Chart(
        title="Hit rate against capacity",
        x_name="capacity of all tiers, GiB (logarithmic)",
        y_name="hits by block accesses",
        lines=lines,
        x_is_log=True,
        label_ends=True,
    )
    rows = [
        [line.name, *(f"{dict(line.points).get(size, line.points[0][1]):.4f}" for size in sizes)]
        for line in lines
    ]
    return figure(
        chart,
        "Each policy in the coldest tier, all tiers scaled together. Belady's optimum knows the "
        "future and is of one cache as large as all tiers; the unbounded cache never evicts.",
        ["policy", *(bytes_text(size * GIB) for size in sizes)],
        rows,
    )


def hits_chart(windows: Mapping[str, Any]) -> str:
    """Hits per tier over time."""
    asked = windows["asked"]
    lines = [
        Line(tier, _over_time(windows, [_ratio(*pair) for pair in zip(hits, asked, strict=True)]))
        for tier, hits in windows["hits"].items()
    ]
    if len(lines) > 1:
        sums = [sum(each) for each in zip(*windows["hits"].values(), strict=True)]
        whole = [_ratio(*pair) for pair in zip(sums, asked, strict=True)]
        lines.append(Line("all tiers", _over_time(windows, whole), is_bound=True))
    return _time_figure(
        "Hits per tier over time",
        "prefix hits by block accesses",
        lines,
        "In each window of the trace: blocks of unbroken prefixes that were found in a tier.",
        lambda value: f"{value:.4f}",
    )


def bytes_chart(windows: Mapping[str, Any], block_bytes: int) -> str:
    """Bytes moved over time."""
    names = {"stored": "stored by hosts", "promoted": "promoted", "demoted": "demoted"}
    lines = []
    for name, shown in names.items():
        blocks = [sum(each) for each in zip(*windows[name].values(), strict=True)]
        lines.append(
            Line(shown, _over_time(windows, [each * block_bytes / 1e9 for each in blocks]))
        )
    return _time_figure(
        "Bytes moved over time",
        "GB in each window",
        lines,
        "Between hosts and tiers, from colder tiers into hotter ones, and down.",
        lambda value: amount_text(value * 1e9, "B"),
    )


def waste_chart(windows: Mapping[str, Any]) -> str:
    """Orphaned blocks over time."""
    shares = [
        _ratio(*pair)
        for pair in zip(windows["orphaned_blocks"], windows["present_blocks"], strict=True)
    ]
    return _time_figure(
        "Orphans over time",
        "share of the blocks that lie in some tier",
        [Line("orphans", _over_time(windows, shares))],
        "Blocks before which one of their chain is missing: no prefix leads to them.",
        lambda value: f"{value:.5f}",
    )


def load_chart(replay: VirtualReplay) -> str:
    """How long requests load from each tier."""
    shown = [loads for loads in replay.loads if loads.spread.count]
    sources = ", ".join(
        f"{loads.tier} {replay.job.profile.of(loads.tier).source}" for loads in replay.loads
    )
    return _distribution_figure(
        "Time to load, per tier",
        "milliseconds (logarithmic)",
        [(loads.tier, loads.times_ms) for loads in shown],
        f"Of the requests that find blocks in a tier, from the profile's figures ({sources}).",
        ms_text,
    )


def tokens_chart(replay: VirtualReplay) -> str:
    """Tokens that each request has left to prefill."""
    served, accesses = replay.outcome.served, replay.accesses
    left = tokens_left(accesses, served, replay.job.profile.model.block_tokens)
    everything = accesses.input_tokens.astype(np.float64)
    return _distribution_figure(
        "Tokens left to prefill",
        "tokens of a request (logarithmic)",
        [("with the tiers", left), ("without a cache", everything)],
        "Requests of which nothing is left are drawn at one token.",
        lambda value: f"{value or 0:,.0f}",
    )


def sizing_chart(replay: VirtualReplay) -> str:
    """Hit rate against the capacity of each tier alone."""
    size = replay.job.block_bytes / GIB
    lines = [
        Line(
            answer.tier, [(point.capacity_blocks * size, point.hit_rate) for point in answer.curve]
        )
        for answer in replay.worthwhile
    ]
    chart = Chart(
        title="Hit rate against one tier's capacity",
        x_name="capacity of that tier, GiB (logarithmic)",
        y_name="hits by block accesses",
        lines=lines,
        x_is_log=True,
        label_ends=True,
    )
    rows = [[line.name, bytes_text(x * GIB), f"{y:.4f}"] for line in lines for x, y in line.points]
    return figure(
        chart,
        "One tier grows, the others stay as they are.",
        ["tier", "capacity", "hit rate"],
        rows,
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _over_time(windows: Mapping[str, Any], values: Sequence[float]) -> Points:
    minutes = [seconds / 60 for seconds in windows["end_seconds"]]
    return list(zip(minutes, values, strict=True))


def _time_figure(title: str, y_name: str, lines: Sequence[Line], caption: str, text: Any) -> str:
    chart = Chart(title=title, x_name="minutes of the trace", y_name=y_name, lines=lines)
    rows = [
        [f"{lines[0].points[at][0]:,.1f}", *(text(line.points[at][1]) for line in lines)]
        for at in range(len(lines[0].points))
    ]
    return figure(chart, caption, ["minutes", *(line.name for line in lines)], rows)


def _distribution_figure(
    title: str, x_name: str, series: Sequence[tuple[str, Values]], caption: str, text: Any
) -> str:
    """The share of requests that stay below a value."""
    lines = []
    for name, values in series:
        points = np.quantile(values, _SHARES) if len(values) else np.empty(0)
        least = 1.0 if "token" in x_name else 1e-6
        places = [(max(float(x), least), share) for x, share in zip(points, _SHARES, strict=False)]
        lines.append(Line(name, places))
    chart = Chart(
        title=title, x_name=x_name, y_name="share of requests below", lines=lines, x_is_log=True
    )
    rows = [
        [name, *(text(float(np.quantile(values, share))) for share in _SHOWN_SHARES)]
        for name, values in series
        if len(values)
    ]
    return figure(chart, caption, ["", "P50", "P90", "P99"], rows)
