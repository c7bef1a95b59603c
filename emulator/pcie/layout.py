"""Tables of the device: those that peers map, and those that only its own kernels see.

All fields are 64-bit integers. What a peer may write (the channel) is never believed: it is
read once, checked, and compared with a private copy of the position.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from kvlane.rawmem import record_accessor
from kvlane.verbs.records import RECV_WR, SEND_WR, WC

PAGE_BYTES = 4096
CACHE_LINE_BYTES = 64

# Shared: the board of a device, which only its owner can write.

BOARD_MAGIC = 0x6B76_6C61_6E65_0002
BOARD_SLEEPING = 8
"""Offset of the word that says whether the device sleeps, and what for: ``Sleeping``, below the
number of the sleep. Who has rung for a sleep need not ring for it again."""
SLEEPING_BITS = 2
BOARD_REGIONS = 64
REGION_CAPACITY = 1 << 16
REGION_INDEX_MASK = REGION_CAPACITY - 1
"""A key is the index of its region, with random bits above."""
NO_MAP = -1

REGION = np.dtype(
    [
        ("key", "i8"),  # 0: nobody has it. Written last, and first to go
        ("addr", "i8"),  # in the owner's process
        ("length", "i8"),
        ("access", "i8"),  # AccessFlags
        ("map_id", "i8"),  # shared memory that it lies in, or NO_MAP
        ("map_offset", "i8"),
        ("_spare", "i8", 2),
    ]
)
BOARD_BYTES = BOARD_REGIONS + REGION_CAPACITY * REGION.itemsize
assert REGION.itemsize == CACHE_LINE_BYTES

# Shared: the channel into a queue pair. Both ends write, each its own cache lines.

CHANNEL_TAIL = 0
"""Written by the sender: bytes ever put into the ring."""
CHANNEL_SENDER_FAILED = 8
"""Written by the sender: 1 when its queue pair is in error."""
CHANNEL_ACTIVE = 64
"""Written by the sender: odd while it copies to or from the receiver's memory."""
CHANNEL_HEAD = 128
"""Written by the receiver: bytes ever taken out of the ring."""
CHANNEL_VERDICT = 136
"""Written by the receiver: the ``WcStatus`` that the sender's oldest request ends with; 0: open."""
CHANNEL_RING = PAGE_BYTES
RING_BYTES = 256 << 10
CHANNEL_LANDING = CHANNEL_RING + RING_BYTES
"""Written by the sender: what the receiver has asked for with ``FragmentKind.GET``."""
LANDING_BYTES = 256 << 10
CHANNEL_BYTES = CHANNEL_LANDING + LANDING_BYTES

RING_HEADER_BYTES = 32
"""Kind, length of the message, length of this fragment, immediate data."""
FRAGMENT_BYTES = 64 << 10


class FragmentKind(IntEnum):
    """Kinds of fragments that are no part of a message, which the opcodes of messages are not.

    Address and key stand where a message has its length and its immediate data.
    """

    PUT = 0x100
    """Bytes for the receiver's memory."""
    GET = 0x101
    """A word: how many bytes of the receiver's memory are wanted in the landing."""


class Sleeping(IntEnum):
    """What a device wants to be woken for."""

    AWAKE = 0
    FOR_ANYTHING = 1
    FOR_MESSAGES = 2
    """Not when something has been taken out of a ring: that is seen at the next occasion."""


class News(IntFlag):
    """What the peer of a queue pair has not been told yet."""

    NONE = 0
    TAKEN = 1
    """Its messages were taken out of the ring."""
    MESSAGE = 2
    """There is something for it, or it is waited for."""


# Private: what kernels work on.

MAX_MESSAGE_BYTES = 1 << 31
CHUNK_BYTES = 256 << 10
"""Copied between two looks at whether the memory may still be touched."""
assert CHUNK_BYTES <= LANDING_BYTES
QUANTUM_BYTES = 256 << 10
"""After this, another queue pair has its turn."""
PROGRESS_BYTES = 512 << 10
"""After this, whoever drives the device polls."""
REQUEST_COST_BYTES = 128
"""What a request of no length counts for in a quantum."""
ATTEND_EVERY = 64
"""Calls of progress between two looks at the control socket."""

QUEUE_CAPACITY = 1 << 12
QUEUE_INDEX_MASK = QUEUE_CAPACITY - 1
"""A handle is the index of its queue, with its generation above."""
PEER_CAPACITY = 1 << 10
MAP_CAPACITY = 1 << 12
MAX_OFFERS = 4
"""Peers that may offer themselves to one queue pair before it says whom it wants."""
MAX_WAITING_MESSAGES = MAP_CAPACITY + QUEUE_CAPACITY
"""For one peer: all memory there is, and an introduction for each queue pair."""
MESSAGES_PER_TURN = 256
"""After this, whoever attends to messages does something else for a while."""

CONTEXT = np.dtype(
    [
        ("live_count", "i8"),
        ("live", "i8"),  # address of the indices of open queue pairs
        ("cursor", "i8"),  # whose turn it is
        ("qps", "i8"),
        ("cqs", "i8"),
        ("cq_count", "i8"),  # entries of cqs that were ever used
        ("peers", "i8"),
        ("board", "i8"),
        ("pid", "i8"),
        ("reaches_itself", "i8"),  # 1: process_vm_readv and writev are permitted on this process
        ("channels", "i8"),  # address of their record, for copies of shared memory
        ("closed", "i8"),
        ("ticks", "i8"),  # calls of progress
        ("posted_bytes", "i8"),  # carried out by posts since the last progress
        ("attend", "i8"),  # function that handles control messages and deaths
        ("attend_due", "i8"),
        ("attend_fd", "i8"),  # epoll of the control socket and of peers' pidfds
        ("unattached", "i8"),  # connected queue pairs that wait for their peer
        ("backlog_due_ns", "i8"),  # when to try control messages again that wait; 0: none does
        ("has_fault", "i8"),  # 1: attending has failed by an exception that waits to be taken
        ("remarks", "i8"),  # 1: a peer has begun to be bounced, which people are to be told
        ("bell_fd", "i8"),
        ("kick_fd", "i8"),  # eventfd that wakes sleepers of this process
        ("sleepers", "i8"),
        ("wanted", "i8"),  # address of a word
        ("scratch", "i8"),  # address of SCRATCH_WORDS words
        ("fault", "i8"),  # Fault
        ("tx_bytes", "i8"),
        ("rx_bytes", "i8"),
        ("tx_messages", "i8"),
        ("rx_messages", "i8"),
        ("rdma_writes", "i8"),
        ("rdma_reads", "i8"),
        ("bounced_bytes", "i8"),  # of those above: as the process that asked for them counts
        ("bells_rung", "i8"),
        ("sleeps", "i8"),
        ("sleep_number", "i8"),  # of the present or the last time that anybody slept
        ("offers_refused", "i8"),  # introductions that this device has turned down
        ("connects_refused", "i8"),  # its own that a peer has turned down
        ("messages_dropped", "i8"),  # that were none, or had lost their descriptors
    ]
)
COUNTERS = tuple(CONTEXT.names or ())[-12:]
SCRATCH_WORDS = 32

QP = np.dtype(
    [
        ("state", "i8"),  # QpState
        ("attached", "i8"),
        ("inbound", "i8"),  # address of the own channel
        ("outbound", "i8"),  # address of the peer's
        ("rx_head", "i8"),
        ("rq_head", "i8"),
        ("rq_tail", "i8"),
        ("sq_done", "i8"),  # requests before this have ended
        ("sq_next", "i8"),  # the next to carry out
        ("sq_tail", "i8"),  # the next to post
        ("number", "i8"),
        ("cq", "i8"),
        ("peer", "i8"),
        ("remote_number", "i8"),
        ("tx_head", "i8"),  # as far as the peer has taken what was put into its ring
        ("tx_tail", "i8"),
        ("put_end", "i8"),  # the peer's head when it has carried out every PUT; 0: it has
        ("get_end", "i8"),  # the peer's head when it has carried out the GET under way; 0: none
        ("awaited_map", "i8"),  # 1 + the shared memory that was waited for already
        ("active", "i8"),
        ("news", "i8"),  # 1: the peer is to hear of what was written to a channel
        ("halted", "i8"),  # 1: a request has failed; none after it is carried out
        ("sq_offset", "i8"),  # bytes of request sq_next that are done
        ("sq", "i8"),
        ("sq_depth", "i8"),
        ("rq", "i8"),
        ("rq_depth", "i8"),
        ("rx_offset", "i8"),  # bytes of the message under way that have come
        ("rx_total", "i8"),  # its length; NO_MESSAGE between messages
        ("rx_kind", "i8"),
        ("rx_imm", "i8"),
    ]
)
NO_MESSAGE = -1

CQ = np.dtype(
    [
        ("handle", "i8"),  # 0: closed
        ("ring", "i8"),
        ("depth", "i8"),
        ("head", "i8"),
        ("tail", "i8"),
    ]
)

PEER = np.dtype(
    [
        ("board", "i8"),  # 0: nobody
        ("pid", "i8"),
        ("maps", "i8"),  # address of MAP_CAPACITY records of MAP
        ("pidfd", "i8"),
        ("why_not_reached", "i8"),  # errno of process_vm_readv; 0: its memory is reached
        ("is_bounced", "i8"),  # 1: people are to be told; 2: they were
        ("bell_address", "i8"),  # address of its bell's sockaddr_un
        ("bell_address_bytes", "i8"),
        ("rung_for", "i8"),  # number of its sleep that this process has rung for
    ]
)

MAP = np.dtype([("address", "i8"), ("length", "i8")])
"""Memory of a peer as this process has mapped it."""

SEND_ENTRY = np.dtype([*SEND_WR.descr, ("ring_end", "i8"), ("status", "i8")])
"""A posted request. It is done when the peer's head reaches ``ring_end``; 0 for at once."""

context_at = record_accessor(CONTEXT)
qp_at = record_accessor(QP)
cq_at = record_accessor(CQ)
peer_at = record_accessor(PEER)
map_at = record_accessor(MAP)
region_at = record_accessor(REGION)
send_entry_at = record_accessor(SEND_ENTRY)
send_wr_at = record_accessor(SEND_WR)
recv_at = record_accessor(RECV_WR)
wc_at = record_accessor(WC)
