"""The state of the engine: tables of records, linked by address.

Every field is a signed 64-bit integer. Compiled and interpreted arithmetic then agree
(numpy's narrow integers wrap and warn, numba's widen), and one accessor per table turns
an index into a record. PSNs are kept modulo 2^24; ring positions count up for ever and
are reduced when used, so that ``tail - head`` is always the fill. No field is named like
an attribute of numpy arrays (``size``, ``flags``, ``base``), which would hide it.
"""

from __future__ import annotations

import numpy as np

from kvlane.rawmem import record_accessor
from kvlane.verbs.records import WC

MAX_SGE = 32
MAX_INLINE_BYTES = 512
MAX_READ_JOBS = 128
"""READs and atomics that a responder may be answering at once, repeated ones included."""
MAX_RD_ATOMIC = MAX_READ_JOBS // 2
"""The most a queue pair may ask for; the other half is for repeated requests, which the
network may bring at any time and which must never crowd out a new one."""
MAX_MESSAGE_BYTES = 1 << 31
"""IBTA 1.7 section 9.7.1.5.1 and table 45."""
MAX_EVENTS = 1024
"""Asynchronous events that wait to be fetched."""

MAX_FRAME_BYTES = 12 + 28 + 4 + 4096 + 3 + 4
"""BTH, the largest extension header, immediate, payload, pad, ICRC."""


def _fields(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, "i8") for name in names])


NIC = _fields(
    "now",  # when the engine was last called with frames or for frames, ns
    "qps",  # address of the QP table
    "qp_capacity",  # a power of two
    "qp_high",  # all QPs in use lie below this index
    "cqs",
    "srqs",
    "mrs",
    "mr_capacity",
    "events",  # ring of asynchronous events
    "event_head",
    "event_tail",
    "completions",  # ever pushed
    "cq_errors",  # completions lost since the queue pairs of failed queues were ended
    "cq_events",  # completion queues that have become ready since they were armed
    "counters",
    "source_port",  # of every frame; 0 = by flow
    "pkey",
    "port_mtu",  # payload of the longest packet, bytes
    "ecn",  # 1 = mark frames as ECN capable, and answer congestion marks
    "cnp_interval_ns",  # no two CNPs of a QP closer than this
    "scratch",  # 256 bytes
    "icrc",  # address of an ICRC_WORK
    "tx_frames",  # the burst being filled: descriptors, arena, limits, fill
    "tx_arena",
    "tx_max_frames",
    "tx_max_bytes",
    "tx_count",
    "tx_bytes",
    "next_qp",  # where the round robin goes on
    "observed",  # 1 while an observer wants to be told of every frame
)

COUNTER_NAMES = (
    "rx_frames",
    "tx_frames",
    "rx_bytes",
    "tx_bytes",
    "rx_runt",
    "rx_icrc_encapsulated",  # frames with a wrong ICRC, by mlx5's name
    "rx_accepted",  # frames that passed all checks of their headers
    "rx_bad_header",
    "rx_unknown_qp",
    "rx_bad_pkey",
    "rx_bad_qkey",
    "rx_wrong_state",
    "rx_no_receive",  # UC and UD messages for which no receive was posted
    "rx_too_long",  # UD messages longer than the receive or the port's MTU
    "rx_uc_gap",  # UC messages given up because a packet is missing
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "rx_atomic_write_requests",
    "rx_flush_requests",
    "out_of_sequence",
    "duplicate_request",
    "packet_seq_err",  # NAK-sequence received
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",  # RNR NAK received
    "rnr_nak_sent",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "resp_invalid_request",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "req_cqe_error",
    "resp_cqe_error",
    "retransmitted_packets",
    "cq_overflow",
    "events_lost",  # nobody had fetched MAX_EVENTS before them
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rp_cnp_ignored",
)
COUNTERS = _fields(*COUNTER_NAMES)

QP = _fields(
    # identity and path
    "qpn",
    "in_use",
    "kind",  # QpType
    "state",  # QpState
    "pd",
    "send_cq",
    "recv_cq",
    "srq",  # index, or -1
    "sq_sig_all",
    "access",  # AccessFlags that the peer is granted
    "qkey",
    "local_hi",  # GID that it sends from and is sent to
    "local_lo",
    "remote_qpn",
    "remote_hi",
    "remote_lo",
    "remote_port",
    "source_port",
    "traffic_class",
    "flow_label",
    "pkey",
    "mtu",  # bytes
    # send queue
    "sq",  # address of the WQE ring
    "sq_size",
    "inline_data",  # address of MAX_INLINE_BYTES for each WQE
    "sq_head",  # oldest incomplete
    "sq_next",  # being transmitted
    "sq_tail",  # next to post
    "drain_notify",  # tell of the send queue's draining
    # requester
    "next_psn",  # first PSN not yet given to a WQE
    "tx_psn",  # next to transmit
    "high_psn",  # never transmitted so far; below it is a retransmission
    "una_psn",  # oldest unacknowledged
    "asked_psn",  # behind the last packet that asks for an acknowledgement
    "window",  # packets that may be unacknowledged before one more is sent
    "read_window",  # the same before one more READ is asked for
    "max_rd_atomic",
    "rd_outstanding",
    "read_packets",  # response packets of READs that are still to come
    "ack_timeout_ns",  # 0 = wait for ever
    "ack_deadline",  # 0 = not armed
    "retry_count",
    "retries_left",
    "rnr_retry_count",
    "rnr_retries_left",
    "rnr_deadline",  # 0 = not waiting
    "went_back",  # an implied NAK has been acted on and nothing has arrived since
    # receive queue
    "rq",
    "rq_size",
    "rq_head",
    "rq_tail",
    "inbox",  # address of the receive that is being filled, one RQE
    "inbox_full",  # 1 while it holds one
    # responder
    "expected_psn",
    "msn",
    "inbound",  # INBOUND_*: which message is half received
    "recv_offset",  # bytes of the half-received SEND
    "write_addr",  # where the half-received WRITE goes on
    "write_rkey",
    "write_left",
    "ahead_psn",  # the furthest packet that came too early and was dropped
    "nak_sent",  # silent until the expected PSN arrives
    "answer",  # ANSWER_*: what is due to the requester
    "answer_psn",
    "answer_syndrome",
    "jobs",  # address of the ring of requests being answered by responses
    "job_head",
    "job_tail",
    "new_jobs",  # of them, those that are no repetition
    "atomics",  # address of the ring of results kept for repeated requests
    "atomic_tail",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "established",  # COMM_EST has been told
    # congestion
    "cnp_due",  # 1 when a CNP is owed to the peer
    "cnp_time",  # when the last one was sent
    "cc",  # address of the state of its congestion control, 0 = none
    "cc_kind",
    "pace_time",  # no packet with data leaves before
    "pace_wait",  # the same while one is being held back, else 0
)

INBOUND_NONE = 0
INBOUND_SEND = 1
INBOUND_WRITE = 2
INBOUND_SKIP = 3
"""UC: the rest of a broken message is ignored."""

ANSWER_NONE = 0
ANSWER_ACK = 1
ANSWER_NAK = 2

WQE = np.dtype(
    [
        ("wr_id", "i8"),
        ("opcode", "i8"),  # WrOpcode
        ("send_flags", "i8"),
        ("imm", "i8"),  # immediate data, or the rkey to invalidate
        ("length", "i8"),
        ("remote_addr", "i8"),
        ("rkey", "i8"),
        ("compare_add", "i8"),
        ("swap", "i8"),
        ("feth", "i8"),  # FLUSH: its header, and over how many bytes
        ("flush_length", "i8"),
        ("sum_addr", "i8"),  # READ: of the 32-bit word that is continued as its CRC-32; 0 for none
        ("ud_hi", "i8"),  # UD: where to
        ("ud_lo", "i8"),
        ("ud_local_hi", "i8"),  # and from which of the port's GIDs; 0 = the queue pair's
        ("ud_local_lo", "i8"),
        ("ud_port", "i8"),
        ("ud_qpn", "i8"),
        ("ud_qkey", "i8"),
        ("ud_traffic_class", "i8"),
        ("ud_flow_label", "i8"),
        ("mw_key", "i8"),  # BIND_MW: the window, its new key, what it opens
        ("mw_new_key", "i8"),
        ("mw_lkey", "i8"),
        ("mw_addr", "i8"),
        ("mw_length", "i8"),
        ("mw_access", "i8"),
        ("assigned", "i8"),  # 1 once it has PSNs
        ("first_psn", "i8"),
        ("last_psn", "i8"),
        ("sent", "i8"),  # packets transmitted since the last going back
        ("received", "i8"),  # bytes of a READ's response
        ("done", "i8"),  # 1 when a local operation has been carried out
        ("num_sge", "i8"),
        ("sge_addr", "i8", (MAX_SGE,)),
        ("sge_length", "i8", (MAX_SGE,)),
        ("sge_lkey", "i8", (MAX_SGE,)),
    ]
)
"""A send work request; what a poster leaves at zero it does not use. Fields from
``assigned`` to ``done`` are the engine's."""

RQE = np.dtype(
    [
        ("wr_id", "i8"),
        ("length", "i8"),
        ("num_sge", "i8"),
        ("sge_addr", "i8", (MAX_SGE,)),
        ("sge_length", "i8", (MAX_SGE,)),
        ("sge_lkey", "i8", (MAX_SGE,)),
    ]
)
"""A receive work request; ``length`` is the sum of its elements."""

CQE = np.dtype([*WC.descr, ("time", "i8")])
"""A completion as its queue keeps it: besides, when it came, by the clock of ``now``, ns."""

CQ_INDEX_BITS = 16
CQ_INDEX_MASK = (1 << CQ_INDEX_BITS) - 1
CQ = _fields(
    "number",  # its index, with a number above that no other queue of this index has had
    "ring",
    "depth",
    "head",  # next to poll
    "tail",  # next to fill
    "overflowed",  # 1 = in error for good: takes and gives no completion any more
    "armed",  # ARM_*
    "ready",  # 1 when it has become ready since it was armed, until that is fetched
)

ARM_NONE = 0
ARM_NEXT = 1
ARM_SOLICITED = 2

SRQ = _fields(
    "in_use",
    "pd",
    "ring",
    "depth",
    "head",
    "tail",
    "limit",  # tell once when fewer are left; 0 = do not
)

MR = _fields(
    "key",
    "addr",  # as peers and work requests name it
    "length",
    "host_addr",  # where that is in this process
    "access",
    "pd",
    "kind",  # MR_*
    "qpn",  # the QP that a type 2 window is bound to
    "region",  # key of the region that a window is bound to, 0 = to none
)
"""``key`` 0 marks a free entry; its upper 24 bits are the index, the lower 8 a tag."""

MR_REGION = 0
MR_WINDOW_1 = 1
MR_WINDOW_2 = 2

JOB = _fields(
    "psn",  # of the next response packet
    "last_psn",
    "addr",
    "left",
    "rkey",
    "repeated",  # 1 when the request had been executed before
    "started",  # 0 while the next packet is the first of this response
    "kind",  # JOB_*
    "value",  # an atomic's original value
)
"""A request being answered by a response."""

JOB_BYTES = JOB.itemsize

JOB_READ = 0
JOB_VALUE = 1
"""An atomic: one packet with the original value."""
JOB_EMPTY = 2
"""ATOMIC WRITE and FLUSH: one packet of a READ response, without data."""

ATOMIC_RESULT = _fields("operation", "psn", "value", "valid")
"""The result of an atomic, kept for a repeated request (IBTA 1.7 section 9.4.5); likewise that
an ATOMIC WRITE or a FLUSH has been carried out."""

EVENT = _fields("event", "subject")
"""An asynchronous event and the index of the QP, CQ or SRQ that it is about."""

nic_at = record_accessor(NIC)
qp_at = record_accessor(QP)
wqe_at = record_accessor(WQE)
rqe_at = record_accessor(RQE)
cq_at = record_accessor(CQ)
cqe_at = record_accessor(CQE)
srq_at = record_accessor(SRQ)
mr_at = record_accessor(MR)
job_at = record_accessor(JOB)
atomic_result_at = record_accessor(ATOMIC_RESULT)
event_at = record_accessor(EVENT)
counters_at = record_accessor(COUNTERS)
