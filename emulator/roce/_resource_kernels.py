"""RDMA READ and atomics at the responder: each takes a responder resource until it is answered."""

from __future__ import annotations

from typing import Any

from emulator.roce._answer_kernels import NAK_ACCESS, NAK_INVALID, answered_by_response, refuse
from emulator.roce._atomic_kernels import WORD_BYTES, execute_atomic, keep_result, kept_result
from emulator.roce._job_kernels import may_queue, queue_answer, queue_read
from emulator.roce._memory_kernels import host_address
from emulator.roce._psn_kernels import packets_of, psn_span
from emulator.roce.state import (
    ANSWER_NAK,
    ANSWER_NONE,
    INBOUND_NONE,
    JOB_EMPTY,
    JOB_VALUE,
    MAX_MESSAGE_BYTES,
    atomic_result_at,
)
from emulator.wire._byte_kernels import get_be, get_be64
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.verbs.enums import AccessFlags

_COMPARE_SWAP = int(Opcode.RC_COMPARE_SWAP)
_FETCH_ADD = int(Opcode.RC_FETCH_ADD)
_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_REMOTE_ATOMIC = int(AccessFlags.REMOTE_ATOMIC)


@kernel
def _refuse_repeated(qp: Any, psn: int, syndrome: int) -> None:
    """A repeated READ whose region has gone. The connection lives on: the repetition may be
    the network's, and a requester that has its data takes the NAK for a ghost."""
    if qp.answer == ANSWER_NONE and qp.job_head == qp.job_tail:
        qp.answer = ANSWER_NAK
        qp.answer_psn = psn
        qp.answer_syndrome = syndrome


@kernel
def fault_before_length(qp: Any, access: int) -> int:
    """Why a request that a response answers is refused before anybody looks at what it names,
    as a syndrome; else 0. Its place among the others, what the queue pair grants, and a
    responder resource come before length and key (IBTA 1.7 section 9.7.4.1)."""
    if qp.inbound != INBOUND_NONE:
        return NAK_INVALID
    if (qp.access & access) != access:
        return NAK_ACCESS
    return 0 if may_queue(qp, False) else NAK_INVALID


@kernel
def _read_fault(nic: Any, qp: Any, addr: int, rkey: int, length: int, duplicate: bool) -> int:
    """Why a READ is refused, as a syndrome; else 0. One of nothing needs no permission (C9-88)."""
    needed = _REMOTE_READ if length > 0 else 0
    if not duplicate:
        fault = fault_before_length(qp, needed)
        if fault != 0:
            return fault
    elif (qp.access & needed) != needed:
        return NAK_ACCESS
    if length > MAX_MESSAGE_BYTES:
        return NAK_INVALID
    if length > 0 and host_address(nic, qp, rkey, addr, length, _REMOTE_READ) == 0:
        return NAK_ACCESS
    return 0


@kernel
def take_read(nic: Any, qp: Any, psn: int, reth: int, duplicate: bool) -> int:
    """Accept a READ request; return the PSNs it consumes, 0 when it was refused.

    A repeated request is checked like a new one: its region may be gone by now.
    """
    addr = get_be64(reth)
    rkey = get_be(reth + 8, 4)
    length = get_be(reth + 12, 4)
    packets = packets_of(length, qp.mtu)
    if duplicate and packets > psn_span(qp.expected_psn, psn):
        return 0  # asks for more than it once did: not a repetition, dropped
    fault = _read_fault(nic, qp, addr, rkey, length, duplicate)
    if fault != 0:
        if not duplicate:
            refuse(nic, qp, psn, fault)
        elif fault == NAK_ACCESS:
            _refuse_repeated(qp, psn, fault)
        return 0
    if not queue_read(qp, psn, addr, rkey, length, duplicate):
        return 0
    if not duplicate:
        answered_by_response(qp)
    return packets


@kernel
def take_atomic(nic: Any, qp: Any, operation: int, psn: int, header: int) -> bool:
    """Execute an atomic, exactly once; False when it was refused (IBTA 1.7 section 9.4.5)."""
    addr = get_be64(header)
    fault = fault_before_length(qp, _REMOTE_ATOMIC)
    if fault == 0 and addr % WORD_BYTES != 0:
        fault = NAK_INVALID
    if fault != 0:
        refuse(nic, qp, psn, fault)
        return False
    target = host_address(nic, qp, get_be(header + 8, 4), addr, WORD_BYTES, _REMOTE_ATOMIC)
    if target == 0:
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    value = execute_atomic(
        target, operation == _COMPARE_SWAP, get_be64(header + 12), get_be64(header + 20)
    )
    keep_and_answer(qp, operation, psn, JOB_VALUE, value)
    return True


@kernel
def keep_and_answer(qp: Any, operation: int, psn: int, kind: int, value: int) -> None:
    """A request that must not be executed twice has been: keep its result, and answer it."""
    keep_result(qp, operation, psn, value)
    queue_answer(qp, psn, kind, value, False)
    answered_by_response(qp)


@kernel
def answer_again(qp: Any, operation: int, psn: int) -> None:
    """A repetition of such a request: the kept result, never a second execution.

    One that is not kept any more, or was another operation, is dropped.
    """
    slot = kept_result(qp, operation, psn)
    if slot >= 0:
        kind = JOB_VALUE if operation in (_COMPARE_SWAP, _FETCH_ADD) else JOB_EMPTY
        queue_answer(qp, psn, kind, atomic_result_at(qp.atomics, slot).value, True)
