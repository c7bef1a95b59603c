"""Work requests and completions as arrays of records.

Verbs are posted and polled in batches: Python's cost is paid once a batch, and a
compiled device reads the batch without touching a Python object. All fields are
signed 64-bit, so that the same arithmetic holds compiled and interpreted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SEND_WR = np.dtype(
    [
        ("wr_id", "i8"),
        ("opcode", "i8"),  # WrOpcode
        ("send_flags", "i8"),  # SendFlags; not "flags", which numpy arrays have already
        ("imm", "i8"),  # immediate data as a host integer
        ("local_addr", "i8"),
        ("length", "i8"),  # bytes
        ("lkey", "i8"),
        ("remote_addr", "i8"),
        ("rkey", "i8"),
        ("sum_addr", "i8"),  # of a 32-bit word that a READ continues as the CRC-32 of its bytes
    ]
)
"""One send work request with one scatter/gather element.

``sum_addr`` is 0 for none, and only READs to a device that sums have another (``VerbCalls``)."""

RECV_WR = np.dtype([("wr_id", "i8"), ("local_addr", "i8"), ("length", "i8"), ("lkey", "i8")])
"""One receive work request with one scatter/gather element."""

WC = np.dtype(
    [
        ("wr_id", "i8"),
        ("status", "i8"),  # WcStatus
        ("opcode", "i8"),  # WcOpcode; meaningless unless status is SUCCESS
        ("byte_len", "i8"),  # bytes received, or transferred by a READ
        ("qp_num", "i8"),
        ("src_qp", "i8"),
        ("imm", "i8"),
        ("wc_flags", "i8"),
    ]
)
"""One work completion."""

RecordArray = Any
"""A ``numpy.recarray`` of one of the dtypes above (numpy cannot express that as a type)."""


def new_records(dtype: np.dtype[Any], count: int) -> RecordArray:
    """``count`` zeroed records of ``dtype``, with fields as attributes."""
    return np.zeros(count, dtype).view(np.recarray)
