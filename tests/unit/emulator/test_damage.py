"""What the four kinds of damage do to a frame, and what they leave alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from emulator.link.damage import (
    KINDS,
    MAX_SPOILT_BYTES,
    MAX_TRAILING_BYTES,
    append_garbage,
    cut_short,
    damaged,
    flip_bit,
    spoil_bytes,
)

FRAME = bytes(range(1, 101))
RUNS = 2000


def each(kind: object, payload: bytes = FRAME) -> list[bytes]:
    """Many runs of one kind."""
    rng = random.Random(1)
    return [kind(payload, rng) for _ in range(RUNS)]  # type: ignore[operator]


def test_one_bit_and_any_of_them() -> None:
    places: Counter[int] = Counter()
    for result in each(flip_bit):
        difference = int.from_bytes(result, "big") ^ int.from_bytes(FRAME, "big")
        assert len(result) == len(FRAME)
        assert difference.bit_count() == 1
        places[difference] += 1
    assert len(places) > len(FRAME) * 8 * 3 // 4


def test_a_run_of_1_to_16_bytes() -> None:
    lengths = set()
    for result in each(spoil_bytes):
        assert len(result) == len(FRAME)
        changed = [i for i, byte in enumerate(FRAME) if result[i] != byte]
        assert changed == list(range(changed[0], changed[-1] + 1))
        lengths.add(len(changed))
    assert lengths == set(range(1, MAX_SPOILT_BYTES + 1))


def test_a_beginning_of_any_length() -> None:
    results = each(cut_short)
    assert all(FRAME.startswith(result) for result in results)
    assert {len(result) for result in results} == set(range(1, len(FRAME)))


def test_1_to_16_more_bytes() -> None:
    results = each(append_garbage)
    assert all(result.startswith(FRAME) for result in results)
    added = {len(result) - len(FRAME) for result in results}
    assert added == set(range(1, MAX_TRAILING_BYTES + 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 15])
def test_even_the_shortest_frame_is_another_and_not_empty(kind: object, length: int) -> None:
    payload = FRAME[:length]
    assert all(result not in (payload, b"") for result in each(kind, payload))


def test_all_four_happen_and_the_seed_decides_which() -> None:
    first, same, other = (random.Random(seed) for seed in (1, 1, 2))
    results = [damaged(FRAME, first) for _ in range(RUNS)]
    assert [damaged(FRAME, same) for _ in range(RUNS)] == results
    assert [damaged(FRAME, other) for _ in range(RUNS)] != results
    lengths = Counter((len(r) > len(FRAME)) - (len(r) < len(FRAME)) for r in results)
    assert min(lengths[1], lengths[-1], lengths[0] // 2) > RUNS / 5
