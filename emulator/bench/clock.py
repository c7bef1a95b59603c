"""Rates and percentiles of timed work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def rate_gbps(work: Callable[[], int]) -> float:
    """10^9 bytes a second of ``work``, which returns the bytes that it moved."""
    start = time.perf_counter()
    nbytes = work()
    return nbytes / (time.perf_counter() - start) / 1e9


def per_second(work: Callable[[], int]) -> float:
    """Things a second of ``work``, which returns how many it did."""
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)


def median_us(call: Callable[[], object], times: int) -> float:
    """Median of single calls in microseconds."""
    spent_ns = []
    for _ in range(times):
        start = time.perf_counter_ns()
        call()
        spent_ns.append(time.perf_counter_ns() - start)
    return statistics.median(spent_ns) / 1000


def cpu_seconds_per_gb(work: Callable[[], int]) -> float:
    """Seconds of processor, of all threads of this process, for 10^9 bytes that ``work`` moves."""
    start = time.process_time()
    nbytes = work()
    return (time.process_time() - start) / (nbytes / 1e9)
