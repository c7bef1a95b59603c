"""Frames that are almost right, by the thousand: nothing raises, nothing strays, all is counted.

Each example is decided by a seed; ``python -m tests.soak.fuzz --seed N`` repeats it.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvlane.jit import JIT_ENABLED
from tests.support.fuzz_world import OUTCOMES, FuzzWorld, attack
from tests.support.roce_pair import Frame

# About 20 seconds compiled, and as long as plain Python.
EXAMPLES = 1200 if JIT_ENABLED else 40
FRAMES = 60


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32), frames=st.just(FRAMES) | st.integers(1, FRAMES))
def test_nothing_that_arrives_breaks_the_engine(seed: int, frames: int) -> None:
    attack(seed, frames)


@given(bodies=st.lists(st.binary(max_size=5000), max_size=10))
def test_raw_bytes_break_nothing(bodies: list[bytes]) -> None:
    world = FuzzWorld(1)
    _, descriptor = world.raw()
    for body in bodies:
        world.throw((body, descriptor))
    world.check()


def counts(seeds: range, make: str) -> dict[str, int]:
    total = dict.fromkeys(OUTCOMES, 0)
    for seed in seeds:
        world = FuzzWorld(seed)
        before = world.engine.counters()
        for _ in range(FRAMES):
            frame: Frame = getattr(world, make)()
            world.throw(frame)
        after = world.engine.counters()
        for name in OUTCOMES:
            total[name] += after[name] - before[name]
    return total


def test_the_frames_are_good_enough_to_reach_every_outcome() -> None:
    """Otherwise the tests above would show little."""
    total = counts(range(40 if JIT_ENABLED else 15), "almost_right")
    assert all(total.values()), total
    assert total["rx_accepted"] > sum(total.values()) // 4
