"""Long runs by hand: many seeds, one after another, each replayable."""

from __future__ import annotations

from collections.abc import Callable


def soak(first_seed: int, wanted: int, run: Callable[[int], int], replay: str) -> int:
    """Run seeds from ``first_seed`` on until ``run`` has counted ``wanted``; return an exit code.

    ``replay`` is the command that repeats one seed, with ``{seed}`` in it.
    """
    print(f"first seed: {first_seed}")
    done, seed = 0, first_seed
    reported = 0
    while done < wanted:
        try:
            done += run(seed)
        except BaseException:
            print(f"seed {seed} failed after {done} of {wanted}; to repeat it:")
            print(f"  {replay.format(seed=seed)}")
            raise
        if done * 10 // wanted > reported:
            reported = done * 10 // wanted
            print(f"{done} of {wanted}, next seed {seed + 1}", flush=True)
        seed += 1
    print(f"passed: {done} with seeds {first_seed} to {seed - 1}")
    return 0
