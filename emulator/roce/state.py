"""The state of the engine: tables of records, linked by address.

Every field is a signed 64-bit integer. Compiled and interpreted arithmetic then agree
(numpy's narrow integers wrap and warn, numba's widen), and one accessor per table turns
an index into a record. PSNs are kept modulo 2^24; ring positions count up for ever and
are reduced when used, so that ``tail - head`` is always the fill.
"""

from __future__ import annotations

import numpy as np

from emulator.link.frames import FRAME
from kvlane.rawmem import record_accessor
from kvlane.verbs.records import WC

MAX_SGE = 16
MAX_READ_JOBS = 128
"""READs that a responder may be answering at once, repeated ones included."""
MAX_RD_ATOMIC = MAX_READ_JOBS // 2
"""The most a queue pair may ask for; the other half is for repeated requests, which the
network may bring at any time and which must never crowd out a new one."""

MAX_FRAME_BYTES = 12 + 28 + 4 + 4096 + 3 + 4
"""BTH, the largest extension header, immediate, payload, pad, ICRC."""

NIC = np.dtype(
    [
        (name, "i8")
        for name in (
            "qps",  # address of the QP table
            "qp_capacity",  # a power of two
            "qp_high",  # QPs ever used lie below this index
            "cqs",
            "mrs",
            "mr_capacity",
            "counters",
            "gid_hi",
            "gid_lo",
            "udp_port",
            "source_port",  # of every frame; 0 = by flow
            "scratch",  # 128 bytes for ICRC headers
            "tx_frames",  # the burst being filled: descriptors, arena, limits, fill
            "tx_arena",
            "tx_max_frames",
            "tx_max_bytes",
            "tx_count",
            "tx_bytes",
            "next_qp",  # where the round robin goes on
        )
    ]
)

COUNTER_NAMES = (
    "rx_frames",
    "tx_frames",
    "rx_bytes",
    "tx_bytes",
    "rx_runt",
    "rx_icrc_encapsulated",  # frames with a wrong ICRC, by mlx5's name
    "rx_bad_header",
    "rx_unknown_qp",
    "rx_bad_pkey",
    "rx_wrong_state",
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
)
COUNTERS = np.dtype([(name, "i8") for name in COUNTER_NAMES])

QP = np.dtype(
    [
        (name, "i8")
        for name in (
            # identity and path
            "qpn",
            "in_use",
            "state",  # QpState
            "pd",
            "send_cq",
            "recv_cq",
            "sq_sig_all",
            "access",  # AccessFlags that the peer is granted
            "remote_qpn",
            "remote_hi",
            "remote_lo",
            "remote_port",
            "source_port",
            "pkey",
            "mtu",  # bytes
            # send queue
            "sq",  # address of the WQE ring
            "sq_size",
            "sq_head",  # oldest incomplete
            "sq_next",  # being transmitted
            "sq_tail",  # next to post
            # requester
            "next_psn",  # first PSN not yet given to a WQE
            "tx_psn",  # next to transmit
            "high_psn",  # never transmitted so far; below it is a retransmission
            "una_psn",  # oldest unacknowledged
            "window",  # packets that may be unacknowledged before one more is sent
            "read_window",  # the same before one more READ is asked for
            "max_rd_atomic",
            "rd_outstanding",
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
            # responder
            "expected_psn",
            "msn",
            "inbound",  # INBOUND_*: which message is half received
            "recv_offset",  # bytes of the half-received SEND
            "write_addr",  # where the half-received WRITE goes on
            "write_rkey",
            "write_left",
            "nak_sent",  # silent until the expected PSN arrives
            "answer",  # ANSWER_*: what is due to the requester
            "answer_psn",
            "answer_syndrome",
            "jobs",  # address of the ring of READs being answered
            "job_head",
            "job_tail",
            "new_jobs",  # of them, those that are no repetition
            "max_dest_rd_atomic",
            "min_rnr_timer",
        )
    ]
)

INBOUND_NONE = 0
INBOUND_SEND = 1
INBOUND_WRITE = 2

ANSWER_NONE = 0
ANSWER_ACK = 1
ANSWER_NAK = 2

WQE = np.dtype(
    [
        ("wr_id", "i8"),
        ("opcode", "i8"),  # WrOpcode
        ("send_flags", "i8"),
        ("imm", "i8"),
        ("length", "i8"),
        ("remote_addr", "i8"),
        ("rkey", "i8"),
        ("assigned", "i8"),  # 1 once it has PSNs
        ("first_psn", "i8"),
        ("last_psn", "i8"),
        ("sent", "i8"),  # packets transmitted since the last going back
        ("received", "i8"),  # bytes of a READ's response
        ("num_sge", "i8"),
        ("sge_addr", "i8", (MAX_SGE,)),
        ("sge_length", "i8", (MAX_SGE,)),
        ("sge_lkey", "i8", (MAX_SGE,)),
    ]
)

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

CQ = np.dtype(
    [
        ("ring", "i8"),
        ("depth", "i8"),
        ("head", "i8"),  # next to poll
        ("tail", "i8"),  # next to fill
        ("overflowed", "i8"),
    ]
)

MR = np.dtype([("key", "i8"), ("addr", "i8"), ("length", "i8"), ("access", "i8"), ("pd", "i8")])
"""``key`` 0 marks a free entry; its upper 24 bits are the index, the lower 8 a tag."""

JOB = np.dtype(
    [
        ("psn", "i8"),  # of the next response packet
        ("last_psn", "i8"),
        ("addr", "i8"),
        ("left", "i8"),
        ("rkey", "i8"),
        ("repeated", "i8"),  # 1 when the request had been executed before
        ("started", "i8"),  # 0 while the next packet is the first of this response
    ]
)
"""A READ being answered."""

qp_at = record_accessor(QP)
wqe_at = record_accessor(WQE)
rqe_at = record_accessor(RQE)
cq_at = record_accessor(CQ)
cqe_at = record_accessor(WC)
mr_at = record_accessor(MR)
job_at = record_accessor(JOB)
frame_at = record_accessor(FRAME)
counters_at = record_accessor(COUNTERS)
