"""A virtual replay as one JSON object: everything that its report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dpu_agent.planning.hierarchy import Outcome
from dpu_agent.planning.planner import PlannedRate
from dpu_agent.planning.sizing import LeastCapacity, WorthwhileCapacity
from dpu_agent.planning.virtual_replay import VirtualReplay

_NS_PER_S = 1e9


def as_figures(replay: VirtualReplay) -> dict[str, Any]:
    """Names, counts and rates, in the order in which one reads them."""
    job, outcome, accesses = replay.job, replay.outcome, replay.accesses
    asked = outcome.total("asked")
    return {
        "mode": "virtual",
        "trace": {
            "name": job.trace,
            "requests": len(accesses.request_ends),
            "blocks_asked": asked,
            "distinct_blocks": len(accesses.keys),
            "seconds": float(accesses.arrivals_ns.max()) / _NS_PER_S,
        },
        "block_bytes": job.block_bytes,
        "hit_rate": outcome.hit_rate,
        "prefix_hit_rate": outcome.prefix_hit_rate,
        "tiers": [_tier(replay, number) for number in range(len(job.tiers))],
        "prefill": {
            **asdict(replay.prefill),
            "first_token_ms": asdict(replay.first_token_ms),
            "first_token_without_cache_ms": asdict(replay.first_token_without_cache_ms),
        },
        "waste": _waste(outcome),
        "prefetch": None,
        "windows": _windows(replay),
        "curve": [_point(point, job.block_bytes) for point in replay.points],
        "sizing": {
            "least_capacity": [_least(each, job.block_bytes) for each in replay.least],
            "worthwhile_capacity": [
                _worthwhile(each, job.block_bytes) for each in replay.worthwhile
            ],
        },
        "profile": {"name": job.profile_name, **asdict(job.profile)},
        "speed": {
            "simulated_accesses": replay.simulated_accesses,
            "seconds": replay.seconds,
        },
    }


def _tier(replay: VirtualReplay, number: int) -> dict[str, Any]:
    tier, outcome, size = replay.job.tiers[number], replay.outcome, replay.job.block_bytes
    figures = replay.job.profile.of(tier.name)
    hits = outcome.of_tier(number, "hits")
    moved = {
        f"{name}_bytes": outcome.of_tier(number, name) * size
        for name in ("stored", "promoted", "demoted")
    }
    return {
        "tier": tier.name,
        "policy": tier.policy,
        "capacity_blocks": tier.capacity_blocks,
        "capacity_bytes": tier.capacity_blocks * size,
        "hits": hits,
        "hit_rate": hits / outcome.total("asked"),
        "served_bytes": hits * size,
        **moved,
        "refused_blocks": outcome.of_tier(number, "passed_by"),
        "load_ms": asdict(replay.loads[number].spread),
        "latency_source": figures.source,
    }


def _waste(outcome: Outcome) -> dict[str, Any]:
    totals = outcome.totals
    present = int(totals["present"].sum())
    return {
        "stranded_hits": outcome.total("stranded"),
        "orphaning_evictions": outcome.total("orphaning"),
        "orphaned_blocks_at_end": outcome.total("orphaned"),
        "present_blocks_at_end": outcome.total("present"),
        "orphaned_share": int(totals["orphaned"].sum()) / present if present else 0.0,
        "dropped_blocks": outcome.total("dropped"),
        "dropped_unread_blocks": outcome.total("unread"),
        "refused_blocks": outcome.total("refused"),
    }


def _windows(replay: VirtualReplay) -> Mapping[str, Any]:
    """Per window what happened in it, and at its end how many blocks lie where they are of use."""
    outcome = replay.outcome
    ends = [(at + 1) * outcome.window_ns / _NS_PER_S for at in range(len(outcome.totals))]
    by_tier = {
        name: {
            tier.name: _steps(outcome.counts[name][:, number])
            for number, tier in enumerate(outcome.tiers)
        }
        for name in ("hits", "stored", "promoted", "demoted")
    }
    return {
        "end_seconds": ends,
        "asked": _steps(outcome.totals["asked"]),
        "stranded": _steps(outcome.totals["stranded"]),
        **by_tier,
        "present_blocks": outcome.totals["present"].tolist(),
        "orphaned_blocks": outcome.totals["orphaned"].tolist(),
    }


def _steps(sums: Any) -> list[int]:
    """What was added in each window."""
    steps: list[int] = [int(sums[0]), *(int(step) for step in sums[1:] - sums[:-1])]
    return steps


def _point(point: PlannedRate, block_bytes: int) -> dict[str, Any]:
    return {**asdict(point), "capacity_bytes": point.capacity_blocks * block_bytes}


def _least(answer: LeastCapacity, block_bytes: int) -> dict[str, Any]:
    found = answer.reached
    return {
        **asdict(answer),
        "capacity_bytes": found.capacity_blocks * block_bytes if found else None,
    }


def _worthwhile(answer: WorthwhileCapacity, block_bytes: int) -> dict[str, Any]:
    blocks = answer.capacity_blocks
    return {
        **asdict(answer),
        "capacity_bytes": None if blocks is None else blocks * block_bytes,
    }
