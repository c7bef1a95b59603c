"""Random workloads over bad links, by the million: ``python -m tests.soak.roce --help``.

Most seeds give a wild link and endless retries, the others a mild one and 7 of either kind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from kvlane.verbs.enums import QpType
from tests.support.datagram_workload import run_datagrams
from tests.support.rc_workload import Plan, run_plan
from tests.support.soak import soak

UNRELIABLE_EVERY = 5
"""Of so many seeds, one is for UC and one for UD; the others are for RC."""


def run_seed(seed: int) -> int:
    """Everything that a seed decides; the number of operations."""
    plan = Plan.drawn(seed)
    turn = seed % UNRELIABLE_EVERY
    if turn >= 2:
        run_plan(plan)
        return plan.total
    plan = replace(plan, operations=50)
    run_datagrams(plan, QpType.UC if turn else QpType.UD)
    return plan.operations


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when everything was right."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.roce", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000, help="at least so many")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one a workload")
    options = parser.parse_args(arguments)
    replay = "python -m tests.soak.roce --operations 1 --seed {seed}"
    return soak(options.seed, options.operations, run_seed, replay)


if __name__ == "__main__":
    sys.exit(main())
