"""Why a responder refused a request, in words, from what changed when it did."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from emulator.roce.state import INBOUND_NONE, INBOUND_SEND, INBOUND_WRITE
from emulator.wire.aeth import NakCode
from emulator.wire.opcode import OPERATION_MASK, Opcode

_INBOUND_NAMES = {INBOUND_NONE: "no message", INBOUND_SEND: "a SEND", INBOUND_WRITE: "a WRITE"}
_RESOURCE_OPERATIONS = (
    Opcode.RC_RDMA_READ_REQUEST,
    Opcode.RC_COMPARE_SWAP,
    Opcode.RC_FETCH_ADD,
    Opcode.RC_ATOMIC_WRITE,
    Opcode.RC_FLUSH,
)
_SERVED = frozenset(Opcode)


def nak_reason(code: int, before: Any, opcode: int, psn: int, moved: Collection[str]) -> str:
    """What was wrong with the request ``opcode``, ``psn``.

    ``before`` is the ``QP`` record as the request found it, ``moved`` the counters that the
    request has moved.
    """
    if code == NakCode.PSN_SEQUENCE_ERROR:
        return f"expected PSN {int(before.expected_psn)}, got {psn}"
    if code == NakCode.REMOTE_ACCESS_ERROR:
        return "its key, range or permission does not hold"
    if code == NakCode.REMOTE_OPERATIONAL_ERROR:
        return "the receive's own memory cannot be written"
    if "resp_local_length_error" in moved:
        return "it is longer than the receive posted for it"
    if opcode not in _SERVED:
        return f"opcode {opcode:#04x} is reserved or not served"
    if not _in_sequence(before, opcode):
        return f"it does not follow on {_INBOUND_NAMES[int(before.inbound)]}"
    if opcode in _RESOURCE_OPERATIONS and before.new_jobs >= before.max_dest_rd_atomic:
        return f"more than {int(before.max_dest_rd_atomic)} READs, atomics and FLUSHes at once"
    if opcode == Opcode.RC_FLUSH:
        return "its placement type, selectivity or length does not fit"
    return "its length or alignment does not fit"


def _in_sequence(before: Any, opcode: int) -> bool:
    """Could this request follow what has been received of the message before it?"""
    traits = Opcode(opcode).traits
    if traits.is_first or traits.is_only:
        return bool(before.inbound == INBOUND_NONE)
    writes = Opcode.RC_RDMA_WRITE_FIRST <= (opcode & OPERATION_MASK) < Opcode.RC_RDMA_READ_REQUEST
    return bool(before.inbound == (INBOUND_WRITE if writes else INBOUND_SEND))
