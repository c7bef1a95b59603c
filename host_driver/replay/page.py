"""The report of a replay against an agent as a page: what the host measured, and what the agent
counted meanwhile."""

from __future__ import annotations

from host_driver.replay.report import Latency, ReplayResult
from host_driver.replay.timeline import SHARES
from kvlane.report.line_chart import Chart, Line
from kvlane.report.page import Section, charts, facts, figure, note, page, paragraph, table

_SHOWN_SHARES = (0.5, 0.9, 0.99)


def as_page(result: ReplayResult, workload: str) -> str:
    """One HTML file that needs nothing else."""
    sections = [
        _summary(result),
        Section("Hit rate", [charts([_hits_chart(result)])] if result.windows.end_seconds else []),
        _latency(result),
        _moved(result),
    ]
    return page(f"Replay: {workload}", sections)


def _summary(result: ReplayResult) -> Section:
    tokens = result.tokens
    return Section(
        "In short",
        [
            facts(
                [
                    ("hit rate", f"{result.hit_rate:.2%}"),
                    ("unbounded cache", f"{result.unbounded_hit_rate:.2%}"),
                    ("wrong blocks", f"{result.verification_errors:,}"),
                    ("payload both ways", f"{result.gigabytes_per_second:,.3f} GB/s"),
                    ("prefill tokens saved", f"{tokens.saved:,}"),
                    ("tokens left, P90", f"{tokens.left_p90:,.0f}"),
                    ("tokens left, P99", f"{tokens.left_p99:,.0f}"),
                ]
            ),
            paragraph(
                f"{result.requests:,} requests for {result.blocks_asked:,} blocks and "
                f"{tokens.asked:,} tokens in {result.seconds:,.1f} s. Every block that came back "
                f"was verified."
            ),
            note(
                "Hits are blocks of unbroken prefixes that came back from the agent. The unbounded "
                "cache hits what the same requests would where nothing is ever evicted."
            ),
        ],
    )


def _hits_chart(result: ReplayResult) -> str:
    windows = result.windows
    rates = [
        hit / asked if asked else 0.0
        for hit, asked in zip(windows.blocks_hit, windows.blocks_asked, strict=True)
    ]
    chart = Chart(
        title="Hit rate over time",
        x_name="seconds of the replay",
        y_name="hits by block accesses",
        lines=[Line("hit rate", list(zip(windows.end_seconds, rates, strict=True)))],
    )
    counts = zip(windows.end_seconds, windows.blocks_asked, windows.blocks_hit, rates, strict=True)
    rows = [
        [f"{end:,.2f}", f"{asked:,}", f"{hit:,}", f"{rate:.4f}"] for end, asked, hit, rate in counts
    ]
    return figure(
        chart, "By the time when requests ended.", ["seconds", "asked", "hit", "hit rate"], rows
    )


def _latency(result: ReplayResult) -> Section:
    kinds = {"match": result.match, "retrieve": result.retrieve, "store": result.store}
    rows = [_latency_row(kind, latency) for kind, latency in kinds.items()]
    parts = [
        table(["command", "how many", "P50, us", "P99, us"], rows),
        note(
            "Measured at the host, from the call to its end. The host is not told whether a "
            "command waited for files, so these are of all tiers together."
        ),
    ]
    quantiles = result.latency_quantiles_us
    if quantiles:
        chart = Chart(
            title="Time of commands",
            x_name="microseconds (logarithmic)",
            y_name="share of commands below",
            lines=[
                Line(
                    kind,
                    [(max(time, 1e-3), share) for time, share in zip(times, SHARES, strict=True)],
                )
                for kind, times in quantiles.items()
            ],
            x_is_log=True,
        )
        shown = [SHARES.index(share) for share in _SHOWN_SHARES]
        numbers = [
            [kind, *(f"{times[at]:,.1f}" for at in shown)] for kind, times in quantiles.items()
        ]
        parts.append(
            charts([figure(chart, "Measured.", ["", "P50, us", "P90, us", "P99, us"], numbers)])
        )
    return Section("Latency", parts)


def _latency_row(kind: str, latency: Latency) -> list[str]:
    times = (latency.p50_us, latency.p99_us)
    return [kind, f"{latency.commands:,}", *("-" if us is None else f"{us:,.1f}" for us in times)]


def _moved(result: ReplayResult) -> Section:
    rows = [
        ["stored by the host, bytes", f"{result.bytes_stored:,}"],
        ["retrieved by the host, bytes", f"{result.bytes_retrieved:,}"],
        ["blocks stored", f"{result.blocks_stored:,}"],
        ["blocks refused", f"{result.blocks_refused:,}"],
        ["blocks evicted from memory", f"{result.blocks_evicted:,}"],
        ["packets sent again", f"{result.retransmissions:,}"],
        *([name, f"{value:,}"] for name, value in result.tier_counters.items()),
    ]
    return Section(
        "What moved",
        [
            table(["what", "how much"], rows),
            note(
                "What begins with nvme_ is counted by the agent, of its files below memory: added "
                "while the replay ran, or, of what is a level, as it was at the end."
            ),
        ],
    )
