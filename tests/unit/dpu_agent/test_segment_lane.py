"""What waits in one lane becomes one batch: whatever is together in it, memory and disk agree."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from dpu_agent.segments.batching import Pending
from dpu_agent.segments.config import SegmentLogConfig
from dpu_agent.segments.requests import Completion, Record
from dpu_agent.segments.segment_log import SegmentLog
from tests.support.segment_blocks import TIMEOUT_S, Memory, append, contents

BLOCK_BYTES = 4096
STEPS = ("copy", "delete", "append")


def pending_of(step: str, memory: Memory, source: int) -> Pending:
    """A step on block 1, of which version 1 lies at ``source``; the ticket is put in later."""
    record: Record | None = None
    if step != "delete":
        version = 1 if step == "copy" else 2
        record = memory.record(1, version, BLOCK_BYTES, version * BLOCK_BYTES)
    return Pending(None, 0, True, record, 0 if step == "append" else source)  # type: ignore[arg-type]


def run_in_one_batch(log: SegmentLog, items: list[Pending]) -> None:
    """All of them wait in the lane of compaction before it writes, as in a log that is full."""
    ended: list[Completion] = []
    state, lane = log._log, log._spare[0]
    with state.lock:
        ticket = state.desk.open_internal(len(items), ended.append)
        for index, item in enumerate(items):
            item.ticket, item.index = ticket, index
            lane.put(item)
        log._kick()
        assert state.lock.wait_for(lambda: bool(ended), TIMEOUT_S)


@pytest.mark.parametrize(
    "steps", [p for n in (1, 2, 3) for p in permutations(STEPS, n)], ids="-".join
)
def test_a_copy_a_delete_and_an_append_of_one_key_in_one_batch(
    tmp_path: Path, steps: tuple[str, ...]
) -> None:
    config = SegmentLogConfig((tmp_path,), 6 << 19, segment_bytes=1 << 19, max_block_bytes=65536)
    log = SegmentLog.open(config)
    memory = Memory(4 * BLOCK_BYTES)
    source = append(log, [memory.record(1, 1, BLOCK_BYTES)]).locations[0]
    # The lane has its segment open, so that nothing is written before all of it waits.
    run_in_one_batch(log, [Pending(None, 0, True, memory.record(2, 1, 1, 3 * BLOCK_BYTES))])  # type: ignore[arg-type]
    run_in_one_batch(log, [pending_of(step, memory, source) for step in steps])
    wanted = {1: 2} if "append" in steps else {} if "delete" in steps else {1: 1}
    assert contents(log, BLOCK_BYTES) == wanted | {2: 1}
    log.close()
    log = SegmentLog.open(config)
    assert contents(log, BLOCK_BYTES) == wanted | {2: 1}
    log.close()
