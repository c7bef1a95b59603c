"""``policy``: eviction policies over a trace in virtual time, against libcachesim's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from dpu_agent.planning.accesses import Accesses, flatten
from dpu_agent.planning.planner import hits_of
from emulator.bench.peers.libcachesim import LIBCACHESIM, LibCacheSim
from emulator.bench.peers.registry import start
from emulator.bench.peers.turns import turn
from emulator.bench.report import BenchResult, Goal, Report, summarise, unrivalled
from emulator.bench.rounds import Measure, Progress, Rounds, alternate
from host_driver.replay.chat import chat_requests
from kvlane.trace import read_trace

NAME = "policy"
GOAL = Goal(1)
LEARNING_GOAL = Goal(0.2)
"""Of ``reuse``, which fits a model meanwhile."""
CAPACITIES_BLOCKS = (1_000, 10_000)
CLASSES: Mapping[str, str] = {
    "arc": "ARC",
    "clock": "Clock",
    "lfu": "LFU",
    "lru": "LRU",
    "lru_k": "LRUK",
    "mq": "MQ",
    "reuse": "LRU",
    "s3_fifo": "S3FIFO",
    "sieve": "Sieve",
    "two_q": "TwoQ",
    "w_tinylfu": "WTinyLFU",
}
"""Ours -> libcachesim's class of the same name, and for ``reuse``, which it has not, LRU. Its LRUK
keeps no history, which ours does."""

CHAT_REQUESTS = 12_031
"""As many as the public conversation trace has."""
_CHAT_SEED = 1


def run(
    rounds: int,
    progress: Progress,
    trace: Path | None = None,
    capacities_blocks: tuple[int, ...] = CAPACITIES_BLOCKS,
    requests: int = CHAT_REQUESTS,
) -> Report:
    """Measure each policy at each capacity; without a trace over so many requests of synthetic
    chat."""
    report = Report()
    chat = islice(chat_requests(_CHAT_SEED), requests)
    accesses = flatten(read_trace(trace) if trace else chat)
    with ExitStack() as undo:
        peer = start(LIBCACHESIM, lambda: LibCacheSim(accesses.blocks), undo, report)
        for policy, capacity in ((p, c) for p in CLASSES for c in capacities_blocks):
            progress(f"{policy}, {capacity} blocks")
            theirs = f"{LIBCACHESIM} {CLASSES[policy]}"
            sides: dict[str, Measure] = {
                policy: partial(million_requests_per_second, policy, accesses, capacity)
            }
            if peer is not None:
                theirs_once = partial(peer.million_requests_per_second, CLASSES[policy], capacity)
                sides[theirs] = turn(peer, theirs_once)
            values = alternate(rounds, sides, progress, report)
            report.results.append(_result(policy, capacity, theirs, values))
    return report


def million_requests_per_second(policy: str, accesses: Accesses, capacity_blocks: int) -> float:
    """Block accesses, in 10^6 a second, of one policy; making it is part of the time."""
    begun = time.perf_counter()
    hits_of(policy, accesses, capacity_blocks)
    return len(accesses.blocks) / (time.perf_counter() - begun) / 1e6


def _result(policy: str, capacity: int, theirs: str, values: Rounds) -> BenchResult:
    name, unit = f"{NAME}-{policy}-{capacity}", "M requests/s"
    goal = LEARNING_GOAL if policy == "reuse" else GOAL
    if theirs not in values:
        return unrivalled(name, unit, values[policy], theirs, goal)
    return summarise(name, unit, values[policy], theirs, values[theirs], goal)
