"""The synthetic chat: reproducible, and shaped as its documentation says."""

from __future__ import annotations

import dataclasses
from itertools import islice, pairwise

import numpy as np
import pytest

from host_driver.replay.chat import BLOCK_TOKENS, ChatShape, LogNormal, chat_requests
from kvlane.trace import Request

ALONE = dataclasses.replace(ChatShape(), system_prompt_probability=0.0)


def take(count: int, seed: int = 1, shape: ChatShape | None = None) -> list[Request]:
    return list(islice(chat_requests(seed, shape), count))


def conversations(requests: list[Request]) -> list[list[Request]]:
    """Requests without system prompts, grouped by the first block they name."""
    grouped: dict[int, list[Request]] = {}
    for request in requests:
        if request.input_tokens >= BLOCK_TOKENS:
            grouped.setdefault(request.block_ids[0], []).append(request)
    return list(grouped.values())


def test_equal_seeds_make_equal_requests_and_others_do_not() -> None:
    assert take(300, seed=7) == take(300, seed=7)
    assert take(300, seed=7) != take(300, seed=8)


def test_every_prompt_names_each_of_its_blocks_once() -> None:
    for request in take(500):
        assert len(request.block_ids) == -(-request.input_tokens // BLOCK_TOKENS)
        assert len(set(request.block_ids)) == len(request.block_ids)


def test_times_never_go_back() -> None:
    assert all(a.timestamp_ms <= b.timestamp_ms for a, b in pairwise(take(500)))


def test_a_later_turn_begins_with_the_full_blocks_of_the_turn_before() -> None:
    followed = 0
    for turns in conversations(take(600, shape=ALONE)):
        for earlier, later in pairwise(turns):
            full = earlier.input_tokens // BLOCK_TOKENS
            assert later.block_ids[:full] == earlier.block_ids[:full]
            assert later.input_tokens > earlier.input_tokens + earlier.output_tokens
            # The partial block at the end is filled by the answer: another block.
            assert earlier.input_tokens % BLOCK_TOKENS == 0 or (
                earlier.block_ids[full] not in later.block_ids
            )
            followed += 1
    assert followed > 100


def test_blocks_are_shared_only_through_system_prompts() -> None:
    prompts = dataclasses.replace(
        ChatShape(), system_prompt_probability=1.0, another_turn_probability=0.0
    )
    shared = [tokens // BLOCK_TOKENS for tokens in prompts.system_prompt_tokens]
    starts = {request.block_ids[0] for request in take(300, shape=prompts)}
    assert starts == {sum(shared[:k]) for k in range(len(shared))}
    alone = dataclasses.replace(ALONE, another_turn_probability=0.0)
    named = [block for request in take(300, shape=alone) for block in request.block_ids]
    assert len(named) == len(set(named))


def test_the_first_system_prompt_is_the_most_popular() -> None:
    starts = [request.block_ids[0] for request in take(1000)]
    counts = [starts.count(first) for first in (0, 4, 6, 17)]  # 2048, 1200, 6000, 700 tokens
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 2 * counts[3] > 0


def test_conversations_have_the_turns_that_the_shape_says() -> None:
    # Only conversations that began early enough to have ended by the last request count.
    calm = dataclasses.replace(ALONE, gap_mean_s=10.0, answer=LogNormal(10, 20))
    short = dataclasses.replace(calm, first_text=LogNormal(800, 900), later_text=LogNormal(9, 20))
    requests = take(4000, shape=short)
    ended = [t for t in conversations(requests) if t[0].timestamp_ms < 600_000]
    multi_turn = sum(len(turns) > 1 for turns in ended) / len(ended)
    assert multi_turn == pytest.approx(0.73, abs=0.06)
    assert sum(map(len, ended)) / len(ended) == pytest.approx(1 / 0.27, rel=0.15)


def test_no_prompt_outgrows_the_context() -> None:
    small = dataclasses.replace(ChatShape(), max_context_tokens=8192)
    assert max(request.input_tokens for request in take(500, shape=small)) <= 8192


def test_lengths_have_the_median_and_the_percentile_that_name_them() -> None:
    answers = [request.output_tokens for request in take(3000)]
    assert np.percentile(answers, 50) == pytest.approx(350, rel=0.06)
    assert np.percentile(answers, 90) == pytest.approx(597, rel=0.06)
