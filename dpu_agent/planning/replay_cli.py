"""``replay --virtual``: a trace over tiers in virtual time, its report, and how large to build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table

from dpu_agent.cache.policy.registry import POLICIES
from dpu_agent.planning.accesses import Accesses, flatten
from dpu_agent.planning.hierarchy import VirtualTier
from dpu_agent.planning.planner import policy_names
from dpu_agent.planning.profile import DEFAULT_PROFILE, load_profile, shipped_profiles
from dpu_agent.planning.units import amount_text, bytes_text, ms_text, share_text
from dpu_agent.planning.virtual_figures import as_figures
from dpu_agent.planning.virtual_replay import VirtualJob, VirtualReplay, replay_virtually
from dpu_agent.planning.virtual_report import as_page
from kvlane.config import parse_bytes
from kvlane.errors import ConfigError
from kvlane.report.page import write_page
from kvlane.tier_sizes import HOTTER_POLICY, NVME, REMOTE, parse_policies, parse_tiers
from kvlane.trace import read_trace

MAX_SCALE = 1e6
_KEEPING_COPIES = (NVME, REMOTE)
"""Tiers that keep a block that goes to a hotter one: to write it again costs more than its room."""


@click.command("replay --virtual")
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    metavar="NAME=SIZE",
    required=True,
    help="A tier of blocks: hbm, dram, nvme or remote; several, from hot to cold.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="[TIER=]NAME",
    help="Eviction policy of the coldest tier, or of the one named; the others have "
    f"{HOTTER_POLICY}.  [default: {HOTTER_POLICY}]",
)
@click.option(
    "--policies",
    "compared",
    default="all",
    show_default=True,
    help="To compare in the coldest tier, at every scale: names with commas; all includes "
    "Belady's optimum and the unbounded cache.",
)
@click.option(
    "--scales",
    default="0.25,0.5,1,2,4",
    show_default=True,
    help="Sizes of all tiers together at which to compare, as parts of those given.",
)
@click.option(
    "--profile",
    "profile_name",
    default=DEFAULT_PROFILE,
    show_default=True,
    help=f"Costs of memory and prefill: {', '.join(shipped_profiles())}, or a YAML file.",
)
@click.option("--block-bytes", help="Size of a block.  [default: that of the profile's model]")
@click.option("--requests", "limit", type=click.IntRange(min=1), help="Stop after this many.")
@click.option(
    "--want-hit-rate",
    type=click.FloatRange(0, 1, min_open=True),
    help="Find the least capacity of each tier that reaches this.",
)
@click.option(
    "--worth-per-gib",
    type=click.FloatRange(0, min_open=True),
    help="Find the capacity of each tier beyond which another GiB gains less hit rate than this.",
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write HTML there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def virtual_replay(  # noqa: PLR0913 - one argument for each option, as click passes them
    *,
    trace: Path,
    tiers: tuple[str, ...],
    policies: tuple[str, ...],
    compared: str,
    scales: str,
    profile_name: str,
    block_bytes: str | None,
    limit: int | None,
    want_hit_rate: float | None,
    worth_per_gib: float | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Replay TRACE over tiers in virtual time: no agent and no payload, only the agent's policies.

    TRACE is as for a replay against an agent (kvlane replay --help). Blocks are demoted from
    tier to tier as they have to leave, and promoted when they are asked for.
    """
    profile = load_profile(profile_name)
    size = profile.model.block_bytes if block_bytes is None else parse_block_bytes(block_bytes)
    job = VirtualJob(
        trace=trace.name,
        tiers=virtual_tiers(tiers, policies, size),
        block_bytes=size,
        profile=profile,
        profile_name=profile_name,
        policies=tuple(policy_names(compared)),
        scales=parse_scales(scales),
        wanted_hit_rate=want_hit_rate,
        least_gain_per_gib=worth_per_gib,
    )
    with Console(stderr=True).status(f"reading {trace.name}") as status:
        replay = _run(trace, limit, job, status)
    if report is not None:
        write_page(report, as_page(replay))
    if as_json:
        click.echo(json.dumps(as_figures(replay)))
    else:
        console = Console()
        for each in _tables(replay):
            console.print(each)


def _run(trace: Path, limit: int | None, job: VirtualJob, status: Status) -> VirtualReplay:
    accesses: Accesses = flatten(islice(read_trace(trace), limit))
    return replay_virtually(accesses, job, status.update)


def parse_block_bytes(text: str) -> int:
    """A size of at least one byte."""
    try:
        size = parse_bytes(int(text) if text.isdecimal() else text)
    except ConfigError as error:
        raise ConfigError(f"--block-bytes: {error}") from error
    if size < 1:
        raise ConfigError("--block-bytes must be at least 1")
    return size


def parse_scales(text: str) -> tuple[float, ...]:
    """Factors above 0 from a list with commas."""
    scales = []
    for part in text.split(","):
        try:
            scale = float(part)
        except ValueError:
            scale = 0.0
        if not 0 < scale <= MAX_SCALE:
            raise ConfigError(
                f"--scales: {part.strip()!r} is no factor above 0 and at most {MAX_SCALE:g}; an "
                f"example: 0.5,1,2"
            )
        scales.append(scale)
    return tuple(dict.fromkeys(scales))


def virtual_tiers(
    tiers: Sequence[str], policies: Sequence[str], block_bytes: int
) -> tuple[VirtualTier, ...]:
    """Tiers in blocks; ``ConfigError`` for one that holds none, or a policy that there is not."""
    sizes = parse_tiers(tiers)
    policy_of = parse_policies(policies, [size.name for size in sizes])
    for policy in policy_of.values():
        if policy not in POLICIES:
            raise ConfigError(
                f"--policy: unknown policy {policy!r}; one of {', '.join(sorted(POLICIES))}"
            )
    found = []
    for size in sizes:
        if size.place:
            raise ConfigError(
                f"--tier {size.name}: in virtual time there is no place {size.place!r}"
            )
        if size.capacity_bytes < block_bytes:
            raise ConfigError(
                f"--tier {size.name}: {bytes_text(size.capacity_bytes)} holds not one block of "
                f"{bytes_text(block_bytes)}; enlarge it, or give --block-bytes"
            )
        capacity_blocks = size.capacity_bytes // block_bytes
        keeps_copies = size.name in _KEEPING_COPIES
        found.append(VirtualTier(size.name, capacity_blocks, policy_of[size.name], keeps_copies))
    return tuple(found)


def _tables(replay: VirtualReplay) -> list[Table]:
    tables = [_totals_table(replay), _tier_table(replay), _curve_table(replay)]
    if replay.least or replay.worthwhile:
        tables.append(_sizing_table(replay))
    return tables


def _totals_table(replay: VirtualReplay) -> Table:
    outcome, prefill = replay.outcome, replay.prefill
    table = Table(title="replay in virtual time", show_header=False)
    table.add_column("what")
    table.add_column("how much", justify="right")
    left = prefill.tokens_left
    for row in (
        ("requests", f"{len(replay.accesses.request_ends):,}"),
        ("blocks asked for", f"{outcome.total('asked'):,}"),
        ("hit rate", share_text(outcome.hit_rate)),
        ("prefix hit rate", share_text(outcome.prefix_hit_rate)),
        ("hits behind a gap", f"{outcome.total('stranded'):,}"),
        ("orphans at the end", f"{outcome.total('orphaned'):,}"),
        ("tokens saved", f"{prefill.tokens_saved:,} of {prefill.tokens_asked:,}"),
        ("operations saved", amount_text(prefill.flops_saved, "FLOP")),
        ("tokens left P50 / P90 / P99", f"{left.p50:,.0f} / {left.p90:,.0f} / {left.p99:,.0f}"),
    ):
        table.add_row(*row)
    return table


def _tier_table(replay: VirtualReplay) -> Table:
    table = Table("tier", "policy", title="tiers, hottest first")
    for heading in ("capacity", "hits", "served", "promoted", "demoted to", "load P50 / P99"):
        table.add_column(heading, justify="right")
    size = replay.job.block_bytes
    for number, (tier, loads) in enumerate(zip(replay.job.tiers, replay.loads, strict=True)):
        hits = replay.outcome.of_tier(number, "hits")
        moved = (hits, *(replay.outcome.of_tier(number, name) for name in ("promoted", "demoted")))
        table.add_row(
            tier.name,
            tier.policy,
            bytes_text(tier.capacity_blocks * size),
            share_text(hits / replay.outcome.total("asked")),
            *(amount_text(blocks * size, "B") for blocks in moved),
            f"{ms_text(loads.spread.p50)} / {ms_text(loads.spread.p99)}",
        )
    return table


def _curve_table(replay: VirtualReplay) -> Table:
    table = Table("policy", title="hit rates by policy of the coldest tier")
    for heading in ("capacity of all tiers", "hit rate", "prefix hit rate"):
        table.add_column(heading, justify="right")
    for point in replay.points:
        table.add_row(
            point.policy,
            bytes_text(point.capacity_blocks * replay.job.block_bytes),
            f"{point.hit_rate:.4f}",
            f"{point.prefix_hit_rate:.4f}",
        )
    return table


def _sizing_table(replay: VirtualReplay) -> Table:
    table = Table("tier", "question", title="how large should it be")
    for heading in ("capacity", "hit rate there"):
        table.add_column(heading, justify="right")
    size = replay.job.block_bytes
    for least in replay.least:
        question = f"reaches a hit rate of {least.wanted_hit_rate:g}"
        if least.reached is None:
            table.add_row(least.tier, question, "none", f"at most {least.most_hit_rate:.4f}")
        else:
            capacity = bytes_text(least.reached.capacity_blocks * size)
            table.add_row(least.tier, question, capacity, f"{least.reached.hit_rate:.4f}")
    for worth in replay.worthwhile:
        question = f"another GiB gains less than {worth.least_gain_per_gib:g}"
        if worth.capacity_blocks is None or worth.hit_rate is None:
            table.add_row(worth.tier, question, "from the start", "-")
        else:
            capacity = bytes_text(worth.capacity_blocks * size)
            table.add_row(worth.tier, question, f"beyond {capacity}", f"{worth.hit_rate:.4f}")
    return table
