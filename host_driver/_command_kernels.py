"""Commands as bytes: a span of a job becomes a capsule."""

from __future__ import annotations

from typing import Any

import numpy as np

from host_driver.queue_records import JOB
from kvlane.capsule import COMMAND_HEADER, COMMAND_MAGIC, DESCRIPTOR, HEADER_BYTES
from kvlane.jit import kernel
from kvlane.limits import CAPSULE_VERSION, KEY_BYTES
from kvlane.rawmem import array_accessor, copy, record_accessor, words_at

_DESCRIPTOR_BYTES = int(DESCRIPTOR.itemsize)
_HEADER_WORDS = HEADER_BYTES // 8


def _signed(header: np.dtype[Any]) -> np.dtype[Any]:
    """The same layout with a signed session, as all words of kernels are."""
    fields = header.fields
    assert fields is not None
    return np.dtype(
        {
            "names": list(fields),
            "formats": ["<i8" if name == "session" else fields[name][0] for name in fields],
            "offsets": [fields[name][1] for name in fields],
            "itemsize": header.itemsize,
        }
    )


_command_at = record_accessor(_signed(COMMAND_HEADER))
_descriptor_at = record_accessor(DESCRIPTOR)
_sums_at = array_accessor(np.dtype(np.uint32))
_job_at = record_accessor(JOB)


@kernel
def _write_descriptors(out: int, job: Any, start: int, count: int) -> None:
    addrs = words_at(job.addrs + 8 * start, count)
    rkeys = words_at(job.rkeys + 8 * start, count)
    lengths = words_at(job.lengths + 8 * start, count)
    for i in range(count):
        descriptor = _descriptor_at(out, i)
        descriptor.addr = addrs[i]
        descriptor.rkey = rkeys[i]
        descriptor.length = lengths[i]
        descriptor.checksum = 0
        descriptor.reserved = 0
    if job.checksums != 0:
        sums = _sums_at(job.checksums + 4 * start, count)
        for i in range(count):
            _descriptor_at(out, i).checksum = sums[i]


@kernel
def write_command(out: int, job_address: int, span: int, command_id: int, session: int) -> int:
    """Write the capsule of a span at ``out``; its length. A span has a capsule's keys at most."""
    job = _job_at(job_address, 0)
    bounds = words_at(job.spans + 16 * span, 2)
    start = int(bounds[0])
    count = int(bounds[1]) - start
    end = HEADER_BYTES + count * KEY_BYTES
    length = end
    described = 0
    if job.addrs != 0:
        described = count
        length += count * _DESCRIPTOR_BYTES
        _write_descriptors(out + end, job, start, count)
    words_at(out, _HEADER_WORDS)[:] = 0
    header = _command_at(out, 0)
    header.magic = COMMAND_MAGIC
    header.version = CAPSULE_VERSION
    header.opcode = job.opcode
    header.flags = job.command_flags
    header.command_id = command_id
    header.key_count = count
    header.session = session
    header.length = length
    header.descriptor_count = described
    copy(out + HEADER_BYTES, job.keys + start * KEY_BYTES, count * KEY_BYTES)
    return length
