"""What each request found and when, and how that looks from afar."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

WINDOWS = 60
SHARES = (0.01, 0.05, *(step / 20 for step in range(2, 19)), 0.95, 0.99, 0.999)
"""At which distributions are reported."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of all prompts: what hits save of the prefill, and what each request has left of it."""

    asked: int = 0
    saved: int = 0
    left_p50: float = 0.0
    left_p90: float = 0.0
    left_p99: float = 0.0


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of equal length over the time of a replay."""

    end_seconds: Sequence[float] = ()
    blocks_asked: Sequence[int] = ()
    blocks_hit: Sequence[int] = ()


@dataclass(slots=True)
class Timeline:
    """Grows by a row with each request that has ended."""

    block_tokens: int
    ended_ns: array[int] = field(default_factory=lambda: array("q"))
    asked: array[int] = field(default_factory=lambda: array("q"))
    hit: array[int] = field(default_factory=lambda: array("q"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))

    def add(self, ended_ns: int, asked: int, hit: int, prompt_tokens: int) -> None:
        """One request."""
        self.ended_ns.append(ended_ns)
        self.asked.append(asked)
        self.hit.append(hit)
        self.prompt_tokens.append(prompt_tokens)

    def tokens(self) -> Tokens:
        """Of all requests so far; a prompt's last block may be shorter than the others."""
        if not self.asked:
            return Tokens()
        prompts = np.asarray(self.prompt_tokens, np.int64)
        saved = np.minimum(np.asarray(self.hit, np.int64) * self.block_tokens, prompts)
        p50, p90, p99 = (float(each) for each in np.percentile(prompts - saved, [50, 90, 99]))
        return Tokens(int(prompts.sum()), int(saved.sum()), p50, p90, p99)

    def windows(self, start_ns: int) -> TimeWindows:
        """What happened from a start until the last request has ended."""
        if not self.asked:
            return TimeWindows()
        ended = np.asarray(self.ended_ns, np.int64) - start_ns
        length = int(ended.max()) // WINDOWS + 1
        window = np.clip(ended // length, 0, WINDOWS - 1)
        asked = np.bincount(window, np.asarray(self.asked, np.float64), WINDOWS)
        hit = np.bincount(window, np.asarray(self.hit, np.float64), WINDOWS)
        return TimeWindows(
            end_seconds=[(at + 1) * length / 1e9 for at in range(WINDOWS)],
            blocks_asked=[int(each) for each in asked],
            blocks_hit=[int(each) for each in hit],
        )


def quantiles_us(samples_ns: Mapping[str, Sequence[int]]) -> dict[str, list[float]]:
    """Of each kind of command that there was: its times at ``SHARES``."""
    return {
        kind: [float(each) for each in np.quantile(np.asarray(times, np.float64) / 1e3, SHARES)]
        for kind, times in samples_ns.items()
        if len(times)
    }
