"""What hits are worth: tokens and operations of prefill saved, and how long loads take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpu_agent.planning.accesses import Accesses
from dpu_agent.planning.profile import LatencyProfile

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are spread; None where there are none."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: NDArray[np.number]) -> Spread:
        """Percentiles, interpolated."""
        if not len(values):
            return cls(0)
        p50, p90, p99 = (float(each) for each in np.percentile(values, [50, 90, 99]))
        return cls(len(values), float(values.mean()), p50, p90, p99)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Tokens of all prompts."""

    tokens_asked: int
    tokens_saved: int
    """In blocks of unbroken prefixes, which need not be computed."""
    flops_saved: float
    tokens_left: Spread
    """Of each request: what is left to compute."""
    tokens_left_without_cache: Spread
    seconds_saved: float | None
    """Of the accelerator; None where the profile does not say how fast that is."""


def tokens_left(accesses: Accesses, served: NDArray[np.int32], block_tokens: int) -> Values:
    """What is left to compute of each prompt. Its last block may be shorter than the others."""
    held = np.minimum(served.sum(axis=1, dtype=np.int64) * block_tokens, accesses.input_tokens)
    left: Values = (accesses.input_tokens - held).astype(np.float64)
    return left


def prefill_of(accesses: Accesses, served: NDArray[np.int32], profile: LatencyProfile) -> Prefill:
    """From the blocks that each request found, by tier."""
    left = tokens_left(accesses, served, profile.model.block_tokens)
    asked = int(accesses.input_tokens.sum())
    saved = asked - int(left.sum())
    flops = saved * profile.model.flops_per_token
    per_second = profile.accelerator.prefill_tflops * 1e12
    return Prefill(
        tokens_asked=asked,
        tokens_saved=saved,
        flops_saved=flops,
        tokens_left=Spread.of(left),
        tokens_left_without_cache=Spread.of(accesses.input_tokens),
        seconds_saved=flops / per_second if per_second else None,
    )


def load_ms(
    served: NDArray[np.int32], tiers: Sequence[str], profile: LatencyProfile, block_bytes: int
) -> dict[str, Values]:
    """How long each request that finds blocks in a tier loads from it, by tier."""
    times: dict[str, Values] = {}
    for column, tier in enumerate(tiers):
        figures = profile.of(tier)
        blocks = served[:, column]
        found = blocks[blocks > 0].astype(np.float64)
        bytes_per_ms = figures.gigabytes_per_second * 1e6
        times[tier] = figures.latency_us / 1e3 + found * block_bytes / bytes_per_ms
    return times


def first_token_ms(
    accesses: Accesses,
    served: NDArray[np.int32],
    tiers: Sequence[str],
    profile: LatencyProfile,
    block_bytes: int,
) -> Values:
    """Of each request: loading, one tier after the other, and prefill of what is left; without
    waiting for others. Empty where the profile does not say how fast prefill is."""
    per_ms = profile.accelerator.prefill_tflops * 1e9
    if per_ms == 0:
        return np.empty(0)
    total: Values = (
        tokens_left(accesses, served, profile.model.block_tokens)
        * profile.model.flops_per_token
        / per_ms
    )
    for column, tier in enumerate(tiers):
        figures = profile.of(tier)
        blocks = served[:, column].astype(np.float64)
        total += (blocks > 0) * figures.latency_us / 1e3
        total += blocks * block_bytes / (figures.gigabytes_per_second * 1e6)
    return total
