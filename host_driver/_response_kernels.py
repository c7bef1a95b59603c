"""Responses: what cannot be an answer is found before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from host_driver.queue_records import JOB, QUEUE, SLOT, SLOT_BITS, Failure
from kvlane.capsule import (
    HEADER_BYTES,
    KEY_RESULT,
    RESPONSE_HEADER,
    RESPONSE_MAGIC,
    CommandStatus,
    KeyStatus,
    Opcode,
)
from kvlane.jit import kernel
from kvlane.limits import CAPSULE_VERSION, MAX_CAPSULE_BYTES
from kvlane.rawmem import bytes_at, copy, record_accessor, words_at


def _offset(header: np.dtype[Any], name: str) -> int:
    fields = header.fields
    assert fields is not None
    return int(fields[name][1])


_NUMBERS = ("magic", "version", "opcode", "status", "command_id", "key_count", "length", "result")
_BOOT_ID = _offset(RESPONSE_HEADER, "boot_id")
_RESPONSE = np.dtype(
    {
        "names": [*_NUMBERS, "session", "boot_low", "boot_high"],
        "formats": [*(RESPONSE_HEADER[name] for name in _NUMBERS), "<i8", "<i8", "<i8"],
        "offsets": [
            *(_offset(RESPONSE_HEADER, name) for name in _NUMBERS),
            _offset(RESPONSE_HEADER, "session"),
            _BOOT_ID,
            _BOOT_ID + 8,
        ],
        "itemsize": HEADER_BYTES,
    }
)
"""``RESPONSE_HEADER`` with words where it has what kernels cannot read."""

_RESULT = np.dtype(
    {
        "names": ["status", "length"],
        "formats": [KEY_RESULT["status"], KEY_RESULT["length"]],
        "offsets": [_offset(KEY_RESULT, "status"), _offset(KEY_RESULT, "length")],
        "itemsize": KEY_RESULT.itemsize,
    }
)
_RESULT_BYTES = int(KEY_RESULT.itemsize)
_STORE, _RETRIEVE, _MATCH = int(Opcode.STORE), int(Opcode.RETRIEVE), int(Opcode.MATCH)
_EXIST, _DELETE = int(Opcode.EXIST), int(Opcode.DELETE)
_LAST_STATUS = int(max(CommandStatus))
_LAST_KEY_STATUS = int(max(KeyStatus))
_OK = int(KeyStatus.OK)
_SLOT_MASK = (1 << SLOT_BITS) - 1

_NONE, _MALFORMED, _FOREIGN = int(Failure.NONE), int(Failure.MALFORMED), int(Failure.FOREIGN)
_NOT_IN_FLIGHT, _OTHER_OPCODE = int(Failure.NOT_IN_FLIGHT), int(Failure.OTHER_OPCODE)
_WRONG_COUNT, _OVERMATCHED = int(Failure.WRONG_COUNT), int(Failure.OVERMATCHED)
_UNKNOWN_KEY_STATUS, _TOO_LONG = int(Failure.UNKNOWN_KEY_STATUS), int(Failure.TOO_LONG)

job_at = record_accessor(JOB)
slot_at = record_accessor(SLOT)
queue_at = record_accessor(QUEUE)
_response_at = record_accessor(_RESPONSE)
_result_at = record_accessor(_RESULT)


@kernel
def _results_nbytes(opcode: int, count: int) -> int:
    """As ``kvlane.capsule.results_nbytes``."""
    if opcode in (_STORE, _RETRIEVE):
        return count * _RESULT_BYTES
    if opcode in (_EXIST, _DELETE):
        return (count + 3) & ~3
    return 0


@kernel
def _malformed(data: int, length: int) -> bool:
    """True unless the bytes are a whole response of our version."""
    if length < HEADER_BYTES or length > MAX_CAPSULE_BYTES:
        return True
    header = _response_at(data, 0)
    if header.magic != RESPONSE_MAGIC or header.version != CAPSULE_VERSION:
        return True
    nbytes = HEADER_BYTES + _results_nbytes(int(header.opcode), int(header.key_count))
    return bool(
        int(header.length) != nbytes or length != nbytes or int(header.status) > _LAST_STATUS
    )


@kernel
def _slot_of(queue: Any, command_id: int) -> int:
    """The slot of a command that is in flight, or -1."""
    index = command_id & _SLOT_MASK
    if index >= queue.depth:
        return -1
    slot = slot_at(queue.slots, index)
    if slot.job == 0 or slot.command_id != command_id:
        return -1
    return int(index)


@kernel
def _check_statuses(queue: Any, body: int, count: int) -> int:
    statuses = bytes_at(body, count)
    for i in range(count):
        if statuses[i] > _LAST_KEY_STATUS:
            queue.fault_came = int(statuses[i])
            return _UNKNOWN_KEY_STATUS
    return _NONE


@kernel
def _check_results(queue: Any, job: Any, start: int, body: int, count: int) -> int:
    lengths = words_at(job.lengths + 8 * start, count)
    for i in range(count):
        result = _result_at(body, i)
        status, came = int(result.status), int(result.length)
        if status > _LAST_KEY_STATUS:
            queue.fault_came = status
            return _UNKNOWN_KEY_STATUS
        if job.opcode == _RETRIEVE and status == _OK and came > lengths[i]:
            queue.fault_came = came
            return _TOO_LONG
    return _NONE


@kernel
def _absorb(queue: Any, job: Any, span: int, data: int) -> int:
    """Check the results of a command that ended well, then keep them; a ``Failure``."""
    header = _response_at(data, 0)
    bounds = words_at(job.spans + 16 * span, 2)
    start = int(bounds[0])
    count = int(bounds[1]) - start
    body = data + HEADER_BYTES
    if job.opcode == _MATCH:
        if int(header.key_count) != 0:
            queue.fault_wanted = 0
            return _WRONG_COUNT
        queue.fault_wanted = count
        if int(header.result) > count:
            return _OVERMATCHED
        words_at(job.results + 8 * span, 1)[0] = int(header.result)
        return _NONE
    if int(header.key_count) != count:
        queue.fault_wanted = count
        return _WRONG_COUNT
    if job.addrs == 0:
        failure = _check_statuses(queue, body, count)
        if failure == _NONE:
            copy(job.results + start, body, count)
    else:
        failure = _check_results(queue, job, start, body, count)
        if failure == _NONE:
            copy(job.results + start * _RESULT_BYTES, body, count * _RESULT_BYTES)
    return failure


@kernel
def response_failure(queue: Any, data: int, length: int) -> int:
    """Why the bytes at ``data`` are no response to any command of the queue, or ``NONE``."""
    if _malformed(data, length):
        return _MALFORMED
    header = _response_at(data, 0)
    if (
        header.session != queue.session
        or header.boot_low != queue.boot_low
        or header.boot_high != queue.boot_high
    ):
        return _FOREIGN
    index = _slot_of(queue, int(header.command_id))
    if index < 0:
        return _NOT_IN_FLIGHT
    job = job_at(slot_at(queue.slots, index).job, 0)
    if int(header.opcode) != job.opcode:
        queue.fault_wanted = job.opcode
        return _OTHER_OPCODE
    return _NONE


@kernel
def absorb_response(queue: Any, data: int) -> int:
    """Take the response at ``data``, which answers a command of the queue; a ``Failure``."""
    header = _response_at(data, 0)
    slot = slot_at(queue.slots, int(header.command_id) & _SLOT_MASK)
    job = job_at(slot.job, 0)
    if int(header.status) == 0:
        return _absorb(queue, job, slot.span, data)
    if job.refusal == 0:
        job.refusal = int(header.status)
    return _NONE


@kernel
def slot_answered(data: int) -> int:
    """The slot that the response at ``data`` names."""
    return int(_response_at(data, 0).command_id) & _SLOT_MASK
