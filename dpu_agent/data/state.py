"""The state of the data path: records linked by address, for the kernels that run it.

Every field is a signed 64-bit integer, as in the emulator's engine, so that compiled and
interpreted arithmetic agree. Positions in rings count up for ever and are reduced when used.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from dpu_agent.cache._store_kernels import StoreArrays
from kvlane.capsule import HEADER_BYTES, KEY_RESULT
from kvlane.limits import MAX_KEYS_PER_CAPSULE
from kvlane.rawmem import record_accessor
from kvlane.verbs.calls import VerbCalls

SEND_QUEUE_DEPTH = 256
CHUNK_REQUESTS = SEND_QUEUE_DEPTH // 2
"""Work requests posted together: half of the queue is at work while the other is refilled."""
CHUNK_BYTES = 256 << 10
"""Payload posted together, of several blocks or a part of one: the checksum of each chunk is made
while it still lies in a core's cache."""
RESPONSE_BYTES = HEADER_BYTES + MAX_KEYS_PER_CAPSULE * KEY_RESULT.itemsize
"""The largest response."""
ARRIVAL_WORDS = 3
POLL_BATCH = 256


class CommandState(IntEnum):
    """Where a command slot is in its life: FREE, maybe TRANSFER, RESPONSE, FREE again.

    A RETRIEVE of blocks that lie in a colder tier goes from TRANSFER to AWAITING and back once.
    """

    FREE = 0
    TRANSFER = 1
    """Its READs or WRITEs are posted or wait to be."""
    RESPONSE = 2
    """Its response waits to be posted, or for the proof that it was delivered."""
    AWAITING = 3
    """What could move has moved; the rest comes from a colder tier."""


class Notices(IntEnum):
    """Which chains, of those that MATCH commands ask for, Python is told of."""

    NONE = 0
    COLD = 1
    """Those of which a part lies in a colder tier."""
    ALL = 2


class Trouble(IntEnum):
    """Why a session has to end, from ``CONNECTION.trouble``."""

    NONE = 0
    BROKEN = 1
    """A work request failed; ``cause`` is its completion status."""
    REFUSED = 2
    """The NIC took no work request."""
    UNFIT_VICTIM = 3
    """The eviction policy chose a slot that is pinned or not published; ``cause`` is which."""
    STORE_MISUSE = 4
    """The store did not take back a slot that it had given; ``cause`` is which."""


def _fields(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, "i8") for name in names])


SERVER = _fields(
    "cq",
    "completions",  # address of POLL_BATCH WC
    "requests",  # address of CHUNK_REQUESTS SEND_WR
    "receives",  # address of RECV_WR, as many as a connection can have
    "pool_addr",
    "pool_lkey",
    "boot_id",  # address
    "executed",  # address of a count for each opcode
    "latencies",  # address of LATENCY_ROWS rows of LATENCY_WORDS words
    "latest",  # address of LATENCY_ROWS words a connection: latency of its last command
    "answers",  # address of ANSWER_WORDS a response: those posted in this turn of the loop
    "answer_count",
    "clock",  # scratch of the clock
    "awaiting",  # ring of (connection, command slot): RETRIEVEs that Python was not told of yet
    "awaiting_size",
    "awaiting_head",
    "awaiting_tail",
    "low_water",  # free slots below which Python is told; 0 where nobody cares
    "is_short",  # 1 = there are fewer
    "notices",  # Notices
    "noticed",  # ring of lengths of the chains that Python was not told of yet
    "noticed_head",
    "noticed_tail",
    "noticed_keys",  # ring of their keys
    "noticed_keys_head",
    "noticed_keys_tail",
    "attention",  # 1 = Python is to look at the connections
    "interrupt",  # 1 = Python wants to be let in
)

CONNECTION = _fields(
    "in_use",
    "index",  # its own in the table
    "serial",
    "session",
    "qp",
    "queue_depth",
    "slot_count",  # of command slots, and of receive buffers
    "capsules",  # address of the receive buffers
    "receive_lkey",
    "responses",  # address of the response buffers
    "response_lkey",
    "commands",  # address of COMMAND, one a command slot
    "block_slots",  # address of MAX_KEYS_PER_CAPSULE words a command slot: the store's, or -1
    "arrived",  # ring of (receive buffer, bytes, when): capsules that were not read yet
    "arrived_head",
    "arrived_tail",
    "free",  # stack of free command slots
    "free_count",
    "returned",  # stack of receive buffers to post again
    "returned_count",
    "outgoing",  # ring of command slots that have something to post
    "outgoing_head",
    "outgoing_tail",
    "room",  # in the send queue
    "posted",  # ring of POSTED
    "posted_head",
    "posted_tail",
    "in_flight",  # commands in state TRANSFER or AWAITING
    "begun",  # transfers ever
    "region_count",
    "region_rkeys",  # addresses of words, in the order of rkeys
    "region_starts",
    "region_sizes",
    "is_awaited",  # 1 = somebody waits for transfers to end
    "trouble",  # Trouble
    "cause",
    "touched",  # 1 = there may be something to post
    "tenant",  # address of TENANT_WORDS words, which sessions of one tenant share
)

COMMAND = _fields(
    "state",
    "opcode",  # NOT_EXECUTED where the command is refused
    "arrived_at",
    "has_waited",  # 1 = for a colder tier
    "command_flags",
    "command_id",
    "number",  # of the transfer among those of the connection
    "key_count",
    "buffer",  # the receive buffer, which is kept as long as the transfer lasts
    "next_key",  # the first whose payload was not asked for yet, or not all of it; DELETE: how
    # many keys were found
    "next_offset",  # how much of it was
    "cold",  # keys whose blocks are awaited: to come from a colder tier, or to be gone from it
    "is_awaited_over",  # 1 = they have come, or will not
    "response_bytes",
)

POSTED = _fields("requests", "slot", "first_key", "first_offset", "end_key", "end_offset")
"""What one signaled work request stands for: it and the ones before it, and the payload that they
move, from an offset in one key's block to an offset in another's; ``slot`` is the command slot."""

server_at = record_accessor(SERVER)
connection_at = record_accessor(CONNECTION)
command_at = record_accessor(COMMAND)
posted_at = record_accessor(POSTED)


class Serving(NamedTuple):
    """All that the kernels of the data path work on."""

    store: StoreArrays
    """What lies in memory."""
    cold: StoreArrays
    """What lies in a colder tier; its slots hold no payload that could be sent."""
    calls: VerbCalls
    server: int
    """Address of the SERVER record."""
    connections: int
    """Address of the CONNECTION table."""
    connection_count: int
