"""Writing the record of a job: field after field in Python would take longer than the command."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_driver.queue_records import JOB
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor

JOB_WORDS = int(JOB.itemsize) // 8
_job_at = record_accessor(JOB)


@kernel
def _address_or_0(array: Any) -> int:
    """Of the first element; 0 for an empty array, which says that there is none."""
    return int(array.ctypes.data) if len(array) else 0


@kernel
def describe_job(
    words: NDArray[np.int64],
    kind: tuple[int, int],
    keys: int,
    results: int,
    spans: NDArray[np.int64],
    moves: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]],
) -> int:
    """Fill ``JOB_WORDS`` words; the address of the record that they are.

    ``kind`` is opcode and command flags, ``moves`` the fields of ``jobs.Moves``.
    """
    words[:] = 0
    address = int(words.ctypes.data)
    job = _job_at(address, 0)
    job.opcode, job.command_flags = kind
    job.keys, job.results = keys, results
    job.addrs, job.rkeys = _address_or_0(moves[0]), _address_or_0(moves[1])
    job.lengths, job.checksums = _address_or_0(moves[2]), _address_or_0(moves[3])
    job.spans = spans.ctypes.data
    job.span_count = job.open_spans = len(spans)
    return address
