"""The ring of requests that are answered by a response, in the order of their PSNs."""

from __future__ import annotations

from typing import Any

from emulator.roce._psn_kernels import packets_of, psn_add, psn_diff
from emulator.roce.state import (
    JOB_BYTES,
    JOB_READ,
    MAX_RD_ATOMIC,
    MAX_READ_JOBS,
    job_at,
)
from kvlane.jit import kernel
from kvlane.rawmem import copy


@kernel
def may_queue(qp: Any, repeated: bool) -> bool:
    """Is there a place in the job ring for one more such request?"""
    if repeated:
        repeated_jobs = qp.job_tail - qp.job_head - qp.new_jobs
        return bool(repeated_jobs < MAX_READ_JOBS - MAX_RD_ATOMIC)
    return bool(qp.new_jobs < qp.max_dest_rd_atomic)


@kernel
def _new_job(qp: Any, psn: int, repeated: bool) -> Any:
    """A place in the job ring, in the order of PSNs: a repeated request goes before what
    the requester cannot use without it. The caller knows that there is one."""
    index = qp.job_tail
    while repeated and index > qp.job_head:
        if psn_diff(job_at(qp.jobs, (index - 1) % MAX_READ_JOBS).psn, psn) <= 0:
            break
        target = qp.jobs + index % MAX_READ_JOBS * JOB_BYTES
        copy(target, qp.jobs + (index - 1) % MAX_READ_JOBS * JOB_BYTES, JOB_BYTES)
        index -= 1
    qp.job_tail += 1
    if not repeated:
        qp.new_jobs += 1
    job = job_at(qp.jobs, index % MAX_READ_JOBS)
    job.repeated = 1 if repeated else 0
    job.psn = psn
    job.started = 0
    return job


@kernel
def queue_read(qp: Any, psn: int, addr: int, rkey: int, length: int, repeated: bool) -> bool:
    """Remember to answer a READ; a repeated one takes the place of what it repeats."""
    packets = packets_of(length, qp.mtu)
    index = qp.job_head
    while index < qp.job_tail:
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
        if psn_diff(psn, job.last_psn) <= 0 and psn_diff(psn_add(psn, packets - 1), job.psn) >= 0:
            break
        index += 1
    if index < qp.job_tail:
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
    elif may_queue(qp, repeated):
        job = _new_job(qp, psn, repeated)
    else:
        return False
    job.psn = psn
    job.last_psn = psn_add(psn, packets - 1)
    job.addr = addr
    job.rkey = rkey
    job.left = length
    job.started = 0
    job.kind = JOB_READ
    return True


@kernel
def queue_answer(qp: Any, psn: int, kind: int, value: int, repeated: bool) -> None:
    """Remember to answer an executed request by one packet; dropped when there is no place.

    One whose answer is still to come is answered by that alone. Answered twice, the first
    answer would let the requester go on while the second still takes a new request's place.
    """
    for index in range(qp.job_head, qp.job_tail):
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
        if job.kind != JOB_READ and job.psn == psn:
            return
    if not may_queue(qp, repeated):
        return
    job = _new_job(qp, psn, repeated)
    job.last_psn = psn
    job.left = 0
    job.kind = kind
    job.value = value
