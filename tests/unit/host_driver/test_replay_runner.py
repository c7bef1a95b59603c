"""The replay: its hits are a sequential cache's at any concurrency, and every byte is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from host_driver.replay import runner
from host_driver.replay.chat import chat_requests
from host_driver.replay.order import ArrivalOrder
from host_driver.replay.report import ReplayResult
from host_driver.replay.runner import Replay, ReplayOptions
from host_driver.results import RetrieveResult
from kvlane.capsule import KeyArray, KeyStatus
from kvlane.errors import ConfigError, TraceFormatError, TransferError
from kvlane.trace import Request, read_trace
from tests.support.cache_model import sequential_hits
from tests.support.conversation_trace import conversation_trace
from tests.support.memory_dpu import MemoryDpu

BLOCK_BYTES = 64


def requests_of(*chains: Sequence[int]) -> list[Request]:
    return [Request(0, 512 * len(chain), 1, tuple(chain)) for chain in chains]


async def replayed(
    dpu: MemoryDpu, requests: Sequence[Request], concurrency: int = 4
) -> ReplayResult:
    try:
        return await Replay(dpu, ReplayOptions(BLOCK_BYTES, concurrency)).run(requests)
    finally:
        assert not dpu.allocated


chains_of_blocks = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=24)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
@given(chains=chains_of_blocks, seed=st.integers(0, 1 << 32))
def test_hits_are_those_of_a_sequential_unbounded_cache(
    concurrency: int, chains: list[list[int]], seed: int
) -> None:
    dpu = MemoryDpu(seed=seed)
    result = asyncio.run(replayed(dpu, requests_of(*chains), concurrency))
    assert result.blocks_hit == result.unbounded_hits == sequential_hits(chains)
    assert result.requests == len(chains)
    assert result.blocks_asked == sum(map(len, chains))
    assert result.blocks_stored == len(dpu.blocks) == len({b for c in chains for b in c})
    assert result.verification_errors == 0


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_chat_hits_are_exact_too_and_moved_bytes_are_counted(concurrency: int) -> None:
    requests = list(islice(chat_requests(3), 60))
    result = await replayed(MemoryDpu(), requests, concurrency)
    assert result.blocks_hit == sequential_hits([request.block_ids for request in requests]) > 0
    assert result.bytes_retrieved == result.blocks_hit * BLOCK_BYTES
    assert result.bytes_stored == result.blocks_stored * BLOCK_BYTES


@given(chains=chains_of_blocks, seed=st.integers(0, 1 << 32))
def test_a_small_cache_evicts_and_every_block_is_hit_stored_or_there(
    chains: list[list[int]], seed: int
) -> None:
    dpu = MemoryDpu(capacity_blocks=3, seed=seed)
    result = asyncio.run(replayed(dpu, requests_of(*chains)))
    assert result.verification_errors == 0
    assert result.blocks_evicted == dpu.evicted == result.blocks_stored - len(dpu.blocks)
    assert result.blocks_hit + result.blocks_stored <= result.blocks_asked


async def test_a_corrupted_byte_is_a_verification_error() -> None:
    dpu = MemoryDpu()

    def corrupt(rows: NDArray[np.uint8]) -> None:
        rows[1, 17] ^= 1

    dpu.on_retrieved = corrupt
    result = await replayed(dpu, requests_of([1, 2, 3], [1, 2, 3]))
    assert result.verification_errors == 1
    assert result.blocks_hit == 3


async def test_a_transfer_that_wrote_nothing_is_a_verification_error() -> None:
    # The same slot of the runner stored these very blocks, so its buffer held them already.
    class Lazy(MemoryDpu):
        async def retrieve(self, keys: KeyArray, into: NDArray[np.uint8]) -> RetrieveResult:
            return await super().retrieve(keys, into.copy())

    result = await replayed(Lazy(), requests_of([1, 2], [1, 2]), concurrency=1)
    assert result.verification_errors == 2


async def test_a_block_of_another_length_is_a_verification_error() -> None:
    dpu = MemoryDpu()
    dpu.on_match = lambda names: dpu.blocks.update(
        {name: block[:-8] for name, block in dpu.blocks.items()}
    )
    result = await replayed(dpu, requests_of([1, 2], [1, 2]), concurrency=1)
    assert result.verification_errors == 2
    assert result.bytes_retrieved == 2 * (BLOCK_BYTES - 8)


async def test_a_block_evicted_after_the_match_is_a_miss_and_stored_again() -> None:
    dpu = MemoryDpu()

    def evict_the_second(names: list[bytes]) -> None:
        if len(dpu.blocks) == 3:
            del dpu.blocks[names[1]]

    dpu.on_match = evict_the_second
    result = await replayed(dpu, requests_of([1, 2, 3], [1, 2, 3, 4]))
    assert result.blocks_hit == 2
    assert result.unbounded_hits == 3
    assert result.blocks_stored == 3 + 2
    assert len(dpu.blocks) == 4


async def test_what_the_agent_refuses_or_has_already_is_not_counted_as_stored() -> None:
    dpu = MemoryDpu()
    dpu.store_statuses = [KeyStatus.NO_SPACE, KeyStatus.EXISTS]
    result = await replayed(dpu, requests_of([1, 2, 3]))
    assert (result.blocks_refused, result.blocks_stored) == (1, 1)
    assert result.bytes_stored == BLOCK_BYTES


async def test_a_broken_transfer_ends_the_replay_with_its_status() -> None:
    dpu = MemoryDpu()
    dpu.store_statuses = [KeyStatus.OK, KeyStatus.ABORTED, KeyStatus.ABORTED]
    # The second request waits for the first, which fails; it must not wait for ever.
    with pytest.raises(TransferError, match="ABORTED for 2 of 3 blocks"):
        await replayed(dpu, requests_of([1, 2, 3], [1, 2, 3]))


async def test_a_bad_line_ends_a_replay_that_is_under_way(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    good = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [%d]}\n'
    trace.write_text("".join(good % i for i in range(20)) + '{"timestamp": 0, "inp')
    with pytest.raises(TraceFormatError, match=r"trace\.jsonl:21: not JSON"):
        await Replay(MemoryDpu(), ReplayOptions(BLOCK_BYTES)).run(read_trace(trace))


async def test_long_requests_go_in_commands_of_the_buffers_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "BUFFER_BYTES", 4 * BLOCK_BYTES)
    dpu = MemoryDpu()
    await replayed(dpu, requests_of(range(10), range(10)), concurrency=1)
    stored = [("store", 4), ("store", 4), ("store", 2)]
    retrieved = [("retrieve", 4), ("retrieve", 4), ("retrieve", 2)]
    assert dpu.calls == [("match", 10), *stored, ("match", 10), *retrieved]


async def test_a_request_without_blocks_asks_nothing() -> None:
    dpu = MemoryDpu()
    result = await replayed(dpu, requests_of([], []))
    assert (result.requests, dpu.calls) == (2, [])


async def test_counters_of_both_nics_count_from_the_start_of_the_replay() -> None:
    dpu = MemoryDpu()
    dpu.retransmitted, dpu.evicted = 5, 100

    def resend(names: list[bytes]) -> None:
        dpu.retransmitted += 1

    dpu.on_match = resend
    result = await replayed(dpu, requests_of([1], [2]))
    assert result.retransmissions == 2 * (1 + 10)
    assert result.blocks_evicted == 0


async def test_progress_is_told_after_every_request() -> None:
    told: list[int] = []
    options = ReplayOptions(BLOCK_BYTES, concurrency=3)
    await Replay(MemoryDpu(), options, told.append).run(requests_of([1], [2], [3], [4]))
    assert told == [1, 2, 3, 4]


async def test_requests_do_run_at_once() -> None:
    at_once = 0

    class Counting(MemoryDpu):
        inside = 0

        async def match(self, keys: KeyArray) -> int:
            nonlocal at_once
            self.inside += 1
            at_once = max(at_once, self.inside)
            await asyncio.sleep(0)
            matched = await super().match(keys)
            self.inside -= 1
            return matched

    await replayed(Counting(), requests_of(*([i] for i in range(20))), concurrency=5)
    assert at_once == 5


@pytest.mark.parametrize(("block_bytes", "concurrency"), [(63, 1), (100, 1), (64, 0)])
def test_options_that_cannot_be_used_are_refused(block_bytes: int, concurrency: int) -> None:
    with pytest.raises(ConfigError):
        ReplayOptions(block_bytes, concurrency)


def test_a_released_turn_is_not_waited_for() -> None:
    order = ArrivalOrder()
    first = order.register([1, 2])
    second = order.register([2, 3])
    assert second.earlier == (first.done,)
    order.release(first)
    third = order.register([1, 2, 3])
    assert third.earlier == (second.done,)
    assert (third.owned, third.unbounded_hits) == ((), 3)


async def test_the_first_2000_requests_of_the_real_trace_hit_what_a_set_says() -> None:
    requests = list(islice(read_trace(conversation_trace()), 2000))
    result = await replayed(MemoryDpu(), requests, concurrency=8)
    expected = sequential_hits([request.block_ids for request in requests])
    assert result.blocks_hit == result.unbounded_hits == expected > 0
    assert result.verification_errors == 0
