"""Requests of kinds that a cache for prefixes meets: seeded, as traces of chains of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import numpy as np

from dpu_agent.planning.accesses import Accesses, flatten
from kvlane.trace import Request

Arrivals = list[tuple[float, tuple[int, ...]]]
"""Time in seconds, chain."""


class Names:
    """Numbers for blocks, each given once."""

    def __init__(self) -> None:
        self._next: Iterator[int] = count()

    def new(self, blocks: int) -> tuple[int, ...]:
        return tuple(next(self._next) for _ in range(blocks))


def agents(seed: int, names: Names, *, sessions: int = 60, duration_s: float = 1800) -> Arrivals:
    """Tool loops every few seconds, long pauses between turns, compactions, sub-agents; a few
    system prompts for all."""
    rng = np.random.default_rng(seed)
    prompts = [names.new(int(rng.integers(8, 25))) for _ in range(4)]
    sub_prompt = names.new(12)
    arrivals: Arrivals = []

    def loop(at: float, chain: tuple[int, ...], base: tuple[int, ...], steps: int) -> float:
        for _ in range(steps):
            arrivals.append((at, chain))
            chain += names.new(int(rng.integers(1, 5)))
            if base and rng.random() < 0.04:
                sub = sub_prompt + names.new(int(rng.integers(3, 10)))
                at = loop(at, sub, (), 1 + int(rng.geometric(0.2)))
            at += rng.lognormal(1.5, 0.6)
            if len(chain) > 180:
                chain = base + names.new(25)
        chains.append(chain)
        return at

    for _ in range(sessions):
        at = rng.random() * 300
        while at < duration_s:
            base = prompts[rng.integers(len(prompts))]
            chains = [base + names.new(int(rng.integers(2, 20)))]
            while at < duration_s:
                at = loop(at, chains[-1], base, 1 + int(rng.geometric(0.1)))
                if rng.random() < 0.12:
                    break
                at += rng.lognormal(5.0, 1.1)
            at += rng.exponential(60)
    return arrivals


def chats(seed: int, names: Names, *, duration_s: float = 1800, per_s: float = 2.5) -> Arrivals:
    """Conversations of several turns with time to think, whose last block changes."""
    rng = np.random.default_rng(seed)
    prompt, at = names.new(3), 0.0
    arrivals: Arrivals = []
    while at < duration_s:
        at += rng.exponential(1 / per_s)
        chain, turn_at = prompt + names.new(int(1 + rng.geometric(1 / 8))), at
        slowness_s, goes_on = rng.lognormal(4.3, 0.7), rng.beta(2, 2)
        while turn_at < duration_s:
            arrivals.append((turn_at, chain + names.new(1)))
            if rng.random() > goes_on:
                break
            chain += names.new(int(rng.geometric(1 / 3)))
            turn_at += 10 + slowness_s * rng.lognormal(0, 0.4)
    return arrivals


def documents(seed: int, names: Names, *, duration_s: float = 1800) -> Arrivals:
    """Long documents, most of them asked about once, others up to six times."""
    rng = np.random.default_rng(seed)
    prompt, at = names.new(2), 0.0
    arrivals: Arrivals = []
    while at < duration_s:
        at += rng.exponential(1.25)
        document, asked_at = prompt + names.new(int(rng.integers(20, 120))), at
        for _ in range(1 if rng.random() < 0.6 else int(rng.integers(2, 7))):
            arrivals.append((asked_at, document + names.new(int(rng.integers(1, 3)))))
            asked_at += rng.lognormal(4.0, 0.8)
    return arrivals


def singles(seed: int, names: Names, *, requests: int = 100_000) -> Arrivals:
    """Blocks without chains, of which few are frequent (Zipf)."""
    rng = np.random.default_rng(seed)
    blocks = names.new(30_000)
    weights = np.arange(1, len(blocks) + 1, dtype=np.float64) ** -0.9
    drawn = rng.choice(len(blocks), size=requests, p=weights / weights.sum())
    return [(0.01 * i, (blocks[block],)) for i, block in enumerate(drawn)]


def regimes(seed: int, names: Names) -> Arrivals:
    """One kind after another."""
    parts = (
        chats(seed, names, duration_s=900),
        agents(seed, names, sessions=40, duration_s=900),
        documents(seed, names, duration_s=900),
        singles(seed, names, requests=30_000),
        chats(seed + 1, names, duration_s=900),
    )
    return [(at + 1000.0 * i, chain) for i, part in enumerate(parts) for at, chain in part]


KINDS: Mapping[str, Callable[[int, Names], Arrivals]] = {
    "agents": agents,
    "chats": chats,
    "documents": documents,
    "regimes": regimes,
    "singles": singles,
}


def trace_of(arrivals: Arrivals) -> Accesses:
    """The accesses in the order of time."""
    return flatten(
        Request(at * 1000.0, 1, 1, chain) for at, chain in sorted(arrivals, key=lambda one: one[0])
    )
