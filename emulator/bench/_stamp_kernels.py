"""A table of verbs that calls another one and notes when requests were posted and completed.

It stands before the table of any device, so that neither device nor product code knows of it.
"""

from __future__ import annotations

import numpy as np

from kvlane._clock_kernels import SCRATCH_WORDS, monotonic_ns
from kvlane.atomics import store_release
from kvlane.calls import call, exported
from kvlane.jit import kernel
from kvlane.rawmem import record_accessor
from kvlane.verbs.calls import PostResult
from kvlane.verbs.records import SEND_WR, WC

POSTED = 0
COMPLETED = 1

STAMPED = np.dtype(
    [
        ("context", "i8"),  # of the device behind it, as all the functions
        ("progress", "i8"),
        ("poll_cq", "i8"),
        ("post_send", "i8"),
        ("post_recv", "i8"),
        ("sleep", "i8"),
        ("log", "i8"),  # address of a LOG and its STAMPs
        ("clock", "i8", (SCRATCH_WORDS,)),
    ]
)
"""The context of such a table."""
LOG = np.dtype([("count", "i8"), ("capacity", "i8")])
"""Head of a log; what comes when it is full is not noted."""
STAMP = np.dtype(
    [
        ("kind", "i8"),  # POSTED or COMPLETED
        ("opcode", "i8"),  # WrOpcode or WcOpcode
        ("begin_ns", "i8"),  # of the call
        ("end_ns", "i8"),
    ]
)
"""A request or completion that passed."""

_CLOCK_AT = int(STAMPED.fields["clock"][1]) if STAMPED.fields else 0
_LOG_BYTES, _STAMP_BYTES = int(LOG.itemsize), int(STAMP.itemsize)
_POSTED_ALL = int(PostResult.POSTED)

_stamped_at = record_accessor(STAMPED)
_log_at = record_accessor(LOG)
_stamp_at = record_accessor(STAMP)
_request_at = record_accessor(SEND_WR)
_completion_at = record_accessor(WC)


@kernel
def _note(log: int, kind: int, opcode: int, begin_ns: int, end_ns: int) -> None:
    head = _log_at(log, 0)
    if head.count >= head.capacity:
        return
    stamp = _stamp_at(log + _LOG_BYTES, head.count)
    stamp.kind = kind
    stamp.opcode = opcode
    stamp.begin_ns = begin_ns
    stamp.end_ns = end_ns
    store_release(log, head.count + 1)


def _progress(context: int, now: int, _second: int, _third: int) -> int:
    stamped = _stamped_at(context, 0)
    return int(call(stamped.progress, stamped.context, now, 0, 0))


def _poll_cq(context: int, handle: int, out: int, count: int) -> int:
    stamped = _stamped_at(context, 0)
    begin_ns = monotonic_ns(context + _CLOCK_AT)
    came = int(call(stamped.poll_cq, stamped.context, handle, out, count))
    if came > 0:
        end_ns = monotonic_ns(context + _CLOCK_AT)
        for index in range(came):
            opcode = _completion_at(out, index).opcode
            _note(stamped.log, COMPLETED, opcode, begin_ns, end_ns)
    return came


def _post_send(context: int, handle: int, requests: int, count: int) -> int:
    stamped = _stamped_at(context, 0)
    begin_ns = monotonic_ns(context + _CLOCK_AT)
    result = int(call(stamped.post_send, stamped.context, handle, requests, count))
    if result == _POSTED_ALL:
        end_ns = monotonic_ns(context + _CLOCK_AT)
        for index in range(count):
            opcode = _request_at(requests, index).opcode
            _note(stamped.log, POSTED, opcode, begin_ns, end_ns)
    return result


def _post_recv(context: int, handle: int, requests: int, count: int) -> int:
    stamped = _stamped_at(context, 0)
    return int(call(stamped.post_recv, stamped.context, handle, requests, count))


def _sleep(context: int, timeout_ns: int, wake_fd: int, patient: int) -> int:
    stamped = _stamped_at(context, 0)
    return int(call(stamped.sleep, stamped.context, timeout_ns, wake_fd, patient))


PROGRESS = exported(_progress)
POLL_CQ = exported(_poll_cq)
POST_SEND = exported(_post_send)
POST_RECV = exported(_post_recv)
SLEEP = exported(_sleep)
