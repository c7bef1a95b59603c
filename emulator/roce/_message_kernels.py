"""SEND and RDMA WRITE at the responder: messages that come in one or many packets."""

from __future__ import annotations

from typing import Any

from emulator.roce._answer_kernels import (
    NAK_ACCESS,
    NAK_INVALID,
    NAK_OPERATION,
    RNR_CLASS,
    owe_nak,
    refuse,
)
from emulator.roce._completion_kernels import (
    WC_WITH_IMM,
    WC_WITH_INV,
    complete_recv,
    enter_error,
    wake_solicited,
)
from emulator.roce._emit_kernels import IMM_BYTES, RETH_BYTES
from emulator.roce._memory_kernels import copy_in, host_address, scatter, sges_allowed
from emulator.roce._receive_queue_kernels import receive_domain, take_receive
from emulator.roce._window_kernels import invalidate_window
from emulator.roce.state import (
    INBOUND_NONE,
    INBOUND_SEND,
    INBOUND_SKIP,
    INBOUND_WRITE,
    MAX_MESSAGE_BYTES,
    counters_at,
    rqe_at,
)
from emulator.wire._byte_kernels import get_be, get_be64
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.verbs.enums import AccessFlags, QpType, WcOpcode, WcStatus

_SEND_FIRST = int(Opcode.RC_SEND_FIRST)
_SEND_MIDDLE = int(Opcode.RC_SEND_MIDDLE)
_SEND_LAST = int(Opcode.RC_SEND_LAST)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_LAST_INV = int(Opcode.RC_SEND_LAST_WITH_INVALIDATE)
_SEND_ONLY = int(Opcode.RC_SEND_ONLY)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_SEND_ONLY_INV = int(Opcode.RC_SEND_ONLY_WITH_INVALIDATE)
_WRITE_FIRST = int(Opcode.RC_RDMA_WRITE_FIRST)
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)

_RC = int(QpType.RC)
_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_LEN_ERR = int(WcStatus.LOC_LEN_ERR)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_RECV = int(WcOpcode.RECV)
_RECV_WRITE_IMM = int(WcOpcode.RECV_RDMA_WITH_IMM)


@kernel
def carries_data(operation: int) -> bool:
    """Is it a packet of a SEND or WRITE?"""
    return operation < _READ_REQUEST or operation in (_SEND_LAST_INV, _SEND_ONLY_INV)


@kernel
def message_kind(operation: int) -> int:
    writes = _WRITE_FIRST <= operation < _READ_REQUEST
    return INBOUND_WRITE if writes else INBOUND_SEND


@kernel
def _role(operation: int) -> int:
    """The SEND operation with the same place in its message and the same extension."""
    if operation == _SEND_LAST_INV:
        return _SEND_LAST
    if operation == _SEND_ONLY_INV:
        return _SEND_ONLY
    return operation if operation < _WRITE_FIRST else operation - _WRITE_FIRST + _SEND_FIRST


@kernel
def is_first(operation: int) -> bool:
    """Does this packet begin a message?"""
    return _role(operation) in (_SEND_FIRST, _SEND_ONLY, _SEND_ONLY_IMM)


@kernel
def _in_sequence(qp: Any, operation: int) -> bool:
    """May this packet follow the one before it (IBTA 1.7 section 9.7.4.1.2)?"""
    if is_first(operation):
        return bool(qp.inbound == INBOUND_NONE)
    return bool(qp.inbound == message_kind(operation))


@kernel
def _length_fits(qp: Any, role: int, length: int) -> bool:
    """Payload of a packet by its place in the message (IBTA 1.7 C9-92 to C9-94)."""
    if role in (_SEND_FIRST, _SEND_MIDDLE):
        return bool(length == qp.mtu)
    if role in (_SEND_LAST, _SEND_LAST_IMM):
        return bool(0 < length <= qp.mtu)
    return bool(length <= qp.mtu)


@kernel
def _not_ready(nic: Any, qp: Any, psn: int) -> None:
    """No receive is posted. RC: RNR NAK, and the requester comes again; UC: dropped."""
    counters = counters_at(nic.counters, 0)
    if qp.kind != _RC:
        counters.rx_no_receive += 1
        qp.inbound = INBOUND_SKIP
        return
    counters.rnr_nak_sent += 1
    owe_nak(qp, psn, RNR_CLASS | (qp.min_rnr_timer & 31))


@kernel
def _receive_fault(nic: Any, qp: Any, psn: int, status: int, syndrome: int) -> None:
    """The posted receive cannot take the message.

    UC drops what is too long, and keeps the receive; a receive that cannot be written is the
    owner's fault and ends either kind of queue pair.
    """
    if qp.kind == _RC or status == _LOC_PROT_ERR:
        complete_recv(nic, qp, status, _RECV, 0)
    refuse(nic, qp, psn, syndrome)
    if qp.kind != _RC and status == _LOC_PROT_ERR:
        enter_error(nic, qp)


@kernel
def _take_send(nic: Any, qp: Any, psn: int, first: bool, payload: int, length: int) -> bool:
    """Scatter one packet of a SEND into its receive; False when it was refused."""
    pd = receive_domain(nic, qp)
    if first:
        if not take_receive(nic, qp):
            _not_ready(nic, qp, psn)
            return False
        qp.recv_offset = 0
        if not sges_allowed(nic, pd, rqe_at(qp.inbox, 0), _LOCAL_WRITE):
            _receive_fault(nic, qp, psn, _LOC_PROT_ERR, NAK_OPERATION)
            return False
    rqe = rqe_at(qp.inbox, 0)
    if qp.recv_offset + length > rqe.length:
        counters_at(nic.counters, 0).resp_local_length_error += 1
        _receive_fault(nic, qp, psn, _LOC_LEN_ERR, NAK_INVALID)
        return False
    if not scatter(nic, pd, rqe, (qp.recv_offset, length), payload, _LOCAL_WRITE, False):
        _receive_fault(nic, qp, psn, _LOC_PROT_ERR, NAK_OPERATION)
        return False
    qp.recv_offset += length
    return True


@kernel
def _start_write(nic: Any, qp: Any, psn: int, reth: int) -> bool:
    """Check a WRITE's RETH and remember where it goes; False when it was refused."""
    qp.write_addr = get_be64(reth)
    qp.write_rkey = get_be(reth + 8, 4)
    qp.write_left = get_be(reth + 12, 4)
    if qp.write_left > MAX_MESSAGE_BYTES:
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    # A zero-length WRITE checks no key (IBTA 1.7 C9-88).
    if (
        qp.write_left > 0
        and host_address(nic, qp, qp.write_rkey, qp.write_addr, qp.write_left, _REMOTE_WRITE) == 0
    ):
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    return True


@kernel
def _take_write(nic: Any, qp: Any, psn: int, last: bool, payload: int, length: int) -> bool:
    """Copy one packet of a WRITE to its place; False when it was refused."""
    if length > qp.write_left or (last and length != qp.write_left):
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    if length > 0:
        # The region may have been deregistered since the first packet.
        target = host_address(nic, qp, qp.write_rkey, qp.write_addr, length, _REMOTE_WRITE)
        if target == 0:
            refuse(nic, qp, psn, NAK_ACCESS)
            return False
        copy_in(target, payload, length, qp.write_left - length)
        qp.write_addr += length
        qp.write_left -= length
    return True


@kernel
def _finish_message(nic: Any, qp: Any, operation: int, extra: int, solicited: bool) -> None:
    """After the last packet: complete the receive that the message has taken, if any."""
    with_imm = _role(operation) in (_SEND_LAST_IMM, _SEND_ONLY_IMM)
    if message_kind(operation) == INBOUND_SEND:
        cqe = complete_recv(nic, qp, _SUCCESS, _RECV, qp.recv_offset)
    elif with_imm:
        cqe = complete_recv(nic, qp, _SUCCESS, _RECV_WRITE_IMM, qp.recv_offset)
    else:
        return
    if with_imm:
        cqe.imm = get_be(extra, IMM_BYTES)
        cqe.wc_flags = WC_WITH_IMM
    elif operation in (_SEND_LAST_INV, _SEND_ONLY_INV):
        cqe.imm = get_be(extra, IMM_BYTES)
        cqe.wc_flags = WC_WITH_INV
    if solicited:
        wake_solicited(nic, qp.recv_cq)


@kernel
def _prepare_write(nic: Any, qp: Any, psn: int, operation: int, reth: int) -> bool:
    """What a WRITE needs before its bytes are taken, in the order of IBTA 1.7 section 9.7.4.1:
    the queue pair's permission, a receive for an immediate, its RETH."""
    starts = is_first(operation)
    if starts and (qp.access & _REMOTE_WRITE) == 0 and get_be(reth + 12, 4) > 0:
        refuse(nic, qp, psn, NAK_ACCESS)
        return False
    if _role(operation) in (_SEND_LAST_IMM, _SEND_ONLY_IMM) and not take_receive(nic, qp):
        _not_ready(nic, qp, psn)
        return False
    if starts:
        if not _start_write(nic, qp, psn, reth):
            return False
        qp.recv_offset = qp.write_left
    return True


@kernel
def take_data(
    nic: Any, qp: Any, operation: int, psn: int, extension: int, length: int, solicited: bool
) -> bool:
    """Execute one in-order packet of a SEND or WRITE; False when it was refused.

    ``extension`` is the address behind the BTH, ``length`` the payload's.
    """
    role = _role(operation)
    kind = message_kind(operation)
    if not _in_sequence(qp, operation) or not _length_fits(qp, role, length):
        refuse(nic, qp, psn, NAK_INVALID)
        return False
    first = is_first(operation)
    last = role not in (_SEND_FIRST, _SEND_MIDDLE)
    extra = extension
    if kind == INBOUND_WRITE and first:
        extra += RETH_BYTES
    payload = extra
    invalidates = operation in (_SEND_LAST_INV, _SEND_ONLY_INV)
    if invalidates or role in (_SEND_LAST_IMM, _SEND_ONLY_IMM):
        payload += IMM_BYTES
    if kind == INBOUND_SEND:
        if not _take_send(nic, qp, psn, first, payload, length):
            return False
    else:
        if not _prepare_write(nic, qp, psn, operation, extension):
            return False
        if not _take_write(nic, qp, psn, last, payload, length):
            return False
    if last:
        if invalidates and not invalidate_window(nic, qp, get_be(extra, IMM_BYTES)):
            refuse(nic, qp, psn, NAK_ACCESS)
            return False
        _finish_message(nic, qp, operation, extra, solicited)
    qp.inbound = INBOUND_NONE if last else kind
    return True
