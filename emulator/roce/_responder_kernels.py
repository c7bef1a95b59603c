"""The responder: executes the peer's requests in PSN order, and says what it owes them."""

from __future__ import annotations

from typing import Any

from emulator.roce._completion_kernels import WC_WITH_IMM, complete_recv, enter_error
from emulator.roce._emit_kernels import IMM_BYTES, RETH_BYTES, get_be
from emulator.roce._memory_kernels import access_allowed, scatter, sges_allowed
from emulator.roce._psn_kernels import packets_of, psn_add, psn_diff
from emulator.roce.state import (
    ANSWER_ACK,
    ANSWER_NAK,
    ANSWER_NONE,
    INBOUND_NONE,
    INBOUND_SEND,
    INBOUND_WRITE,
    MAX_RD_ATOMIC,
    MAX_READ_JOBS,
    counters_at,
    job_at,
    rqe_at,
)
from emulator.wire.aeth import NakCode
from emulator.wire.opcode import Opcode
from kvlane.jit import kernel
from kvlane.rawmem import copy
from kvlane.verbs.enums import AccessFlags, WcOpcode, WcStatus

_SEND_FIRST = int(Opcode.RC_SEND_FIRST)
_SEND_MIDDLE = int(Opcode.RC_SEND_MIDDLE)
_SEND_LAST = int(Opcode.RC_SEND_LAST)
_SEND_LAST_IMM = int(Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
_SEND_ONLY = int(Opcode.RC_SEND_ONLY)
_SEND_ONLY_IMM = int(Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)
_WRITE_FIRST = int(Opcode.RC_RDMA_WRITE_FIRST)
_WRITE_ONLY_IMM = int(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
_READ_REQUEST = int(Opcode.RC_RDMA_READ_REQUEST)

_NAK_CLASS = 0x60
_RNR_CLASS = 0x20
_NAK_PSN = _NAK_CLASS | int(NakCode.PSN_SEQUENCE_ERROR)
_NAK_INVALID = _NAK_CLASS | int(NakCode.INVALID_REQUEST)
_NAK_ACCESS = _NAK_CLASS | int(NakCode.REMOTE_ACCESS_ERROR)
_NAK_OPERATION = _NAK_CLASS | int(NakCode.REMOTE_OPERATIONAL_ERROR)
_ACK_NO_CREDITS = 0x1F
"""Credit field for "no end-to-end flow control" (IBTA 1.7 section 9.7.7.2)."""

_LOCAL_WRITE = int(AccessFlags.LOCAL_WRITE)
_REMOTE_WRITE = int(AccessFlags.REMOTE_WRITE)
_REMOTE_READ = int(AccessFlags.REMOTE_READ)
_SUCCESS = int(WcStatus.SUCCESS)
_LOC_LEN_ERR = int(WcStatus.LOC_LEN_ERR)
_LOC_PROT_ERR = int(WcStatus.LOC_PROT_ERR)
_RECV = int(WcOpcode.RECV)
_RECV_WRITE_IMM = int(WcOpcode.RECV_RDMA_WITH_IMM)

_MAX_MESSAGE_BYTES = 1 << 31
"""IBTA 1.7 section 9.7.1.5.1 and table 45."""


@kernel
def owe_ack(qp: Any, psn: int) -> None:
    """An acknowledgement is due; later ones replace it, because they cover it."""
    if qp.answer != ANSWER_NAK:
        qp.answer = ANSWER_ACK
        qp.answer_psn = psn
        qp.answer_syndrome = _ACK_NO_CREDITS


@kernel
def _owe_nak(qp: Any, psn: int, syndrome: int) -> None:
    """A negative acknowledgement is due; after it, silence until the expected PSN."""
    qp.answer = ANSWER_NAK
    qp.answer_psn = psn
    qp.answer_syndrome = syndrome
    qp.nak_sent = 1


@kernel
def _refuse(nic: Any, qp: Any, psn: int, syndrome: int) -> None:
    """A class C fault: NAK, then this queue pair is in error (IBTA 1.7 section 9.9.3)."""
    counters = counters_at(nic.counters, 0)
    if syndrome == _NAK_ACCESS:
        counters.resp_remote_access_errors += 1
    elif syndrome == _NAK_INVALID:
        counters.resp_invalid_request += 1
    _owe_nak(qp, psn, syndrome)
    enter_error(nic, qp)


@kernel
def _kind(opcode: int) -> int:
    return INBOUND_SEND if opcode < _WRITE_FIRST else INBOUND_WRITE


@kernel
def _role(opcode: int) -> int:
    """The SEND opcode with the same place in its message and the same immediate."""
    return opcode if opcode < _WRITE_FIRST else opcode - _WRITE_FIRST + _SEND_FIRST


@kernel
def _in_sequence(qp: Any, opcode: int, role: int) -> bool:
    """May this packet follow the one before it (IBTA 1.7 section 9.7.4.1.2)?"""
    if role in (_SEND_FIRST, _SEND_ONLY, _SEND_ONLY_IMM):
        return bool(qp.inbound == INBOUND_NONE)
    return bool(qp.inbound == _kind(opcode))


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
    """No receive is posted: RNR NAK, and the requester comes again."""
    counters_at(nic.counters, 0).rnr_nak_sent += 1
    _owe_nak(qp, psn, _RNR_CLASS | (qp.min_rnr_timer & 31))


@kernel
def _take_send(nic: Any, qp: Any, psn: int, first: bool, payload: int, length: int) -> bool:
    """Scatter one packet of a SEND into the oldest receive; False when it was refused."""
    if qp.rq_head == qp.rq_tail:
        _not_ready(nic, qp, psn)
        return False
    rqe = rqe_at(qp.rq, qp.rq_head % qp.rq_size)
    if first:
        qp.recv_offset = 0
        if not sges_allowed(nic, qp.pd, rqe, _LOCAL_WRITE):
            complete_recv(nic, qp, _LOC_PROT_ERR, _RECV, 0)
            _refuse(nic, qp, psn, _NAK_OPERATION)
            return False
    if qp.recv_offset + length > rqe.length:
        counters_at(nic.counters, 0).resp_local_length_error += 1
        complete_recv(nic, qp, _LOC_LEN_ERR, _RECV, 0)
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    scatter(rqe, qp.recv_offset, length, payload)
    qp.recv_offset += length
    return True


@kernel
def _start_write(nic: Any, qp: Any, psn: int, reth: int) -> bool:
    """Check a WRITE's RETH and remember where it goes; False when it was refused."""
    qp.write_addr = get_be(reth, 8)
    qp.write_rkey = get_be(reth + 8, 4)
    qp.write_left = get_be(reth + 12, 4)
    if qp.write_left > _MAX_MESSAGE_BYTES:
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    # A zero-length WRITE checks no key (IBTA 1.7 C9-88).
    if qp.write_left > 0 and (
        (qp.access & _REMOTE_WRITE) == 0
        or not access_allowed(
            nic, qp.pd, qp.write_rkey, qp.write_addr, qp.write_left, _REMOTE_WRITE
        )
    ):
        _refuse(nic, qp, psn, _NAK_ACCESS)
        return False
    return True


@kernel
def _take_write(nic: Any, qp: Any, psn: int, last: bool, payload: int, length: int) -> bool:
    """Copy one packet of a WRITE to its place; False when it was refused."""
    if length > qp.write_left or (last and length != qp.write_left):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    if length > 0:
        # The region may have been deregistered since the first packet.
        if not access_allowed(nic, qp.pd, qp.write_rkey, qp.write_addr, length, _REMOTE_WRITE):
            _refuse(nic, qp, psn, _NAK_ACCESS)
            return False
        copy(qp.write_addr, payload, length)
        qp.write_addr += length
        qp.write_left -= length
    return True


@kernel
def _finish_message(nic: Any, qp: Any, opcode: int, imm: int) -> None:
    """After the last packet: consume a receive where the message takes one."""
    with_imm = _role(opcode) in (_SEND_LAST_IMM, _SEND_ONLY_IMM)
    if _kind(opcode) == INBOUND_SEND:
        cqe = complete_recv(nic, qp, _SUCCESS, _RECV, qp.recv_offset)
    elif with_imm:
        cqe = complete_recv(nic, qp, _SUCCESS, _RECV_WRITE_IMM, qp.recv_offset)
    else:
        return
    if with_imm:
        cqe.imm = get_be(imm, IMM_BYTES)
        cqe.wc_flags = WC_WITH_IMM


@kernel
def take_data(nic: Any, qp: Any, opcode: int, psn: int, extension: int, length: int) -> bool:
    """Execute one in-order packet of a SEND or WRITE; False when it was refused.

    ``extension`` is the address behind the BTH, ``length`` the payload's.
    """
    role = _role(opcode)
    kind = _kind(opcode)
    if not _in_sequence(qp, opcode, role) or not _length_fits(qp, role, length):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return False
    first = role in (_SEND_FIRST, _SEND_ONLY, _SEND_ONLY_IMM)
    last = role not in (_SEND_FIRST, _SEND_MIDDLE)
    with_imm = role in (_SEND_LAST_IMM, _SEND_ONLY_IMM)
    payload = extension
    if kind == INBOUND_WRITE and first:
        payload += RETH_BYTES
    imm = payload
    if with_imm:
        payload += IMM_BYTES
    if kind == INBOUND_SEND:
        if not _take_send(nic, qp, psn, first, payload, length):
            return False
    else:
        if with_imm and qp.rq_head == qp.rq_tail:
            _not_ready(nic, qp, psn)
            return False
        if first:
            if not _start_write(nic, qp, psn, extension):
                return False
            qp.recv_offset = qp.write_left
        if not _take_write(nic, qp, psn, last, payload, length):
            return False
    if last:
        _finish_message(nic, qp, opcode, imm)
    qp.inbound = INBOUND_NONE if last else kind
    return True


@kernel
def _queue_job(qp: Any, psn: int, addr: int, rkey: int, length: int, repeated: bool) -> bool:
    """Remember to answer a READ; a repeated one takes the place of what it repeats."""
    packets = packets_of(length, qp.mtu)
    index = qp.job_head
    while index < qp.job_tail:
        job = job_at(qp.jobs, index % MAX_READ_JOBS)
        if psn_diff(psn, job.last_psn) <= 0 and psn_diff(psn_add(psn, packets), job.psn) > 0:
            break
        index += 1
    job = job_at(qp.jobs, index % MAX_READ_JOBS)
    if index == qp.job_tail:
        repeated_jobs = qp.job_tail - qp.job_head - qp.new_jobs
        if repeated and repeated_jobs >= MAX_READ_JOBS - MAX_RD_ATOMIC:
            return False
        if not repeated:
            if qp.new_jobs >= qp.max_dest_rd_atomic:
                return False
            qp.new_jobs += 1
        qp.job_tail += 1
        job.repeated = 1 if repeated else 0
    job.psn = psn
    job.last_psn = psn_add(psn, packets - 1)
    job.addr = addr
    job.rkey = rkey
    job.left = length
    job.started = 0
    return True


@kernel
def take_read(nic: Any, qp: Any, psn: int, reth: int, duplicate: bool) -> int:
    """Accept a READ request; return the PSNs it consumes, 0 when it was refused.

    A repeated request is checked like a new one: its region may be gone by now.
    """
    addr = get_be(reth, 8)
    rkey = get_be(reth + 8, 4)
    length = get_be(reth + 12, 4)
    packets = packets_of(length, qp.mtu)
    if length > _MAX_MESSAGE_BYTES or (not duplicate and qp.inbound != INBOUND_NONE):
        _refuse(nic, qp, psn, _NAK_INVALID)
        return 0
    if duplicate and psn_diff(psn_add(psn, packets), qp.expected_psn) > 0:
        return 0  # asks for more than it once did: not a repetition, dropped
    if length > 0 and (
        (qp.access & _REMOTE_READ) == 0
        or not access_allowed(nic, qp.pd, rkey, addr, length, _REMOTE_READ)
    ):
        _refuse(nic, qp, psn, _NAK_ACCESS)
        return 0
    if not _queue_job(qp, psn, addr, rkey, length, duplicate):
        if not duplicate:
            _refuse(nic, qp, psn, _NAK_INVALID)
        return 0
    if not duplicate and qp.answer == ANSWER_ACK:
        qp.answer = ANSWER_NONE  # the READ's response acknowledges what came before it
    return packets


@kernel
def _on_duplicate(nic: Any, qp: Any, opcode: int, psn: int, extension: int) -> None:
    """A request that was executed before (IBTA 1.7 section 9.7.5.1.4, table 51)."""
    counters_at(nic.counters, 0).duplicate_request += 1
    if opcode == _READ_REQUEST:
        take_read(nic, qp, psn, extension, True)
    else:
        # All that is executed is acknowledged, not just the repeated packet.
        owe_ack(qp, psn_add(qp.expected_psn, -1))


@kernel
def on_request(
    nic: Any, qp: Any, opcode: int, psn: int, ack_request: bool, extension: int, length: int
) -> None:
    """A request packet has passed the header checks: order first, then the rest."""
    ahead = psn_diff(psn, qp.expected_psn)
    if ahead < 0:
        _on_duplicate(nic, qp, opcode, psn, extension)
        return
    if ahead > 0:
        counters_at(nic.counters, 0).out_of_sequence += 1
        if qp.nak_sent == 0:
            _owe_nak(qp, qp.expected_psn, _NAK_PSN)
        return
    if qp.nak_sent != 0:
        # What was missing is here: a NAK not yet sent would ask for it again.
        qp.nak_sent = 0
        if qp.answer == ANSWER_NAK:
            qp.answer = ANSWER_NONE
    if opcode == _READ_REQUEST:
        packets = take_read(nic, qp, psn, extension, False)
        if packets > 0:
            qp.msn = (qp.msn + 1) & 0xFFFFFF
            qp.expected_psn = psn_add(psn, packets)
        return
    if not take_data(nic, qp, opcode, psn, extension, length):
        return
    qp.expected_psn = psn_add(psn, 1)
    if qp.inbound == INBOUND_NONE:
        qp.msn = (qp.msn + 1) & 0xFFFFFF
    if ack_request or qp.inbound == INBOUND_NONE:
        owe_ack(qp, psn)
