"""The responder: takes the peer's requests in PSN order, each to those that carry it out."""

from __future__ import annotations

from typing import Any

from emulator.roce._answer_kernels import NAK_INVALID, NAK_PSN, owe_ack, owe_nak, refuse
from emulator.roce._message_kernels import carries_data, is_first, message_kind, take_data
from emulator.roce._placement_kernels import take_atomic_write, take_flush
from emulator.roce._psn_kernels import psn_add, psn_diff
from emulator.roce._resource_kernels import answer_again, take_atomic, take_read
from emulator.roce.state import (
    ANSWER_NAK,
    ANSWER_NONE,
    INBOUND_NONE,
    INBOUND_SEND,
    INBOUND_SKIP,
    INBOUND_WRITE,
    counters_at,
)
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.verbs.enums import QpType

_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)
_COMPARE_SWAP = int(Opcode.RC_COMPARE_SWAP)
_FETCH_ADD = int(Opcode.RC_FETCH_ADD)
_ATOMIC_WRITE = int(Opcode.RC_ATOMIC_WRITE)
_FLUSH = int(Opcode.RC_FLUSH)
_RC = int(QpType.RC)


@kernel
def _on_duplicate(nic: Any, qp: Any, operation: int, psn: int, extension: int) -> None:
    """A request that was executed before (IBTA 1.7 section 9.7.5.1.4, table 51)."""
    counters_at(nic.counters, 0).duplicate_request += 1
    if operation == _READ_REQUEST:
        take_read(nic, qp, psn, extension, True)
    elif carries_data(operation):
        # All that is executed is acknowledged, not just the repeated packet.
        owe_ack(qp, psn_add(qp.expected_psn, -1))
    else:
        answer_again(qp, operation, psn)


@kernel
def _order_holds(nic: Any, qp: Any, operation: int, psn: int, extension: int) -> bool:
    """RC: is this the expected packet? If not, it is dealt with here."""
    ahead = psn_diff(psn, qp.expected_psn)
    if ahead < 0:
        _on_duplicate(nic, qp, operation, psn, extension)
        return False
    if ahead > 0:
        counters_at(nic.counters, 0).out_of_sequence += 1
        if qp.nak_sent == 0 or psn_diff(psn, qp.ahead_psn) > 0:
            qp.ahead_psn = psn
        if qp.nak_sent == 0:
            owe_nak(qp, qp.expected_psn, NAK_PSN)
        return False
    return True


@kernel
def _gap_closes(qp: Any) -> bool:
    """The missing packet is here; True when what came too early has not been asked for again.

    A NAK that is not sent yet would ask for the packet that has just arrived.
    """
    if qp.nak_sent == 0:
        return False
    qp.nak_sent = 0
    if qp.answer != ANSWER_NAK:
        return False
    qp.answer = ANSWER_NONE
    return bool(qp.answer_syndrome == NAK_PSN)


@kernel
def _ask_for_dropped(qp: Any) -> None:
    """Ask for the packets that came too early, were dropped, and nobody will send by himself."""
    if qp.kind == _RC and psn_diff(qp.ahead_psn, qp.expected_psn) >= 0:
        owe_nak(qp, qp.expected_psn, NAK_PSN)


@kernel
def _take_resource(nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int) -> int:
    """Carry out a request that a response answers; its PSNs, 0 when it was refused."""
    counters = counters_at(nic.counters, 0)
    taken = False
    if operation == _READ_REQUEST:
        counters.rx_read_requests += 1
        return take_read(nic, qp, psn, extension, False)
    if operation in (_COMPARE_SWAP, _FETCH_ADD):
        counters.rx_atomic_requests += 1
        taken = take_atomic(nic, qp, operation, psn, extension)
    elif operation == _ATOMIC_WRITE:
        counters.rx_atomic_write_requests += 1
        taken = take_atomic_write(nic, qp, psn, extension, length)
    elif operation == _FLUSH:
        counters.rx_flush_requests += 1
        taken = take_flush(nic, qp, psn, extension)
    else:
        # A reserved opcode, or one that is not served: class C (IBTA 1.7 section 9.9.3).
        refuse(nic, qp, psn, NAK_INVALID)
    return 1 if taken else 0


@kernel
def _execute(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, bits: int
) -> bool:
    """Carry out the expected request packet; False when it was refused."""
    packets = 1
    if carries_data(operation):
        if message_kind(operation) == INBOUND_WRITE and is_first(operation):
            counters_at(nic.counters, 0).rx_write_requests += 1
        if not take_data(nic, qp, operation, psn, extension, length, (bits & 2) != 0):
            return False
        if (bits & 1) != 0 or qp.inbound == INBOUND_NONE:
            owe_ack(qp, psn)
    else:
        packets = _take_resource(nic, qp, operation, psn, extension, length)
        if packets == 0:
            return False
    qp.expected_psn = psn_add(psn, packets)
    if qp.inbound == INBOUND_NONE:
        qp.msn = (qp.msn + 1) & 0xFFFFFF
    return True


@kernel
def on_rc_request(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, bits: int
) -> None:
    """A request packet has passed the header checks: order first, then the rest.

    ``bits``: 1 an acknowledgement is asked for, 2 the event is solicited.
    """
    if not _order_holds(nic, qp, operation, psn, extension):
        return
    unasked = _gap_closes(qp)
    if _execute(nic, qp, operation, psn, extension, length, bits) and unasked:
        _ask_for_dropped(qp)


@kernel
def on_uc_request(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, bits: int
) -> None:
    """UC: a gap costs the message it falls into, and nothing else (IBTA 1.7 section 9.8.2)."""
    gap = psn != qp.expected_psn
    qp.expected_psn = psn_add(psn, 1)
    if gap and qp.inbound in (INBOUND_SEND, INBOUND_WRITE):
        counters_at(nic.counters, 0).rx_uc_gap += 1
    if is_first(operation):
        qp.inbound = INBOUND_NONE  # whatever was half received is given up
    elif gap or qp.inbound not in (INBOUND_SEND, INBOUND_WRITE):
        qp.inbound = INBOUND_SKIP
        return
    take_data(nic, qp, operation, psn, extension, length, (bits & 2) != 0)
