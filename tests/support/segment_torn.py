"""One log through several power failures, each with operations under way."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import ItemStatus
from dpu_agent.segments.segment_log import SegmentLog
from tests.support.faulty_volume import Faults, FaultyVolume
from tests.support.segment_blocks import TIMEOUT_S, Memory, contents

BLOCK_BYTES = 24 << 10
NUMBERS = 24
ABSENT = 0
LIVES = 4
STEPS = 40


def torn_round(seed: int) -> int:
    """Some lives of a log that a seed decides; acknowledgements that were checked."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kvlane-torn-") as folder:
        paths = (Path(folder) / "a", Path(folder) / "b")
        for path in paths:
            path.mkdir()
        config = SegmentLogConfig(
            paths, 1 << 20, segment_bytes=128 << 10, max_block_bytes=BLOCK_BYTES, direct="off"
        )
        possible: dict[int, set[int]] = defaultdict(lambda: {ABSENT})
        checked = 0
        for life in range(LIVES):
            checked += _life(config, possible, 1 + life * STEPS, rng)
        return checked


def _life(
    config: SegmentLogConfig, possible: dict[int, set[int]], version: int, rng: random.Random
) -> int:
    faults = Faults()
    log = SegmentLog.open(config, partial(FaultyVolume, faults=faults))
    found = contents(log, BLOCK_BYTES)
    for number in range(NUMBERS):
        assert found.get(number, ABSENT) in possible[number], (number, possible[number], found)
        possible[number] = {found.get(number, ABSENT)}
    acknowledged = 0
    for step in range(rng.randrange(1, STEPS)):
        acknowledged += _step(log, possible, version + step, rng)
    memory = Memory(BLOCK_BYTES)
    number, last = rng.randrange(NUMBERS), version + STEPS - 1
    possible[number].add(last)
    ticket = log.append([memory.record(number, last, BLOCK_BYTES)], durable=True)
    faults.crash(rng)
    log.wait(ticket, TIMEOUT_S)
    log.close()
    return acknowledged


def _step(log: SegmentLog, possible: dict[int, set[int]], version: int, rng: random.Random) -> int:
    """Append, delete or compact, and note what may be there then."""
    choice = rng.random()
    durable = rng.random() < 0.6
    if choice < 0.15:
        log.compact_once(rng.choice([1, 1 << 16, 1 << 30]))
        log.moved()
        return 0
    if choice < 0.45:
        index = {int.from_bytes(kept.key, "little"): kept.location for kept in log.records()}
        chosen = rng.sample(sorted(index), min(len(index), rng.randrange(1, 5)))
        done = log.wait(log.delete([index[n] for n in chosen], durable=durable), TIMEOUT_S)
        versions = [ABSENT] * len(chosen)
    else:
        chosen = rng.sample(range(NUMBERS), rng.randrange(1, 5))
        memories = [Memory(BLOCK_BYTES) for _ in chosen]
        sizes = [rng.choice([1, 4096, 5001, BLOCK_BYTES]) for _ in chosen]
        records = [
            memory.record(number, version, size)
            for memory, number, size in zip(memories, chosen, sizes, strict=True)
        ]
        done = log.wait(log.append(records, durable=durable), TIMEOUT_S)
        versions = [version] * len(chosen)
    for number, status, after in zip(chosen, done.statuses, versions, strict=True):
        if status is ItemStatus.OK:
            possible[number] = {after} if durable else possible[number] | {after}
        else:
            assert status is ItemStatus.NO_SPACE
    return len(chosen) if durable else 0
