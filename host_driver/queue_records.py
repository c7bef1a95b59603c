"""What the kernels of the command queue work on: jobs, slots and the queue, all as words.

A job is a batch of commands of one kind, a capsule each. Jobs are linked through
``next_job``, so that there may be any number of them: each is in one list at most, that of
the waiting until all its commands are sent, that of the finished once all are answered.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvlane.limits import MAX_QUEUE_DEPTH


def _words(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, "i8") for name in names])


JOB = _words(
    "opcode",
    "command_flags",  # not "flags", which numpy arrays have already
    "keys",  # address of 32 bytes a key
    "addrs",  # of words: where each block is, or 0 for opcodes that move none
    "rkeys",  # of words
    "lengths",  # of words
    "checksums",  # of 32-bit words, or 0
    "results",  # of KEY_RESULT or a status byte a key, or of a word a span (MATCH)
    "spans",  # of two words a command: its first key and the one behind its last
    "span_count",
    "next_span",  # the first that is not sent
    "open_spans",  # not answered, sent or not
    "refusal",  # the first CommandStatus that is not OK
    "linked",  # 1 once it has been given to a queue
    "next_job",  # in the list that it is in
)
"""A batch of commands; all ``results`` are as they were for those that are not answered."""

SLOT = _words(
    "command_id",  # or FREE_SLOT
    "job",  # address; 0 once the response has come, and in a free slot
    "span",
    "sent",  # 1 once the SEND has completed
)
"""A credit, with its send buffer."""

QUEUE = _words(
    "cq",
    "qp",
    "session",
    "boot_low",
    "boot_high",
    "depth",
    "receive_depth",
    "send_memory",  # addresses from here on
    "receive_memory",
    "sends",  # SEND_WR, one a slot; all but the length is known before
    "receives",  # RECV_WR, one a buffer
    "outgoing",  # SEND_WR to post at once
    "incoming",  # RECV_WR to post at once
    "completions",
    "slots",
    "free",  # words: the free slots, a stack
    "interrupt",  # a word that others write: 1 to leave
    "clock",  # words for the clock
    "verbs",  # words of the device's ``VerbCalls``
    "free_count",
    "sequence",  # of the last command
    "in_flight",
    "waiting_head",
    "waiting_tail",
    "finished_head",
    "finished_tail",
    "failure",
    "fault_slot",  # the receive buffer with the response that ``failure`` is about
    "fault_length",  # its length
    "fault_came",  # a status or a length that cannot be
    "fault_wanted",  # what was due instead
)
"""Everything of one connection."""

FREE_SLOT = -1
"""What a free slot has for a command id."""

SLOT_BITS = 8
"""A command id is a sequence number and, in so many low bits, its slot."""

assert MAX_QUEUE_DEPTH <= 1 << SLOT_BITS


class Failure(IntEnum):
    """Why a connection can not go on."""

    NONE = 0
    COMPLETION = 1
    """A work request failed."""
    NIC = 2
    """A function of the NIC failed: see ``Device.take_fault``."""
    POST = 3
    """Commands could not be posted."""
    MALFORMED = 4
    """Not a response."""
    FOREIGN = 5
    """Of another session or another start of the agent."""
    NOT_IN_FLIGHT = 6
    OTHER_OPCODE = 7
    WRONG_COUNT = 8
    UNKNOWN_KEY_STATUS = 9
    TOO_LONG = 10
    """More bytes are said to have been written than a buffer has."""
    OVERMATCHED = 11


class Left(IntEnum):
    """Why ``run_until`` came back."""

    DONE = 0
    """A job has finished."""
    FAILED = 1
    IDLE = 2
    """There is nothing to do but to sleep."""
    ASKED = 3
    """Somebody wants the queue or the device, or time is up."""
    CANNOT_SLEEP = 4
    """Sleeping failed: see ``Device.take_fault``."""
