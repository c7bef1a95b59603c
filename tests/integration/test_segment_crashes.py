"""A few rounds of ``make crash-soak``."""

from __future__ import annotations

import pytest

from tests.crash.segments import Expected, kill_rounds
from tests.support.segment_torn import torn_round


def test_what_was_acknowledged_survives_a_kill() -> None:
    assert kill_rounds(3, seed=1) > 0


@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_survives_power_failures(seed: int) -> None:
    assert torn_round(seed) > 0


def test_control_a_lost_block_is_noticed() -> None:
    expected = Expected()
    for line in ("a 1 5", "A 1 5", "a 2 6", "d 1"):
        expected.take(line)
    expected.compare({1: 5, 2: 6})
    for line in ("d 1", "D 1"):
        expected.take(line)
    with pytest.raises(AssertionError, match="block 1: 5"):
        expected.compare({1: 5, 2: 6})
    with pytest.raises(AssertionError, match="block 2: 0"):
        expected.compare({})
