"""Frames that are almost right, for minutes: ``python -m tests.soak.fuzz --help``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.support.fuzz_world import attack

FRAMES = 200
"""Thrown at the world of one seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="at least so long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one a world")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.minutes * 60
    seed, frames = options.seed, 0
    print(f"first seed: {seed}", flush=True)
    while True:
        # Told before, because what is looked for might end this process.
        if seed % 1000 == 0:
            print(f"{frames} frames, seed {seed}", flush=True)
        try:
            frames += attack(seed, FRAMES)
        except BaseException:
            print(f"to repeat it: python -m tests.soak.fuzz --minutes 0 --seed {seed}")
            raise
        if time.monotonic() >= until:
            break
        seed += 1
    print(f"passed: {frames} frames with seeds {options.seed} to {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
