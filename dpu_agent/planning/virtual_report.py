"""The report of a virtual replay as a page."""

from __future__ import annotations

from typing import Any

from dpu_agent.planning import virtual_charts
from dpu_agent.planning.sizing import LeastCapacity, WorthwhileCapacity
from dpu_agent.planning.units import amount_text, bytes_text, ms_text, share_text
from dpu_agent.planning.virtual_figures import as_figures
from dpu_agent.planning.virtual_replay import VirtualReplay
from kvlane.report.page import Section, Text, charts, facts, note, page, paragraph, table


def as_page(replay: VirtualReplay) -> str:
    """One HTML file that needs nothing else."""
    figures = as_figures(replay)
    windows = figures["windows"]
    sections = [
        _summary(replay),
        Section(
            "Hit rates",
            [charts([virtual_charts.capacity_chart(replay), virtual_charts.hits_chart(windows)])],
        ),
        _tiers(replay),
        _prefill(replay),
        _waste(figures),
        _sizing(replay),
        _profile(replay),
    ]
    return page(f"Replay in virtual time: {replay.job.trace}", sections)


def _summary(replay: VirtualReplay) -> Section:
    outcome, prefill = replay.outcome, replay.prefill
    tiers = ", ".join(
        f"{tier.name} {bytes_text(tier.capacity_blocks * replay.job.block_bytes)} ({tier.policy})"
        for tier in replay.job.tiers
    )
    accesses = replay.accesses
    return Section(
        "In short",
        [
            paragraph(f"Tiers, hottest first: {tiers}."),
            facts(
                [
                    ("hit rate", share_text(outcome.hit_rate)),
                    ("prefix hit rate", share_text(outcome.prefix_hit_rate)),
                    ("prefill tokens saved", amount_text(prefill.tokens_saved, "")),
                    ("operations saved", amount_text(prefill.flops_saved, "FLOP")),
                    ("tokens left, P90", f"{prefill.tokens_left.p90 or 0:,.0f}"),
                    ("tokens left, P99", f"{prefill.tokens_left.p99 or 0:,.0f}"),
                ]
            ),
            note(
                f"{len(accesses.request_ends):,} requests for {outcome.total('asked'):,} blocks, "
                f"{len(accesses.keys):,} of them distinct, of "
                f"{bytes_text(replay.job.block_bytes)} each. The hit rate counts every block that "
                f"lay in some tier, the prefix hit rate those that no missing block of the same "
                f"request precedes. No payload was moved."
            ),
        ],
    )


def _tiers(replay: VirtualReplay) -> Section:
    outcome, size = replay.outcome, replay.job.block_bytes
    rows = []
    for number, (tier, loads) in enumerate(zip(replay.job.tiers, replay.loads, strict=True)):
        hits = outcome.of_tier(number, "hits")
        moved = [outcome.of_tier(number, name) for name in ("stored", "promoted", "demoted")]
        rows.append(
            [
                tier.name,
                bytes_text(tier.capacity_blocks * size),
                share_text(hits / outcome.total("asked")),
                *(amount_text(blocks * size, "B") for blocks in (hits, *moved)),
                *(ms_text(each) for each in (loads.spread.p50, loads.spread.p90, loads.spread.p99)),
                replay.job.profile.of(tier.name).source,
            ]
        )
    headings = ["tier", "capacity", "hits", "served", "stored here", "promoted from", "demoted to"]
    headings += ["load P50", "P90", "P99", "latency is"]
    return Section(
        "Tiers",
        [
            table(headings, rows),
            charts(
                [
                    virtual_charts.load_chart(replay),
                    virtual_charts.bytes_chart(as_figures(replay)["windows"], size),
                ]
            ),
        ],
    )


def _prefill(replay: VirtualReplay) -> Section:
    prefill = replay.prefill
    saved_s = prefill.seconds_saved
    rows = [
        [
            name,
            *(f"{value or 0:,.0f}" for value in (tokens.p50, tokens.p90, tokens.p99)),
            *(ms_text(value) for value in (first.p50, first.p90, first.p99)),
        ]
        for name, tokens, first in (
            ("with the tiers", prefill.tokens_left, replay.first_token_ms),
            (
                "without a cache",
                prefill.tokens_left_without_cache,
                replay.first_token_without_cache_ms,
            ),
        )
    ]
    headings = ["", "tokens left P50", "P90", "P99", "first token P50", "P90", "P99"]
    computed = "" if saved_s is None else f", or {saved_s:,.0f} s of the accelerator"
    return Section(
        "Prefill",
        [
            paragraph(
                f"{prefill.tokens_saved:,} of {prefill.tokens_asked:,} tokens "
                f"({share_text(prefill.tokens_saved / max(1, prefill.tokens_asked))}) need not be "
                f"computed: {amount_text(prefill.flops_saved, 'FLOP')}{computed}."
            ),
            table(headings, rows),
            note(
                "The time to the first token is estimated: loading from one tier after the other, "
                "then prefill of what is left, without waiting for other requests."
            ),
            charts([virtual_charts.tokens_chart(replay)]),
        ],
    )


def _waste(figures: dict[str, Any]) -> Section:
    waste = figures["waste"]
    rows: list[list[str | Text]] = [
        [
            "hits behind a gap",
            f"{waste['stranded_hits']:,}",
            Text(
                "Blocks that lay somewhere while one before them in the request did not: they are "
                "computed again."
            ),
        ],
        [
            "orphaning evictions",
            f"{waste['orphaning_evictions']:,}",
            Text("Blocks that left the last tier while an extension of them stayed."),
        ],
        [
            "orphans at the end",
            f"{waste['orphaned_blocks_at_end']:,}",
            Text("Blocks before which one of their chain is missing: no prefix leads to them."),
        ],
        [
            "orphans, mean share",
            share_text(waste["orphaned_share"]),
            Text("Of the blocks that lie in some tier, over all windows."),
        ],
        ["dropped", f"{waste['dropped_blocks']:,}", Text("Blocks that left the last tier.")],
        [
            "dropped unread",
            f"{waste['dropped_unread_blocks']:,}",
            Text("Those of them that no prefix ever had."),
        ],
        ["refused", f"{waste['refused_blocks']:,}", Text("New blocks that no tier took in.")],
    ]
    return Section(
        "Waste",
        [
            table(["what", "blocks", "meaning"], rows),
            charts([virtual_charts.waste_chart(figures["windows"])]),
            note("Prefetch was not simulated, so there is no accuracy of it to show."),
        ],
    )


def _sizing(replay: VirtualReplay) -> Section:
    parts = []
    if replay.least:
        parts += [
            table(
                ["tier", "wanted", "least capacity", "blocks", "hit rate there", "just below"],
                [_least_row(answer, replay.job.block_bytes) for answer in replay.least],
            ),
            note(
                "One tier is sized, the others stay as they are. Each answer was simulated and "
                "reaches what is wanted; just below it, at most 1 % smaller, it was simulated too "
                "and does not. Under some policies a hit rate may fall where the capacity grows, "
                "so a smaller capacity may reach it as well."
            ),
        ]
    if replay.worthwhile:
        parts += [
            table(
                ["tier", "gain wanted for a GiB", "worth it up to", "blocks", "hit rate there"],
                [_worth_row(answer, replay.job.block_bytes) for answer in replay.worthwhile],
            ),
            note("Beyond, no step of the simulated curve gains as much for a GiB."),
            charts([virtual_charts.sizing_chart(replay)]),
        ]
    if not parts:
        parts = [note("Not asked for: --want-hit-rate and --worth-per-gib.")]
    return Section("Sizing", parts)


def _least_row(answer: LeastCapacity, block_bytes: int) -> list[str]:
    wanted = f"{answer.wanted_hit_rate:g}"
    if answer.reached is None:
        return [answer.tier, wanted, "none", "-", f"at most {answer.most_hit_rate:.4f}", "-"]
    blocks = answer.reached.capacity_blocks
    below = f"{answer.below.hit_rate:.4f}" if answer.below else "-"
    found = f"{answer.reached.hit_rate:.4f}"
    return [answer.tier, wanted, bytes_text(blocks * block_bytes), f"{blocks:,}", found, below]


def _worth_row(answer: WorthwhileCapacity, block_bytes: int) -> list[str]:
    wanted = f"{answer.least_gain_per_gib:g}"
    blocks = answer.capacity_blocks
    if blocks is None or answer.hit_rate is None:
        return [answer.tier, wanted, "nothing", "-", "-"]
    size = bytes_text(blocks * block_bytes)
    return [answer.tier, wanted, size, f"{blocks:,}", f"{answer.hit_rate:.4f}"]


def _profile(replay: VirtualReplay) -> Section:
    profile = replay.job.profile
    model, accelerator = profile.model, profile.accelerator
    rows: list[list[str | Text]] = []
    for tier in replay.job.tiers:
        figures = profile.of(tier.name)
        speed = f"{figures.latency_us:g} us, {figures.gigabytes_per_second:,g} GB/s"
        rows.append([tier.name, speed, figures.source, Text(figures.basis)])
    rate = f"{accelerator.prefill_tflops:,g} TFLOP/s"
    rows.append(["prefill", rate, accelerator.source, Text(accelerator.basis)])
    cost = (
        f"{bytes_text(model.kv_bytes_per_token)} and {amount_text(model.flops_per_token, 'FLOP')}"
    )
    rows.append(["a token", cost, "stated", Text(model.basis)])
    return Section(
        "Figures that this rests on",
        [
            paragraph(f"Profile {replay.job.profile_name}: {model.name}."),
            table(["of", "figures", "they are", "basis"], rows),
            note(
                f"The sweep simulated {replay.simulated_accesses:,} block accesses in "
                f"{replay.seconds:,.2f} s."
            ),
        ],
    )
