"""Compiled simulations on all processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from kvlane.processors import usable_processors

Task = TypeVar("Task")
Result = TypeVar("Result")


def on_all_processors(
    tasks: Sequence[Task],
    run: Callable[[Task], Result],
    done: Callable[[Result], object] = lambda _result: None,
) -> list[Result]:
    """Results in the order of tasks; each is told to ``done`` as soon as it is there.

    Compiled simulations run without the interpreter's lock, so threads are enough.
    """
    with ThreadPoolExecutor(max_workers=usable_processors()) as threads:
        futures = [threads.submit(run, task) for task in tasks]
        try:
            for future in as_completed(futures):
                done(future.result())
        except BaseException:
            threads.shutdown(cancel_futures=True)  # else all the others would be run first
            raise
    return [future.result() for future in futures]
